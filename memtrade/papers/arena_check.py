"""The arena's predicted step times and peaks beside the measured ones, from the records.

    python -m memtrade.papers.arena_check results/measured results/predicted

Writes arena.csv and arena.md into the second folder. Nothing is run.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from memtrade.measure.records import Record, load_records
from memtrade.results.tables import strategy_label


class Row(NamedTuple):
    """One record. Errors are shares of what was measured."""

    model: str
    batch_size: int
    strategy: str
    measured_seconds: float
    predicted_seconds: float
    time_error: float
    measured_peak_mb: float
    predicted_peak_mb: float
    peak_error: float


def rows(records: Sequence[Record]) -> list[Row]:
    """The steps that ran alone, and had been predicted for the arena."""
    found = []
    for record in records:
        predicted, measured = record.shown_prediction, record.measured
        if not predicted or not measured or predicted.step_seconds is None:
            continue
        if predicted.device_profile != "arena" or record.jobs > 1:
            continue
        seconds = measured.median_seconds
        found.append(
            Row(
                record.model,
                int(record.spec.model_options["batch_size"]),
                strategy_label(record),
                round(seconds, 3),
                round(predicted.step_seconds, 3),
                round(predicted.step_seconds / seconds - 1, 4),
                round(measured.peak_bytes / 1e6, 2),
                round(predicted.peak_bytes / 1e6, 2),
                round(predicted.peak_bytes / measured.peak_bytes - 1, 5),
            )
        )
    return sorted(found, key=lambda row: (row.batch_size, len(row.model), row))


def markdown(found: Sequence[Row]) -> str:
    times = [abs(row.time_error) for row in found]
    peaks = [abs(row.peak_error) for row in found]
    lines = [
        "# The arena, predicted and measured",
        "",
        f"{len(found)} steps of `results/measured/`. Made by",
        "",
        "    python -m memtrade.papers.arena_check results/measured results/predicted",
        "",
        f"**Error of the times: median {100 * statistics.median(times):.1f}%, largest "
        f"{100 * max(times):.1f}%; of the peaks: median {100 * statistics.median(peaks):.2f}%, "
        f"largest {100 * max(peaks):.2f}%.**",
        "",
        "| model | batch | strategy | s: measured | predicted | error | MB: measured | predicted "
        "| error |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.model} | {row.batch_size} | {row.strategy} | {row.measured_seconds:.2f} | "
        f"{row.predicted_seconds:.2f} | {100 * row.time_error:+.1f}% | {row.measured_peak_mb:,.0f} "
        f"| {row.predicted_peak_mb:,.0f} | {100 * row.peak_error:+.2f}% |"
        for row in found
    ]
    return "\n".join(lines) + "\n"


def main(measured: Path, folder: Path) -> None:
    found = rows(load_records(measured))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "arena.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([Row._fields, *found])
    (folder / "arena.md").write_text(markdown(found), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
