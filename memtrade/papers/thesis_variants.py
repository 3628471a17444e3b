"""Which variants of its networks the thesis ran, worked out from what its log prints.

    python -m memtrade.papers.thesis_variants results/predicted

Each variant's training step is traced and put beside the log: memory between steps, memory cost of
`original`, what LMS says that it swaps and adds, and the checkpoints that OME names. Writes
thesis_variants.csv and thesis_variants.md into the folder. Takes two minutes.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from memtrade.graph import StepGraph
from memtrade.models.resnet import BLOCKS
from memtrade.options import Value
from memtrade.papers.executor import run_order, tasks_of
from memtrade.papers.pages import save_csv, save_page, write_pages
from memtrade.papers.published import published_lines
from memtrade.papers.thesis_nets import net_name
from memtrade.papers.thesis_predictor import CARD, plan_of
from memtrade.papers.thesis_trace import trace_step
from memtrade.plan import CHECKPOINT
from memtrade.results.sheets import NONE, Sheet
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import profile_target

BATCH = 32

# Scopes of tf-slim's that memtrade's names are without.
_SCOPES = frozenset({"InceptionV4", "Logits"})


def logged(layers: int | None) -> dict[str, Any]:
    """What the log prints of one network; sizes in MB (10^6 bytes)."""
    memory, steps = (
        published_lines(name, layers=layers, strategy="original")
        for name in ("thesis_log_memory", "thesis_log_steps")
    )
    [edits] = published_lines("thesis_log_lms_edits", layers=layers)
    return {
        "persistent_mb": next(line["mem_used_mb"] for line in memory if line["line"] > 0),
        "cost_mb": steps[0]["memory_cost_mb"] if steps else float("nan"),
        "tensors": edits["tensors_swapped"],
        "ops": edits["ops_added"],
    }


def cost_mb(graph: StepGraph) -> float:
    """Of `original`, simulated on the card in the executor's order."""
    simulator = TimeSimulator(graph, profile_target(CARD, order="dataflow"))
    memory = simulator.needed(run_order(simulator, tasks_of(graph, ())))
    return (memory.peak_bytes - memory.persistent_bytes) / 1e6


def by_lms(graph: StepGraph) -> tuple[int, int]:
    """Tensors swapped, ops added."""
    plan = plan_of(graph, "lms", None)
    copies = [a for a in plan.actions if a.kind in ("swap_out", "swap_in")]
    return len(plan.tensors("swap")), len(copies)


def products(graph: StepGraph) -> int:
    """Large products with a constant: in TensorFlow 1 the unused gradient of the constant reads the
    other factor, so there LMS takes that, too."""
    return sum(
        op.type == "Mul" and graph.ops[graph.tensors[op.inputs[0]].op].type == "Conv2D"
        for op in (graph.ops[i] for i in graph.forward)
    )


def checkpoints(graph: StepGraph) -> dict[str, str]:
    """Place in the network -> "keep" or "swap"."""
    return {
        place(graph.label(fate.tensor)): fate.decision
        for fate in plan_of(graph, "ome", None).fates
        if fate.reason.startswith(CHECKPOINT)
    }


def place(tensor: str) -> str:
    """A tensor's name without scopes that only tf-slim has.

    >>> place("InceptionV4/InceptionV4/Mixed_5d/concat:0")
    'Mixed_5d/concat'
    """
    names = re.sub(r":0$", "", tensor).replace("PreLogitsFlatten/flatten", "PreLogitsFlatten")
    return "/".join(name for name in names.split("/") if name not in _SCOPES)


def printed_checkpoints() -> dict[str, str]:
    lines = published_lines("thesis_log_ome_tensors")
    return {place(line["tensor"]): line["action"] for line in lines}


AUXILIARY = "inference, auxiliary"
INCEPTIONS: dict[str, dict[str, Value]] = {
    "training": {"batch_norm": "training"},
    "training, auxiliary": {"batch_norm": "training", "auxiliary": True},
    "inference": {},
    "inference, mean in one op": {"head": "mean"},
    AUXILIARY: {"auxiliary": True},
}
# Drawn as tf-slim does when asked, but without a part in the loss.
UNTRAINED = "inference, auxiliary without a loss"


def row_of(
    variant: str, graph: StepGraph, layers: int | None, untrained_bytes: int = 0
) -> dict[str, Any]:
    """One variant beside the log. `..._over`: the log's figure over the variant's.

    Args:
        untrained_bytes: of weights that are drawn besides and have no part in the loss, nor slots.
    """
    log, cost, (tensors, ops) = logged(layers), cost_mb(graph), by_lms(graph)
    # Weights, their slots, averages: side by side, without what an allocator adds.
    persistent = (sum(graph.data.capture_bytes) + untrained_bytes) / 1e6
    return {
        "variant": variant,
        "persistent_mb": persistent, "persistent_over": log["persistent_mb"] / persistent,
        "cost_mb": cost, "cost_over": log["cost_mb"] / cost,
        "tensors": tensors, "logged_tensors": log["tensors"],
        "ops": ops, "logged_ops": log["ops"],
        "products": products(graph),
    }  # fmt: skip


def inceptions() -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The rows of InceptionV4's variants, and the checkpoints of each."""
    made = {name: trace_step(None, BATCH, **options) for name, options in INCEPTIONS.items()}
    plain, trained = (sum(made[n].data.capture_bytes) for n in ("inference", AUXILIARY))
    rows = [row_of(name, graph, None) for name, graph in made.items()]
    rows.append(row_of(UNTRAINED, made["inference"], None, (trained - plain) // 3))
    return rows, [checkpoints(graph) for graph in (*made.values(), made["inference"])]


def met(row: Any, found: dict[str, str], resnets: pd.DataFrame) -> dict[str, bool]:
    """Which evidence a variant of InceptionV4 meets. Ratios have to lie where those of the ResNets
    lie, which are known to be what the thesis ran; counts have to be equal."""

    def within(name: str) -> bool:
        return resnets[name].min() <= row[name] <= resnets[name].max()

    printed = printed_checkpoints()
    return {
        "memory between steps": within("persistent_over"),
        "memory cost": within("cost_over"),
        "LMS's tensors": row["tensors"] == row["logged_tensors"],
        "with unused gradients": row["tensors"] + row["products"] == row["logged_tensors"],
        "LMS's ops": row["ops"] == row["logged_ops"],
        "the 12 checkpoints": found.keys() == printed.keys(),
        "which are swapped": all(found.get(name) == how for name, how in printed.items()),
    }


def networks_sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    def over(value: float) -> str:
        return NONE if math.isnan(value) else f"{value:.3f}"

    return Sheet.of(
        rows,
        [
            ("network", lambda it: it["variant"]),
            ("between steps MB", lambda it: f"{it['persistent_mb']:,.1f}"),
            ("log over it", lambda it: over(it["persistent_over"])),
            ("cost MB", lambda it: f"{it['cost_mb']:,.1f}"),
            ("log over it", lambda it: over(it["cost_over"])),
            ("LMS: tensors", lambda it: str(it["tensors"])),
            ("in the log", lambda it: str(it["logged_tensors"])),
            ("ops", lambda it: str(it["ops"])),
            ("in the log", lambda it: str(it["logged_ops"])),
        ],
        title="Variants of its networks beside what its log prints",
        notes=(
            "between steps: weights, two slots each and averages, without what an allocator adds",
            f"cost: of `original` at batch {BATCH}, simulated on the GTX 1070 in the executor's "
            "order",
            "LMS: what `lms --option rule=tflms` swaps, and the copies that it adds",
        ),
    )


def met_sheet(
    resnets: pd.DataFrame, variants: Sequence[dict[str, Any]], places: Sequence[dict[str, str]]
) -> Sheet:
    """`places`: the checkpoints of each variant."""
    printed = printed_checkpoints()
    names, rows = [], []
    for row, found in zip(variants, places, strict=True):
        told = met(row, found, resnets)
        names = list(told)
        missing = [name for name in printed if name not in found]
        there = f"all but {', '.join(missing)}" if 0 < len(missing) < 4 else ""
        there = there or f"{len(printed) - len(missing)} of {len(printed)}"
        others = [name for name in found if name not in printed]
        cells = ["yes" if yes else "no" for yes in told.values()]
        count = f"{sum(told.values())} of {len(told)}"
        rows.append((row["variant"], *cells, there, ", ".join(others) or NONE, count))
    return Sheet(
        title="InceptionV4: what each variant meets",
        columns=("variant", *names, "checkpoints found", "not in the log", "met"),
        words=len(names) + 3,
        rows=tuple(rows),
        notes=(
            "a ratio is met where it lies within those of the six ResNets, a count where it is "
            "equal",
            "with unused gradients: the log's tensors are those of LMS and one more for each "
            "convolution that a constant multiplies, which in TensorFlow 1 the constant's gradient "
            f"reads although nothing needs it. The log names {len(printed)} checkpoints",
        ),
        command="python -m memtrade.papers.thesis_variants results/predicted",
    )


def main(folder: Path) -> None:
    resnets = [row_of(net_name(n), trace_step(n, BATCH), n) for n in BLOCKS]
    variants, places = inceptions()
    rows = [*resnets, *variants]
    save_csv(folder / "thesis_variants.csv", pd.DataFrame(rows), "%.5g")
    told = met_sheet(pd.DataFrame(resnets), variants, places)
    save_page(folder / "thesis_variants.md", networks=networks_sheet(rows), met=told)


if __name__ == "__main__":
    write_pages(main, __doc__)
