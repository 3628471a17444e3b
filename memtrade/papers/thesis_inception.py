"""What was tried about the thesis' figures that are missed: InceptionV4's, LMS's largest batch.

    python -m memtrade.papers.thesis_inception results/predicted

Writes thesis_inception.md into the folder. The net is traced by TensorFlow; nothing is run.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memtrade.costs import op_cost
from memtrade.facts.kernel import Fact, Facts, Request
from memtrade.graph import Op, StepGraph
from memtrade.papers.pages import save_page, write_pages
from memtrade.papers.thesis_predictor import (
    FITTED,
    Published,
    ThesisPredictor,
    actions_of,
    published,
)
from memtrade.papers.thesis_trace import step_at
from memtrade.results.sheets import Sheet
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import Target, profile_target
from memtrade.units import megabytes

COMMAND = "python -m memtrade.papers.thesis_inception results/predicted"
# Height and width of the filters that InceptionV4 has and the ResNets have not.
LONG_FILTERS = frozenset({(1, 7), (7, 1), (1, 3), (3, 1)})

# Of LMS's steps, up to the largest that is predicted to fit.
BATCHES = (87, 90, 93, 96, 111, 160, 221)


@dataclass(frozen=True)
class WithCopies:
    """Facts in which a convolution of images with channels last makes copies with channels first:
    of what it reads and of what it makes, as TensorFlow 1's kernels did on a GPU."""

    base: Facts

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def merges(self) -> bool:
        return self.base.merges

    def is_known(self, op_type: str) -> bool:
        return self.base.is_known(op_type)

    def of(self, op: Op, graph: StepGraph) -> Fact:
        fact = self.base.of(op, graph)
        moved = op_cost(op, graph).transposed_bytes  # each copy read and written
        return fact._replace(requests=(*fact.requests, Request(moved // 2))) if moved else fact


def long_seconds(row: Published, target: Target) -> float:
    """What the long filters of its step take."""
    graph, seconds = step_at(None, 32), target.op_seconds(step_at(None, 32))
    return sum(
        seconds[action.id]
        for action in actions_of(TimeSimulator(graph, target), row)
        if action.kind in ("run", "recompute") and is_long(graph.ops[action.id], graph)
    )


def is_long(op: Op, graph: StepGraph) -> bool:
    shapes = (graph.tensors[t].shape for t in (*op.inputs, *op.outputs))
    return op.type.startswith("Conv2D") and any(
        len(shape or ()) == 4 and tuple(shape or ())[:2] in LONG_FILTERS for shape in shapes
    )


def tried_sheet(target: Target) -> Sheet:
    """Times, with long filters so slow that `original` is right; peaks, with copies."""
    printed = [row for row in published() if row.table == "InceptionV4"]
    usual = ThesisPredictor(step_at, target).rows(printed)
    copied = ThesisPredictor(step_at, target.replace(facts=WithCopies(target.facts))).rows(printed)
    long = np.array([long_seconds(row, target) for row in printed])
    given, said = usual["published_seconds"], usual["predicted_seconds"]
    first = usual["strategy"] == "original"
    factor = 1 + float(((given - said) / long)[first].iloc[0])
    slowed = said + (factor - 1) * long
    peak, with_copies = usual["published_peak_mb"], copied["predicted_peak_mb"]
    columns = (
        (given, "{:.3f}"), (said, "{:.3f}"), (slowed, "{:.3f}"), (slowed / given - 1, "{:+.1%}"),
        (peak, "{:,.0f}"), (usual["predicted_peak_mb"], "{:,.0f}"), (with_copies, "{:,.0f}"),
        (with_copies / peak - 1, "{:+.1%}"),
    )  # fmt: skip
    rows = zip(usual["strategy"], *(each.map(text.format) for each, text in columns), strict=True)
    return Sheet(
        title="InceptionV4 at batch 32 on the thesis' card",
        columns=(
            "strategy", "s: published", "predicted", "long filters slower", "error",
            "MB: published", "predicted", "with copies", "error",
        ),
        rows=tuple(rows),
        notes=(
            "long filters slower: convolutions with 1x7, 7x1, 1x3 and 3x1 filters take "
            f"{factor:.1f} times what the profile says, which was fitted to original's time",
            "with copies: each convolution also holds its input and output with channels first",
        ),
        command=COMMAND,
    )  # fmt: skip


def waiting_sheet(target: Target) -> Sheet:
    """LMS on ResNet-50 by batch: how long the host waits for memory that copies still hold."""
    tables = (row for row in published() if row.table == "max batch")
    largest = next(row for row in tables if row.strategy == "lms")
    rows = []
    for batch in BATCHES:
        simulator = TimeSimulator(step_at(largest.layers, batch), target)
        timeline = simulator.timeline(actions_of(simulator, largest))
        rows.append(
            (
                str(batch),
                megabytes(timeline.memory.peak_bytes),
                f"{timeline.full_seconds:.3f}",
                f"{timeline.step_seconds:.3f}",
                "yes" if timeline.memory.out_of_memory is None else "no",
            )
        )
    return Sheet(
        title="LMS on ResNet-50: what waits for memory",
        columns=("batch", "peak MB", "s waited for memory", "step s", "fits"),
        rows=tuple(rows),
        notes=(
            f"published: a largest batch of {largest.batch_size}. The first row that waits is "
            "where the card is full: from there on, requests fit because copies out end",
        ),
        command=COMMAND,
    )


def main(folder: Path) -> None:
    target = profile_target(FITTED)
    sheets = {"tried": tried_sheet(target), "waiting": waiting_sheet(target)}
    save_page(folder / "thesis_inception.md", **sheets)


if __name__ == "__main__":
    write_pages(main, __doc__)
