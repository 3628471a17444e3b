"""Searches for the largest batch, a row each: for the terminal, and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from memtrade.measure.max_batch_records import MaxBatchRecord
from memtrade.measure.protocol import Measured
from memtrade.measure.records import Record
from memtrade.results.sheets import Sheet, cell
from memtrade.results.words import device_label, ratio, seconds, step_text, strategy_label
from memtrade.units import megabytes

SearchAndBest = tuple[MaxBatchRecord, Measured | None]


def searches_sheet(searches: Sequence[MaxBatchRecord], trials: Sequence[Record]) -> Sheet:
    """Searches on one step and device, side by side. `trials` holds the records of their trials."""
    measured = {record.id: record.measured for record in trials}
    found: list[SearchAndBest] = [(each, measured.get(each.best_trial or "")) for each in searches]
    original = next((s.batch_size for s in searches if s.spec.strategy == "original"), 0)
    first = searches[0]
    notes = [
        "largest batch and fails at: by trials"
        + (f", multiples of {first.step}" if first.step > 1 else "")
        + "; predicted batch: by the simulator, before them; peak MB, host MB, step s, examples/s: "
        "measured at the largest batch",
        f"{first.machine.cpu_model}, {first.machine.cores} cores, "
        f"TensorFlow {first.machine.tensorflow_version}",
        *(
            f"{strategy_label(s.spec)} at {s.failing_batch_size}: {s.bound}: "
            + " ".join(s.reason.split())
            for s in searches
            if s.failing_batch_size is not None and s.bound != "device memory"
        ),
    ]
    return Sheet.of(
        found,
        [
            ("strategy", lambda it: strategy_label(it[0].spec)),
            ("bound", lambda it: it[0].bound),
            ("largest batch", lambda it: f"{it[0].batch_size:,}"),
            ("relative", lambda it: ratio(it[0].batch_size / original if original else None)),
            ("fails at", lambda it: cell("{:,}".format, it[0].failing_batch_size)),
            ("predicted batch", lambda it: cell("{:,}".format, it[0].predicted_batch_size)),
            ("peak MB", lambda it: cell(lambda m: megabytes(m.peak_bytes), it[1])),
            ("host MB", lambda it: cell(lambda m: megabytes(m.host_bytes), it[1])),
            ("step s", lambda it: cell(lambda m: seconds(m.median_seconds), it[1])),
            (
                "examples/s",
                lambda it: cell(lambda m: f"{it[0].batch_size / m.median_seconds:,.2f}", it[1]),
            ),
            ("trials", lambda it: str(len(it[0].trials))),
        ],
        title=f"Largest batch: {step_text(first.spec)}, "
        f"{device_label(first.spec.device, first.spec.memory_limit_bytes)}",
        words=2,
        weak=lambda it: not it[0].batch_size,
        notes=tuple(notes),
        command=first.command,
        frame=pd.DataFrame([_row(*each) for each in found]),
    )


def _row(search: MaxBatchRecord, measured: Measured | None) -> dict[str, Any]:
    """Bytes and seconds."""
    return {
        "id": search.id,
        "model": search.model,
        "strategy": search.spec.strategy,
        "label": strategy_label(search.spec),
        "device": search.spec.device,
        "memory_limit_bytes": search.spec.memory_limit_bytes,
        "batch_size": search.batch_size,
        "failing_batch_size": search.failing_batch_size,
        "bound": search.bound,
        "predicted_batch_size": search.predicted_batch_size,
        "peak_bytes": measured and measured.peak_bytes,
        "host_bytes": measured and measured.host_bytes,
        "median_seconds": measured and measured.median_seconds,
        "trials": len(search.trials),
    }
