"""How far predictions were off: peak and step time of each record beside what was said of it."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from memtrade.measure.records import Record, options_text, unusual_strategy_options
from memtrade.models import make_model
from memtrade.results.sheets import NONE, Sheet, cell
from memtrade.results.tables import AFTERWARDS
from memtrade.results.words import BESIDE, percent, plural
from memtrade.units import megabytes, parse_bytes


class Foretold(NamedTuple):
    """One trial that ran and had been predicted. Errors are shares of what was measured; those of
    times are None of trials that ran beside others."""

    step: str
    batch_size: int
    strategy: str
    onednn: bool | None
    peak_bytes: int
    predicted_peak_bytes: int
    peak_error: float
    seconds: float
    predicted_seconds: float | None
    time_error: float | None
    budget_bytes: int | None
    afterwards: bool

    @property
    def over(self) -> bool:
        """Whether the step took more than its budget."""
        return self.budget_bytes is not None and self.peak_bytes > self.budget_bytes


def accuracy(records: Sequence[Record]) -> list[Foretold]:
    """A row for each trial that ran and had been predicted."""
    found = [row for record in records if (row := _row(record))]
    return sorted(found, key=_rank)


def _rank(row: Foretold) -> tuple[object, ...]:
    """What a record does not say, as older ones do not of oneDNN, comes first."""
    return row.batch_size, len(row.step), *((value is not None, value) for value in row)


def _row(record: Record) -> Foretold | None:
    measured, predicted = record.measured, record.shown_prediction
    if measured is None or predicted is None:
        return None
    spec = record.spec
    seconds, foreseen = measured.median_seconds, predicted.step_seconds
    timed = foreseen is not None and record.jobs == 1
    budget = spec.strategy_options.get("budget")
    return Foretold(
        step=make_model(spec.model, spec.model_options).name,
        batch_size=int(spec.model_options["batch_size"]),
        strategy=f"{spec.strategy} {options_text(unusual_strategy_options(spec))}".strip(),
        onednn=record.runtime.onednn if record.runtime else None,
        peak_bytes=measured.peak_bytes,
        predicted_peak_bytes=predicted.peak_bytes,
        peak_error=predicted.peak_bytes / measured.peak_bytes - 1,
        seconds=seconds,
        predicted_seconds=foreseen,
        time_error=foreseen / seconds - 1 if timed and foreseen is not None else None,
        budget_bytes=parse_bytes(budget) if budget else None,
        afterwards=record.predicted_by is not None,
    )


def to_frame(rows: Sequence[Foretold]) -> pd.DataFrame:
    """All of it, in bytes, seconds and shares."""
    return pd.DataFrame(rows, columns=list(Foretold._fields))


def to_sheet(rows: Sequence[Foretold], *, command: str = "") -> Sheet:
    marks: list[str] = []
    if any(row.afterwards for row in rows):
        marks.append(f"{AFTERWARDS} predicted after the run, of a trial that had no prediction.")
    if any(row.time_error is None for row in rows):
        marks.append(f"{BESIDE} ran beside other trials: its time says nothing.")
    return Sheet.of(
        rows,
        [
            ("step", lambda row: row.step),
            ("batch", lambda row: str(row.batch_size)),
            ("strategy", lambda row: row.strategy),
            ("oneDNN", lambda row: {True: "on", False: "off", None: NONE}[row.onednn]),
            ("peak MB", lambda row: megabytes(row.peak_bytes)),
            (
                "predicted MB",
                lambda row: megabytes(row.predicted_peak_bytes) + AFTERWARDS * row.afterwards,
            ),
            ("error", lambda row: percent(row.peak_error) + "%"),
            ("step s", lambda row: f"{row.seconds:.3f}" + BESIDE * (row.time_error is None)),
            ("predicted s", lambda row: cell("{:.3f}".format, row.predicted_seconds)),
            ("error s", lambda row: cell(lambda error: f"{100 * error:+z.1f}%", row.time_error)),
        ],
        title="Predicted and measured",
        words=4,
        weak=lambda row: row.over,
        notes=(*summary(rows), *marks),
        command=command,
        frame=to_frame(rows),
    )


def summary(rows: Sequence[Foretold]) -> tuple[str, ...]:
    """One line each of peaks, times and budgets, where there are any."""
    peaks = [row.peak_error for row in rows]
    times = [row.time_error for row in rows if row.time_error is not None]
    budgets = [row for row in rows if row.budget_bytes is not None]
    lines = []
    if peaks:
        lines.append(f"Peaks of {_errors(peaks, 2)}; most below: {100 * min(*peaks, 0.0):.2f}%.")
    if times:
        lines.append(f"Times of {_errors(times, 1)}.")
    if budgets:
        over = sum(row.over for row in budgets)
        lines.append(f"Budgets: {len(budgets)}, of which {over} were exceeded.")
    return tuple(lines)


def _errors(errors: Sequence[float], digits: int) -> str:
    """The median and the largest, whatever their sign."""
    sizes = [abs(each) for each in errors]
    median, largest = (
        f"{100 * share:.{digits}f}%" for share in (statistics.median(sizes), max(sizes))
    )
    return f"{plural([len(sizes)], 'trial')}: error in the median {median}, largest {largest}"
