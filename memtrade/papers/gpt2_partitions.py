"""The published partitions of GPT-2 beside ours of the same net for the same cards, field by field.

    python -m memtrade.papers.gpt2_partitions results/predicted

Writes gpt2_partitions.md into the folder. The net is traced by TensorFlow; nothing is run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memtrade.graph import StepGraph
from memtrade.models import make_model
from memtrade.papers.fused import Fusion
from memtrade.papers.pages import save_page, trace_model, write_pages
from memtrade.papers.published import load_published
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.report import Evenness, PartitionReport, analyse
from memtrade.results.sheets import NONE, Sheet
from memtrade.target import profile_target

COMMAND = "python -m memtrade.papers.gpt2_partitions results/predicted"
# The reports' last stages receive nothing as large as a shared matrix, so it is not tied.
MODEL = {"batch_size": 1, "positions": 1024, "vocabulary": 50257, "tied": False}
SLACK = 0.1
CARDS = {"GTX 1070": "gtx-1070", "GTX 1080 Ti": "gtx-1080-ti"}


class Field(NamedTuple):
    """One printed figure of a report beside ours; None where we have none."""

    report: str
    kind: str
    what: str
    published: float
    predicted: float | None

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else self.predicted / self.published - 1


def report_of(graph: StepGraph, card: str, partitions: int) -> PartitionReport:
    """Ours, for that card, with fused kernels; volumes by the largest tensor, as the published."""
    target, fusion = profile_target(CARDS[card]), Fusion(graph)
    made = Partitioner(graph).by_time(partitions, target, slack=SLACK, costs=fusion.costs)
    link = target.device.device_to_host_bytes_per_s
    return analyse(
        graph,
        made,
        target,
        link_bytes_per_s=link,
        volumes="largest",
        seconds=fusion.seconds(target.device),
    )


def fields(line: dict[Any, Any], ours: PartitionReport) -> Iterator[Field]:
    """All that a published report prints."""
    name = line["report"]
    yield Field(name, "edges", "cutting edges", int(line["cutting_edges"]), ours.cutting_edges)
    theirs = load_published("gpt2_partition_stages")
    stages: Any = theirs[theirs["report"] == name]
    for stage in stages.to_dict("records"):
        i = int(stage["partition"])
        yield from _stage(name, i, stage, ours)
    even = load_published("gpt2_partition_imbalance")
    ratios: Any = even[even["report"] == name]
    for each in ratios.to_dict("records"):
        balance = _balances(ours).get(each["times"])
        scope = "imbalance" if each["scope"] == "all" else "topology_aware"
        mine = None if balance is None else getattr(getattr(balance, scope), each["phase"])
        what = f"{each['times']} {each['phase']}, {each['scope']}".replace("_", " ")
        yield Field(name, "imbalance", what, each["fastest_over_slowest"], mine)


def _balances(ours: PartitionReport) -> dict[str, Evenness]:
    return {"theoretical_sequential": ours.sequential, "theoretical_parallel": ours.parallel}


def _stage(name: str, i: int, stage: dict[Any, Any], ours: PartitionReport) -> Iterator[Field]:
    for times, balance in [*_balances(ours).items(), ("real", None)]:
        for phase in ("forward", "backward"):
            mine = None if balance is None else 1e3 * getattr(balance.times, phase)[i]
            kind = f"{times} times".replace("_", " ")
            yield Field(name, kind, f"stage {i} {phase} ms", stage[f"{times}_{phase}_ms"], mine)
    traffic = ours.traffic[i]
    for what, mine in (
        ("input_mb", traffic.input_bytes / 1e6),
        ("receive_ms", 1e3 * traffic.receive_seconds),
        ("output_mb", traffic.output_bytes / 1e6),
        ("send_ms", 1e3 * traffic.send_seconds),
    ):
        yield Field(name, "volumes", f"stage {i} {what.replace('_', ' ')}", stage[what], mine)


def summary_sheet(found: Sequence[Field]) -> Sheet:
    """Per report and kind of figure, the median error."""
    rows = []
    for report, kind in dict.fromkeys((each.report, each.kind) for each in found):
        errors = [
            each.error
            for each in found
            if (each.report, each.kind) == (report, kind) and each.error is not None
        ]
        sizes = [abs(error) for error in errors]
        told = (
            (f"{statistics.median(sizes):.1%}", f"{statistics.median(errors):+.1%}")
            if errors
            else (NONE, NONE)
        )
        rows.append((report, kind, str(len(errors)), *told))
    stages = load_published("gpt2_partition_stages")
    over: Any = stages["real_forward_ms"] / stages["theoretical_sequential_forward_ms"]
    return Sheet(
        title="How far ours are off",
        columns=("report", "figures", "predicted", "median |error|", "median error"),
        words=2,
        rows=tuple(rows),
        notes=(
            "published cuts lie within blocks, ours between them: more edges and volume there; the "
            "last stage's output is the logits there, the loss here",
            f"published real times are {over.min():.2f} to {over.max():.2f} times the theoretical "
            "ones beside them, forward; why, the reports do not say",
        ),
    )


def fields_sheet(found: Sequence[Field]) -> Sheet:
    rows = tuple(
        (
            each.report,
            each.kind,
            each.what,
            f"{each.published:,.4g}",
            NONE if each.predicted is None else f"{each.predicted:,.4g}",
            NONE if each.error is None else f"{100 * each.error:+.0f}",
        )
        for each in found
    )
    columns = ("report", "figures", "of", "published", "predicted", "error %")
    return Sheet(title="Every figure", columns=columns, words=3, rows=rows, command=COMMAND)


def main(folder: Path) -> None:
    graph = trace_model(make_model("gpt2", MODEL), "sgd")
    found = [
        field
        for line in load_published("gpt2_partition_reports").to_dict("records")
        for field in fields(line, report_of(graph, line["device"], int(line["partitions"])))
    ]
    page = (_INTRODUCTION, summary_sheet(found), fields_sheet(found))
    save_page(folder / "gpt2_partitions.md", *page)


_INTRODUCTION = f"""# Partitions of GPT-2: predicted beside published

GPT-2 with 1,024 positions and 50,257 words at batch 1, in 2 and 4 stages. Made by

    {COMMAND}

Theoretical times are sums of op times (parallel: the longest path), predicted by the profiles
gtx-1070 and gtx-1080-ti, in which nothing was fitted to these reports, with chains of elementwise
ops as one kernel each. Real times are of their machines: nothing of ours stands beside them.
"""


if __name__ == "__main__":
    write_pages(main, __doc__)
