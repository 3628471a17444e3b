"""Searches for the largest batch, a row each: for the terminal, and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from memtrade.measure.max_batch_records import MaxBatchRecord
from memtrade.measure.records import Record
from memtrade.results.sheets import NONE, Sheet
from memtrade.results.tables import ratio, seconds, spec_label, step_text
from memtrade.units import megabytes

COLUMNS = (
    "strategy",
    "bound",
    "largest batch",
    "relative",
    "fails at",
    "predicted batch",
    "peak MB",
    "host MB",
    "step s",
    "examples/s",
    "trials",
)


def to_sheet(searches: Sequence[MaxBatchRecord], trials: Sequence[Record]) -> Sheet:
    """Searches on one step and device, side by side. `trials` holds the records of their trials."""
    by_id = {record.id: record for record in trials}
    original = next((s.batch_size for s in searches if s.spec.strategy == "original"), 0)
    first = searches[0]
    limit_bytes = first.spec.memory_limit_bytes or 0
    notes = [
        "largest batch and fails at: by trials"
        + (f", multiples of {first.step}" if first.step > 1 else "")
        + "; predicted batch: by the simulator, before them; peak MB, host MB, step s, examples/s: "
        "measured at the largest batch",
        f"{first.machine.cpu_model}, {first.machine.cores} cores, "
        f"TensorFlow {first.machine.tensorflow_version}",
        *(
            f"{spec_label(s.spec)} at {s.failing_batch_size}: {s.bound}: "
            + " ".join(s.reason.split())
            for s in searches
            if s.failing_batch_size is not None and s.bound != "device memory"
        ),
    ]
    return Sheet(
        title=f"Largest batch: {step_text(first.spec)}, {first.spec.device} of "
        f"{limit_bytes / 2**20:,.0f} MiB",
        columns=COLUMNS,
        words=2,
        rows=tuple(_cells(s, by_id.get(s.best_trial or ""), original) for s in searches),
        weak=frozenset(i for i, s in enumerate(searches) if not s.batch_size),
        notes=tuple(notes),
        command=first.command,
    )


def _cells(search: MaxBatchRecord, best: Record | None, original: int) -> tuple[str, ...]:
    figures = (NONE,) * 4
    if best is not None and best.measured is not None:
        measured = best.measured
        figures = (
            megabytes(measured.peak_bytes),
            megabytes(measured.host_bytes),
            seconds(measured.median_seconds),
            f"{search.batch_size / measured.median_seconds:,.2f}",
        )
    return (
        spec_label(search.spec),
        search.bound,
        f"{search.batch_size:,}",
        ratio(search.batch_size / original if original else None),
        _count(search.failing_batch_size),
        _count(search.predicted_batch_size),
        *figures,
        str(len(search.trials)),
    )


def _count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def to_csv(searches: Sequence[MaxBatchRecord], trials: Sequence[Record]) -> str:
    """Bytes and seconds, one row per search."""
    by_id = {record.id: record for record in trials}
    rows = [_row(search, by_id.get(search.best_trial or "")) for search in searches]
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def _row(search: MaxBatchRecord, best: Record | None) -> dict[str, Any]:
    measured = best.measured if best else None
    return {
        "id": search.id,
        "model": search.model,
        "strategy": search.spec.strategy,
        "label": spec_label(search.spec),
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
