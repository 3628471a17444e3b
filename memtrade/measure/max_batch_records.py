"""Records of searches for the largest batch: JSON files beside the records of their trials."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from memtrade.measure.host import Machine, describe_machine
from memtrade.measure.max_batch import BatchSearch, Bound, Obstacle, Tried
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import (
    MAX_BATCH_PREFIX,
    SCHEMA_VERSION,
    Record,
    json_name,
    load_json,
    save_json,
    short_hash,
)
from memtrade.models import make_model
from memtrade.results.sheets import NONE, Sheet
from memtrade.results.tables import ratio, seconds, spec_label, step_text
from memtrade.search import Found
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


class MaxBatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one search.

    Attributes:
        id: a hash of what makes the search this search, as for trials.
        model: the model's display name.
        spec: the trials, but for the batch size and what depends on it.
        step: the batch sizes asked for are multiples of it.
        most: the largest that could be asked for, if there was such a limit.
        batch_size: the largest that runs; 0 if none does.
        failing_batch_size: the next one; None if `most` was reached.
        bound: what is in the way there. reason: the same in one line.
        predicted_batch_size: what the simulator said; None without a prediction.
        trials: in the order in which they ran; the records lie beside this one.
    """

    schema_version: int
    id: str
    created: str
    command: str
    model: str
    spec: TrialSpec
    step: int
    most: int | None
    batch_size: int
    failing_batch_size: int | None
    bound: Bound
    reason: str
    predicted_batch_size: int | None
    predicted_bound: Bound | None
    trials: tuple[Tried, ...]
    machine: Machine

    @property
    def filename(self) -> str:
        return MAX_BATCH_PREFIX + json_name(self.model, self.spec.strategy, self.id)

    @property
    def best_trial(self) -> str | None:
        """The id of the trial at `batch_size`."""
        ids = [tried.id for tried in self.trials if tried.batch_size == self.batch_size]
        return ids[0] if ids else None


def make_max_batch_record(
    search: BatchSearch, found: Found[Obstacle], *, command: str
) -> MaxBatchRecord:
    """The record of a search that has ended now, on this machine."""
    machine = describe_machine()
    options = {k: v for k, v in search.base.model_options.items() if k != "batch_size"}
    spec = msgspec.structs.replace(search.base, model_options=options)
    predicted = search.predicted
    return MaxBatchRecord(
        schema_version=SCHEMA_VERSION,
        id=_search_id(spec, search.step, search.most, machine),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        model=make_model(spec.model, spec.model_options).name,
        spec=spec,
        step=search.step,
        most=search.most,
        batch_size=found.batch,
        failing_batch_size=found.failing,
        bound=found.why.bound if found.why else "asked maximum",
        reason=found.why.reason if found.why else "",
        predicted_batch_size=predicted.batch if predicted else None,
        predicted_bound=_predicted_bound(predicted),
        trials=tuple(search.tried),
        machine=machine,
    )


def _predicted_bound(predicted: Found[Obstacle] | None) -> Bound | None:
    if predicted is None:
        return None
    return predicted.why.bound if predicted.why else "asked maximum"


def _search_id(spec: TrialSpec, step: int, most: int | None, machine: Machine) -> str:
    return short_hash((SCHEMA_VERSION, "max batch", spec, step, most, *machine.identity))


def save_max_batch(record: MaxBatchRecord, folder: Path) -> None:
    """Raises MemtradeError: the folder cannot be written to."""
    save_json(record, folder / record.filename)


def load_max_batches(folder: str | Path) -> list[MaxBatchRecord]:
    """All searches of a folder and its subfolders; see `load_records`."""
    return load_json(folder, MaxBatchRecord, lambda name: name.startswith(MAX_BATCH_PREFIX))


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
