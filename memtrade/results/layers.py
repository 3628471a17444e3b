"""`memtrade summary`: bytes per layer, as a sheet and as a frame."""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import pandas as pd

from memtrade.collection import without_collection
from memtrade.errors import BEFORE_ANY_OP
from memtrade.graph import StepGraph
from memtrade.plan import Plan
from memtrade.results.sheets import NONE, Sheet
from memtrade.results.words import elided, op_text
from memtrade.simulate.by_layer import By, LayerRow, by_layer
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import use_of_memory
from memtrade.target import Target
from memtrade.units import kilobytes, megabytes

BYTES = ("weight_bytes", "slot_bytes", "activation_bytes", "scratch_bytes", "peak_bytes")
_COLUMNS = ("weights", "slots", "activations", "scratch", "at the peak")

# Beside its name, a row of sizes takes so many characters; names are given at least the others.
_SIZES_WIDTH, _NAME_WIDTH = 46, 26

# The layers of a step that peaks below this are told in KB.
_SMALL_BYTES = 10_000_000

# Marks the layer whose op runs when most memory is in use.
PEAK = "◄"
REST = "batch, constants, padding"


@dataclass(frozen=True, kw_only=True)
class LayerSummary:
    """A step's memory by layer, or by line of the program; predicted, not measured.

    Attributes:
        by: what a row is.
        rows: in the order of the forward part; what belongs to none comes last.
        bound: what stands before the peak; see `memtrade.bounds.bound_of`.
        peak_bytes: most in use at once. persistent_bytes: in use between steps.
        first_bytes: most in use before the first op, if no run takes more; else 0.
        peak_op: who runs when most is in use; peak_layer: its layer or line.
        limit_bytes: of the device. fits: whether the step runs there.
    """

    step: str
    device: str
    by: By
    rows: tuple[LayerRow, ...]
    peak_bytes: int
    persistent_bytes: int
    peak_op: str
    peak_layer: str
    limit_bytes: int
    fits: bool
    bound: str = ""
    first_bytes: int = 0

    def frame(self) -> pd.DataFrame:
        """A row per layer, sizes in bytes."""
        return pd.DataFrame([asdict(row) for row in self.rows])

    def sheet(
        self, top: int | None = None, *, width: int | None = None, command: str = ""
    ) -> Sheet:
        """As a table.

        Args:
            top: only so many layers, those that hold most at the peak.
            width: of the terminal, in characters: longer names are shortened.
        """
        rows = self.rows
        if top is not None:
            named = sorted(range(len(rows)), key=lambda i: -rows[i].peak_bytes)[:top]
            rows = tuple(rows[i] for i in sorted(named))
        lines = {row.source for row in rows if row.source}
        shows_lines = self.by == "layer" and len(lines) > 1
        most = max(width - _SIZES_WIDTH, _NAME_WIDTH) if width else sys.maxsize
        columns = {self.by: [_name(row, most) for row in rows]}
        if shows_lines:
            columns["line"] = [row.source for row in rows]
        columns["output"] = ["×".join(map(str, row.output or ())) for row in rows]
        words = zip(*columns.values(), strict=True)
        small = max(self.peak_bytes, self.first_bytes) < _SMALL_BYTES
        unit, sized = ("KB", kilobytes) if small else ("MB", megabytes)
        shown = [(*said, *_sizes(row, sized)) for said, row in zip(words, rows, strict=True)]
        left_out = len(self.rows) - len(rows)
        total = (f"all {len(self.rows)}", *[""] * (len(columns) - 1))
        # The scratch of two kernels is not there at once.
        sums = [sum(getattr(row, name) for row in self.rows) for name in BYTES]
        cells = [sized(size) for size in sums]
        cells[BYTES.index("scratch_bytes")] = NONE
        shown.append((*total, *cells))
        where = f" in {self.peak_layer}" if self.peak_layer else ""
        marked = f" ({PEAK})" if any(row.at_peak for row in rows) else ""
        notes = [
            f"Peak {sized(self.peak_bytes, self.bound)} {unit}, predicted for {self.device}, when "
            f"{op_text(self.peak_op)}{where} runs{marked}; "
            f"{sized(self.persistent_bytes)} {unit} between steps."
        ]
        if self.first_bytes:
            notes.append(f"The first run takes {sized(self.first_bytes)} {unit}: {BEFORE_ANY_OP}.")
        if left_out:
            notes.append(f"{left_out} more are in the sums.")
        if not self.fits:
            notes.append(
                f"It does not fit: the device has {megabytes(self.limit_bytes)} MB. "
                "`memtrade predict` compares plans that may."
            )
        return Sheet(
            title=f"{self.step}: memory by {self.by}, in {unit}",
            columns=(*columns, *_COLUMNS),
            words=len(columns),
            expendable=tuple(columns)[:0:-1],
            rows=tuple(shown),
            notes=tuple(notes),
            command=command,
            frame=self.frame().assign(step=self.step),
        )


@without_collection()
def summarize(
    step: str, graph: StepGraph, target: Target, plan: Plan | None = None, by: By = "layer"
) -> LayerSummary:
    """Simulates a step, as it came or by a plan, and says who holds what."""
    clock = TimeSimulator(graph, target)
    usage = use_of_memory(clock, plan or ())
    rows = by_layer(graph, clock.simulator.linker, usage, by)
    memory = usage.timeline.memory
    running = usage.moments[usage.peak].action
    return LayerSummary(
        step=step,
        device=target.name,
        by=by,
        rows=rows,
        peak_bytes=usage.peak_bytes,
        persistent_bytes=usage.persistent_bytes,
        peak_op=clock.simulator.action_name(usage.actions, running),
        peak_layer=next((row.name for row in rows if row.at_peak), ""),
        limit_bytes=target.limit_bytes,
        fits=usage.fits,
        bound=memory.bound(graph, plan),
        first_bytes=0 if memory.peak_op else memory.peak_bytes,
    )


def _name(row: LayerRow, most: int) -> str:
    mark = f" {PEAK}" if row.at_peak else ""
    return elided(row.name or REST, most - len(mark)) + mark


def _sizes(row: LayerRow, sized: Callable[[int], str]) -> tuple[str, ...]:
    sizes = (getattr(row, name) for name in BYTES)
    return tuple(sized(size) if size else NONE for size in sizes)
