"""Tables of records: strategies side by side, in the terminal, as Markdown and as CSV.

Records of the same model, sizes, optimizer, device and limit make one comparison. Ratios relate a
row to `original` in the same comparison; without one that ran, they are "-". A view only reads
records: nothing is measured again, and predicted figures stay out of these columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import pandas as pd
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from memtrade.results.records import (
    Record,
    options_text,
    to_frame,
    unusual_model_options,
    unusual_strategy_options,
)
from memtrade.strategies import STRATEGIES
from memtrade.units import megabytes

COLUMNS = (
    "strategy",
    "status",
    "peak MB",
    "memory cost MB",
    "host MB",
    "step s",
    "relative peak",
    "relative time",
    "kept / recomputed / swapped",
)
NONE = "-"
_REASON_LENGTH = 160

# Where TensorFlow ran out of memory: a trial has one device, and the title names it.
_PLACE = re.compile(r" on /job:\S+( by allocator \S+)?")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One record in a comparison; the ratios are None without an `original` that ran."""

    record: Record
    relative_peak: float | None
    relative_time: float | None

    def cells(self) -> tuple[str, ...]:
        """What `COLUMNS` say of it."""
        measured, plan = self.record.measured, self.record.plan
        figures = (NONE,) * 4
        if measured is not None:
            figures = (
                megabytes(measured.peak_bytes),
                megabytes(measured.memory_cost_bytes),
                megabytes(measured.host_bytes),
                seconds(measured.median_seconds),
            )
        return (
            strategy_label(self.record),
            status_text(self.record.status),
            *figures,
            ratio(self.relative_peak),
            ratio(self.relative_time),
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
    return [_comparison(group) for group in groups.values()]


def to_rich(comparison: Comparison, *, width: int = 100) -> Group:
    """For a terminal of `width` columns, 80 at least. Print it with a console without markup."""
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
    for position, name in enumerate(COLUMNS):
        words = position < 2
        header = re.sub(r" (?!/)", "\n", name)  # one word a line
        table.add_column(header, justify="left" if words else "right", overflow="fold")
    for row in comparison.rows:
        table.add_row(*row.cells(), style=None if row.record.status == "ok" else "yellow")
    return Group(table, "", *(Text(note) for note in comparison.notes))


def to_markdown(comparison: Comparison) -> str:
    """With its title, its notes, and the commands that made it."""
    lines = [
        f"**{comparison.title}**",
        "",
        _markdown_row(COLUMNS),
        _markdown_row("---" if position < 2 else "--:" for position in range(len(COLUMNS))),
        *(_markdown_row(row.cells()) for row in comparison.rows),
    ]
    for note in comparison.notes:
        lines += ["", note]
    commands = dict.fromkeys(row.record.command for row in comparison.rows if row.record.command)
    if commands:
        lines += ["", "Made by:", "", *(f"    {command}" for command in commands)]
    return "\n".join(lines) + "\n"


def to_csv(records: Sequence[Record]) -> str:
    """All columns of `to_frame`, in bytes and seconds, and the ratios."""
    rows = [row for comparison in compare(records) for row in comparison.rows]
    frame = to_frame([row.record for row in rows])
    place = int(frame.columns.get_loc("peak_bytes"))  # pyright: ignore[reportArgumentType]
    for name in ("relative_time", "relative_peak"):
        values = [getattr(row, name) for row in rows]
        frame.insert(place, name, pd.array(values, dtype="Float64"))
    return frame.to_csv(index=False, lineterminator="\n")


def strategy_label(record: Record) -> str:
    """The strategy with what is not the default: "lms (lb=3)", "ome (dataflow)"."""
    spec = record.spec
    words = [
        options_text(unusual_strategy_options(spec)),
        spec.order if spec.order != "pinned" else "",
        "saved plan" if spec.plan_path else "",
    ]
    inside = ", ".join(word for word in words if word)
    return f"{spec.strategy} ({inside})" if inside else spec.strategy


def status_text(status: str) -> str:
    return status.replace("_", " ")


def seconds(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3f}"


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _group_key(record: Record) -> bytes:
    spec = record.spec
    key = (
        record.model,
        spec.model_options,
        spec.optimizer,
        spec.device,
        spec.memory_limit_bytes,
    )
    return msgspec.json.encode(key, order="sorted")


def _comparison(records: Sequence[Record]) -> Comparison:
    registry = {name: position for position, name in enumerate(STRATEGIES)}
    ordered = sorted(
        records, key=lambda r: (registry.get(r.spec.strategy, len(registry)), r.created)
    )
    # The graph of `original` stays untouched, so the order of the others does not touch it.
    originals = [record for record in ordered if record.spec.strategy == "original"]
    measured = [record.measured for record in originals if record.measured is not None]
    reference = measured[-1] if measured else None
    rows = []
    for record in ordered:
        peak = time = None
        if record.measured is not None and reference is not None:
            peak = record.measured.peak_bytes / reference.peak_bytes
            time = record.measured.median_seconds / reference.median_seconds
        rows.append(Row(record=record, relative_peak=peak, relative_time=time))
    notes = [_conditions(ordered)]
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
    return Comparison(title=_title(ordered[0]), rows=tuple(rows), notes=tuple(notes))


def _title(record: Record) -> str:
    spec = record.spec
    size = spec.model_options.get("image_size")
    limit_bytes = spec.memory_limit_bytes
    limit = f" of {limit_bytes / (1 << 20):,.0f} MiB" if limit_bytes else ""
    parts = [
        record.model,
        f"batch {spec.model_options.get('batch_size', '?')}",
        f"{size} × {size} pixels" if size else "",
        options_text(unusual_model_options(spec)),
        spec.optimizer,
        f"{spec.device}{limit}",
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


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}"


def _shorten(reason: str) -> str:
    reason = " ".join(_PLACE.sub("", reason).split())
    return reason if len(reason) <= _REASON_LENGTH else reason[: _REASON_LENGTH - 1] + "…"


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
