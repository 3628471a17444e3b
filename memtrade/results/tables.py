"""Tables of records: strategies side by side, in the terminal, as Markdown and as CSV.

Records of the same model, sizes, optimizer, device, limit and machine make one comparison. Ratios
relate a row to `original` in the same comparison; without one that ran, they are "-". A view only
reads records: nothing is measured again. What was predicted has columns of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import pandas as pd
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import (
    Record,
    options_text,
    to_frame,
    unusual_model_options,
    unusual_strategy_options,
)
from memtrade.models import make_model
from memtrade.results.machines import hardware, machine_labels, unlike
from memtrade.results.sheets import NONE, markdown_row
from memtrade.strategies import STRATEGIES
from memtrade.units import megabytes

PREDICTED = "predicted peak MB"
ERROR = "error %"
COLUMNS: tuple[str, ...] = (
    "strategy",
    "status",
    "peak MB",
    PREDICTED,
    ERROR,
    "memory cost MB",
    "host MB",
    "step s",
    "relative peak",
    "relative time",
    "kept / recomputed / swapped",
)
_REASON_LENGTH = 160

# Stands behind a time that was measured beside other trials, and behind a ratio to or of such.
BESIDE = "†"

# What a narrow terminal leaves out, in this order, until the rest fits; CSV has everything.
_EXPENDABLE = ("kept / recomputed / swapped", "relative peak", "host MB", ERROR, PREDICTED)

# Where TensorFlow ran out of memory: a trial has one device, and the title names it.
_PLACE = re.compile(r" on /job:\S+( by allocator \S+)?")

# Marks a prediction that was made after the run, of a trial that there was none of before.
AFTERWARDS = "‡"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One record in a comparison; the ratios are None without an `original` that ran.

    `original_jobs`: how many trials ran at a time when it did.
    """

    record: Record
    relative_peak: float | None
    relative_time: float | None
    original_jobs: int = 1

    def cells(self) -> tuple[str, ...]:
        """What `COLUMNS` say of it."""
        measured, plan = self.record.measured, self.record.plan
        predicted = self.record.shown_prediction
        foreseen = predicted.peak_text if predicted else NONE
        foreseen += AFTERWARDS if self.record.predicted_by else ""
        figures = (NONE, foreseen, *(NONE,) * 4)
        if measured is not None:
            error = self.record.peak_error
            figures = (
                megabytes(measured.peak_bytes),
                foreseen,
                NONE if error is None else percent(error),
                megabytes(measured.memory_cost_bytes),
                megabytes(measured.host_bytes),
                beside(seconds(measured.median_seconds), self.record.jobs),
            )
        return (
            strategy_label(self.record),
            status_text(self.record.status),
            *figures,
            ratio(self.relative_peak),
            beside(ratio(self.relative_time), max(self.record.jobs, self.original_jobs)),
            f"{plan.kept} / {plan.recomputed} / {plan.swapped}" if plan else NONE,
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Strategies on the same step. `notes` explain what the cells leave open."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def compare(records: Sequence[Record]) -> list[Comparison]:
    """The comparisons in `records`, in the order in which they first appear."""
    groups: dict[bytes, list[Record]] = {}
    for record in records:
        groups.setdefault(_group_key(record), []).append(record)
    machines = machine_labels(record.machine for record in records)
    comparisons = []
    for group in groups.values():
        place = machines[hardware(group[0].machine)] if len(machines) > 1 else ""
        comparisons.append(_comparison(group, place))
    return comparisons


def to_rich(comparison: Comparison, *, width: int = 100) -> Group:
    """For a terminal of `width` columns, 80 at least. Print it with a console without markup."""
    names, missing = _that_fit([row.cells() for row in comparison.rows], width)
    gap = 1 if width >= 90 else 0  # beyond the one column between any two
    table = Table(
        title=comparison.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, gap, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for name in names:
        words = name in COLUMNS[:2]
        table.add_column(_header(name), justify="left" if words else "right", overflow="fold")
    for row in comparison.rows:
        cells = dict(zip(COLUMNS, row.cells(), strict=True))
        style = None if row.record.status == "ok" else "yellow"
        table.add_row(*(cells[name] for name in names), style=style)
    notes = list(comparison.notes)
    if missing:
        notes.append(f"a wider terminal also shows: {', '.join(missing)}")
    return Group(table, "", *(Text(note) for note in notes))


def _header(name: str) -> str:
    """One word a line."""
    return re.sub(r" (?!/)", "\n", name)


def _that_fit(rows: Sequence[Sequence[str]], width: int) -> tuple[list[str], list[str]]:
    """The columns that fit in `width`, with one space between them, and those that do not."""

    def needed(name: str) -> int:
        lines = [*_header(name).split("\n"), *(row[COLUMNS.index(name)] for row in rows)]
        return 1 + max(map(len, lines))

    names, missing = list(COLUMNS), []
    for name in _EXPENDABLE:
        if sum(map(needed, names)) - 1 <= width:
            break
        names.remove(name)
        missing.append(name)
    return names, missing


def to_markdown(comparison: Comparison) -> str:
    """With its title, its notes, and the commands that made it."""
    lines = [
        f"**{comparison.title}**",
        "",
        markdown_row(COLUMNS),
        markdown_row("---" if position < 2 else "--:" for position in range(len(COLUMNS))),
        *(markdown_row(row.cells()) for row in comparison.rows),
    ]
    for note in comparison.notes:
        lines += ["", note]
    commands = dict.fromkeys(row.record.command for row in comparison.rows if row.record.command)
    if commands:
        lines += ["", "Made by:", "", *(f"    {command}" for command in commands)]
    return "\n".join(lines) + "\n"


def to_csv(records: Sequence[Record]) -> str:
    """All columns of `to_frame`, in bytes and seconds, the ratios and the prediction's error."""
    rows = [row for comparison in compare(records) for row in comparison.rows]
    frame = to_frame([row.record for row in rows])
    place = int(frame.columns.get_loc("peak_bytes"))  # pyright: ignore[reportArgumentType]
    for name in ("relative_time", "relative_peak"):
        values = [getattr(row, name) for row in rows]
        frame.insert(place, name, pd.array(values, dtype="Float64"))
    errors = pd.array([row.record.peak_error for row in rows], dtype="Float64")
    after = int(frame.columns.get_loc("predicted_peak_bytes")) + 1  # pyright: ignore[reportArgumentType]
    frame.insert(after, "predicted_peak_error", errors)
    return frame.to_csv(index=False, lineterminator="\n")


def strategy_label(record: Record) -> str:
    """The strategy with what is not the default: "lms (lb=3)", "ome (dataflow)"."""
    return spec_label(record.spec)


def spec_label(spec: TrialSpec) -> str:
    """The same of a trial that has not run."""
    words = [
        options_text(unusual_strategy_options(spec)),
        spec.order if spec.order != "pinned" else "",
        "saved plan" if spec.plan_path else "",
    ]
    inside = ", ".join(word for word in words if word)
    return f"{spec.strategy} ({inside})" if inside else spec.strategy


def status_text(status: str) -> str:
    return status.replace("_", " ")


def number(value: float | None) -> str:
    return "no number" if value is None else f"{value:.3g}"


def seconds(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3f}"


def percent(share: float) -> str:
    """Signed, without the sign of the unit; what rounds to nothing is +0.00."""
    return f"{round(100 * share, 2) + 0.0:+.2f}"


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def beside(cell: str, jobs: int) -> str:
    """The cell of a time, marked if so many trials ran at a time that it compares to no other.

    >>> beside("2.32", jobs=1), beside("4.10", jobs=2), beside(NONE, jobs=2)
    ('2.32', '4.10†', '-')
    """
    return cell + BESIDE if jobs > 1 and cell != NONE else cell


def beside_note(jobs: int) -> str:
    """What the mark says, where up to so many trials ran at a time."""
    return (
        f"{BESIDE} measured beside other trials, up to {jobs} at a time, which slow each other "
        "down: compare no times with it; memtrade sweep --retry parallel measures it alone"
    )


def _group_key(record: Record) -> bytes:
    spec = record.spec
    key = (
        record.model,
        # Older records are without options that came later, and had their defaults.
        dataclasses.asdict(make_model(spec.model, spec.model_options)),
        spec.optimizer,
        spec.device,
        spec.memory_limit_bytes,
        hardware(record.machine),
    )
    return msgspec.json.encode(key, order="sorted")


def _comparison(records: Sequence[Record], place: str = "") -> Comparison:
    """`place` names the machine where the tables are of several."""
    registry = {name: position for position, name in enumerate(STRATEGIES)}
    ordered = sorted(
        records, key=lambda r: (registry.get(r.spec.strategy, len(registry)), r.created)
    )
    # The graph of `original` stays untouched, so the order of the others does not touch it.
    originals = [record for record in ordered if record.spec.strategy == "original"]
    ran = [(record.measured, record.jobs) for record in originals if record.measured is not None]
    reference, reference_jobs = ran[-1] if ran else (None, 1)
    rows = []
    for record in ordered:
        peak = time = None
        if record.measured is not None and reference is not None:
            peak = record.measured.peak_bytes / reference.peak_bytes
            time = record.measured.median_seconds / reference.median_seconds
        rows.append(
            Row(
                record=record,
                relative_peak=peak,
                relative_time=time,
                original_jobs=reference_jobs,
            )
        )
    notes = [_conditions(ordered)]
    if (jobs := max(record.jobs for record in ordered)) > 1:
        notes.append(beside_note(jobs))
    if differing := unlike(ordered):
        said = "; ".join(f"{name}: {values}" for name, values in differing.items())
        notes.append(f"not all ran under the same conditions: {said}")
    if any(record.shown_prediction for record in ordered):
        notes.append(_prediction(ordered))
    if reference is None:
        why = (
            f"original: {status_text(originals[-1].status)}"
            if originals
            else "original is not among these trials"
        )
        notes.append(f"{why}, so there is nothing to relate the others to")
    notes += [
        f"{strategy_label(r)}: {status_text(r.status)}: {_shorten(r.reason)}"
        for r in ordered
        if r.status != "ok"
    ]
    title = ", ".join(part for part in (_title(ordered[0]), place) if part)
    return Comparison(title=title, rows=tuple(rows), notes=tuple(notes))


def _title(record: Record) -> str:
    spec = record.spec
    limit_bytes = spec.memory_limit_bytes
    limit = f" of {limit_bytes / (1 << 20):,.0f} MiB" if limit_bytes else ""
    return f"{step_text(spec)}, {spec.device}{limit}"


def step_text(spec: TrialSpec) -> str:
    """The step: "resnet-50, batch 32, 224 × 224 pixels, sgd", as far as it is decided."""
    batch, size = (spec.model_options.get(name) for name in ("batch_size", "image_size"))
    parts = [
        make_model(spec.model, spec.model_options).name,
        f"batch {batch}" if batch else "",
        f"{size} × {size} pixels" if size else "",
        options_text(unusual_model_options(spec)),
        spec.optimizer,
    ]
    return ", ".join(part for part in parts if part)


def _conditions(records: Sequence[Record]) -> str:
    """Where and how the figures were measured; the newest record speaks for all."""
    machine, spec = records[-1].machine, records[-1].spec
    versions = sorted({str(record.machine.tensorflow_version) for record in records})
    return (
        f"step s: median of {_range(r.spec.steps for r in records)} steps after "
        f"{spec.warmup} of warm-up; {machine.cpu_model}, {machine.cores} cores, "
        f"TensorFlow {', '.join(versions)}"
    )


def _prediction(records: Sequence[Record]) -> str:
    """What the predicted column says, and of the peaks that do not fit, which those are."""
    note = (
        f"{PREDICTED}: by the simulator, before the step ran; "
        f"{ERROR}: predicted less measured peak, of the measured one"
    )
    afterwards = sorted({record.predicted_by for record in records if record.predicted_by})
    if afterwards:
        note += f"; {AFTERWARDS}: after the step ran, by memtrade {', '.join(afterwards)}"
    shown = [(r, r.shown_prediction) for r in records]
    unfit = [strategy_label(r) for r, said in shown if said and not said.fits]
    if unfit:
        note += f"; what it would take, beyond the limit: {', '.join(unfit)}"
    return note


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}"


def _shorten(reason: str) -> str:
    reason = " ".join(_PLACE.sub("", reason).split())
    return reason if len(reason) <= _REASON_LENGTH else reason[: _REASON_LENGTH - 1] + "…"
