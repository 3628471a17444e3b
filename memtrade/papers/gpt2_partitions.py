"""The published partitions of GPT-2 beside ours of the same net for the same cards, field by field.

    python -m memtrade.papers.gpt2_partitions results/predicted

Writes gpt2_partitions.md into the folder. The net is traced by TensorFlow; nothing is run.

What the figures are, the tool's own source says (saareliad/FTPipe on GitHub, of 9 January 2020:
pytorch_Gpipe/model_profiling/network_profiler.py, misc/partition_analysis.py):

    theoretical times    of layers alone, each timed by itself; what a module computes between its
                         layers (attention's products and softmax, GELU, sums) weighs nothing
    real times           of whole stages
    cutting edges        from a layer or an op to another one that reads it
    outputs              what the next stage reads, the keys and values of each block, which the
                         net returns, and the logits; a time to send is the largest one's
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from memtrade.graph import StepGraph
from memtrade.models import make_model
from memtrade.papers.fused import Fusion
from memtrade.papers.pages import save_page, trace_model, write_pages
from memtrade.papers.published import published_lines
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.report import (
    Evenness,
    PartitionReport,
    PhaseTimes,
    analyse,
    connected_stages,
    evenness,
)
from memtrade.results.sheets import Sheet
from memtrade.target import profile_target

COMMAND = "python -m memtrade.papers.gpt2_partitions results/predicted"
# The reports' last stages receive nothing as large as a shared matrix, so it is not tied. It was
# timed in training mode.
MODEL = {
    "batch_size": 1, "positions": 1024, "vocabulary": 50257, "tied": False, "dropout": 0.1,
}  # fmt: skip
SLACK = 0.1
# The scopes that are modules of PyTorch's GPT-2; the lookup in a table is one, too.
LAYERS = {
    "norm", "norm1", "norm2", "qkv", "attention_out", "mlp_in", "mlp_out", "logits",
    "dropout", "dropout1", "dropout2", "attention_dropout",
}  # fmt: skip
# How deep they are nested, blocks and all; the reports, which count from 0 and the whole net on,
# say 3.
DEPTH = 2
CARDS = {"GTX 1070": "gtx-1070", "GTX 1080 Ti": "gtx-1080-ti"}


class Field(NamedTuple):
    """One printed figure of a report beside ours."""

    report: str
    kind: str
    what: str
    published: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


@dataclass(frozen=True)
class OurStages:
    """Ours, as the published reports define it.

    Attributes:
        theoretical: with the times of layers alone.
        balances: by the reports' kinds of times; parallel ones along the longest path through
            layers, real ones with the times of all ops.
        outputs: for each stage, the bytes of each tensor that it hands on or returns.
    """

    theoretical: PartitionReport
    balances: dict[str, Evenness]
    cutting_edges: int
    outputs: tuple[tuple[int, ...], ...]


def stages_of(graph: StepGraph, card: str, partitions: int) -> OurStages:
    """For that card. A layer is one kernel, or a few; between layers each op is one."""
    target, fusion = profile_target(CARDS[card]), Fusion(graph)
    partitioner = Partitioner(graph, depth=DEPTH)
    made = partitioner.by_time(partitions, target, slack=SLACK, costs=fusion.costs)
    homes = [None if at is None else layer_of(graph, at) for at in partitioner.anchors.at]
    fused, plain = fusion.seconds(target.device), target.op_seconds(graph)

    def report(beside: Sequence[float]) -> PartitionReport:
        """With the times of fused kernels in layers, and those of other ops given."""
        seconds = [
            one if home else other for home, one, other in zip(homes, fused, beside, strict=True)
        ]
        link = target.device.device_to_host_bytes_per_s
        return analyse(
            graph, made, target, link_bytes_per_s=link, volumes="largest", seconds=seconds
        )

    in_layers = [one if home else 0.0 for home, one in zip(homes, fused, strict=True)]
    theoretical, longest = report([0.0] * len(fused)), _longest(graph, made, homes, in_layers)
    return OurStages(
        theoretical=theoretical,
        balances={
            "theoretical_sequential": theoretical.sequential,
            "theoretical_parallel": evenness(longest, connected_stages(made)),
            "real": report(plain).sequential,
        },
        cutting_edges=len(_edges(graph, made, homes)),
        outputs=tuple(_outputs(graph, made, stage) for stage in range(partitions)),
    )


def _longest(
    graph: StepGraph, made: Partition, homes: Sequence[str | None], seconds: Sequence[float]
) -> PhaseTimes:
    """Along the path of layers that takes longest, each with all of its forward or gradient ops."""
    forward, backward = [], []
    for stage in range(len(made.stages)):
        own = sorted(made.stages[stage].ops)
        late = [
            op_id
            for op_id in graph.backward
            if made.stage_of[op_id] == stage and graph.ops[op_id].outputs
        ]
        for ops, found in ((own, forward), (late, backward)):
            weights = Counter[str | None]()
            for op_id in ops:
                weights[homes[op_id]] += seconds[op_id]  # pyright: ignore[reportArgumentType]
            ended: dict[str | int, float] = {}
            for op_id in own:
                key = homes[op_id] or op_id
                producers = (graph.tensors[t].op for t in graph.ops[op_id].inputs)
                before = {homes[each] or each for each in producers} - {key}
                start = max((ended.get(each, 0.0) for each in before), default=0.0)
                ended[key] = max(ended.get(key, 0.0), start + weights[homes[op_id]])
            found.append(max(ended.values()))
    late_with_early = tuple(map(sum, zip(forward, backward, strict=True)))
    return PhaseTimes(tuple(forward), late_with_early)


def layer_of(graph: StepGraph, op_id: int) -> str | None:
    """The layer that an op of the line is part of, by its name's path."""
    op = graph.ops[op_id]
    path = op.name.split("/")[:-1]
    for depth, scope in enumerate(path, start=1):
        if scope in LAYERS:
            return "/".join(path[:depth])
    return op.name if op.type == "ResourceGather" else None


def _edges(graph: StepGraph, made: Partition, homes: Sequence[str | None]) -> set[tuple[int, Any]]:
    """From a tensor that crosses to each layer, or op beside layers, that reads it elsewhere."""
    return {
        (crossing.tensor, homes[reader] or reader)
        for crossing in made.crossings
        for reader in graph.consumers[crossing.tensor]
        if reader in graph.forward and made.stage_of[reader] in crossing.targets
    }


def _outputs(graph: StepGraph, made: Partition, stage: int) -> tuple[int, ...]:
    sizes = [crossing.size_bytes for crossing in made.sends(stage) for _ in crossing.targets]
    for op_id in made.stages[stage].ops:
        op = graph.ops[op_id]
        layer = op.name.split("/")[-2:-1]
        made_bytes = sum(graph.tensors[t].size_bytes for t in op.outputs)
        if op.type == "MatMul" and layer == ["qkv"]:
            sizes.append(made_bytes * 2 // 3)  # keys and values in one tensor
        if op.type == "MatMul" and layer == ["logits"]:
            sizes.append(made_bytes)
    loss = graph.tensors[graph.loss]
    return (*sizes, loss.size_bytes) if made.stage_of[loss.op] == stage else tuple(sizes)


def fields(line: dict[Any, Any], ours: OurStages) -> Iterator[Field]:
    """All that a published report prints."""
    name = line["report"]
    yield Field(name, "edges", "cutting edges", line["cutting_edges"], ours.cutting_edges)
    for stage in published_lines("gpt2_partition_stages", report=name):
        yield from _stage(name, stage["partition"], stage, ours)
    for each in published_lines("gpt2_partition_imbalance", report=name):
        balance = ours.balances[each["times"]]
        scope = "imbalance" if each["scope"] == "all" else "topology_aware"
        mine = getattr(getattr(balance, scope), each["phase"])
        what = f"{each['times']} {each['phase']}, {each['scope']}".replace("_", " ")
        yield Field(name, "imbalance", what, each["fastest_over_slowest"], mine)


def _stage(name: str, i: int, stage: dict[Any, Any], ours: OurStages) -> Iterator[Field]:
    for times, balance in ours.balances.items():
        for phase in ("forward", "backward"):
            mine = 1e3 * getattr(balance.times, phase)[i]
            kind = f"{times} times".replace("_", " ")
            if times == "real" and i == len(ours.outputs) - 1:
                kind += ", last stage"
            yield Field(name, kind, f"stage {i + 1} {phase} ms", stage[f"{times}_{phase}_ms"], mine)
    traffic, outputs = ours.theoretical.traffic[i], ours.outputs[i]
    for what, mine in (
        ("input_mb", traffic.input_bytes / 1e6),
        ("receive_ms", 1e3 * traffic.receive_seconds),
        ("output_mb", sum(outputs) / 1e6),
        ("send_ms", 1e3 * max(outputs) / ours.theoretical.link_bytes_per_s),
    ):
        yield Field(name, "volumes", f"stage {i + 1} {what.replace('_', ' ')}", stage[what], mine)


def summary_sheet(found: Sequence[Field]) -> Sheet:
    """Per report and kind of figure, the median error."""
    frame = pd.DataFrame(found).assign(error=[each.error for each in found])
    errors: Any = frame.groupby(["report", "kind"], sort=False)["error"]
    return Sheet(
        title="How far ours are off",
        columns=("report", "figures", "predicted", "median |error|", "median error"),
        words=2,
        rows=tuple(
            (*keys, str(len(own)), f"{own.abs().median():.1%}", f"{own.median():+.1%}")
            for keys, own in errors
        ),
    )


def fields_sheet(found: Sequence[Field]) -> Sheet:
    return Sheet.of(
        found,
        [
            ("report", lambda it: it.report),
            ("figures", lambda it: it.kind),
            ("of", lambda it: it.what),
            ("published", lambda it: f"{it.published:,.4g}"),
            ("predicted", lambda it: f"{it.predicted:,.4g}"),
            ("error %", lambda it: f"{100 * it.error:+.0f}"),
        ],
        title="Every figure",
        words=3,
        command=COMMAND,
    )


def main(folder: Path) -> None:
    graph = trace_model(make_model("gpt2", MODEL), "sgd")
    found = [
        field
        for line in published_lines("gpt2_partition_reports")
        for field in fields(line, stages_of(graph, line["device"], line["partitions"]))
    ]
    sheets = {"summary": summary_sheet(found), "fields": fields_sheet(found)}
    save_page(folder / "gpt2_partitions.md", command=COMMAND, **sheets)


if __name__ == "__main__":
    write_pages(main, __doc__)
