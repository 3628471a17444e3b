"""Records of searches for the largest batch: JSON files beside the records of their trials."""

from pathlib import Path
from typing import ClassVar

import msgspec

from memtrade.measure.host import describe_machine
from memtrade.measure.max_batch import BatchSearch, Bound, Obstacle, Tried
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import (
    MAX_BATCH_PREFIX,
    SCHEMA_VERSION,
    AnyRecord,
    load_kind,
    now,
    short_hash,
)
from memtrade.models import make_model
from memtrade.search import Found


class MaxBatchRecord(AnyRecord, frozen=True, kw_only=True):
    """The outcome of one search.

    Attributes:
        spec: the trials, but for the batch size and what depends on it.
        step: the batch sizes asked for are multiples of it.
        most: the largest that could be asked for, if there was such a limit.
        batch_size: the largest that runs; 0 if none does.
        failing_batch_size: the next one; None if `most` was reached.
        bound: what is in the way there. reason: the same in one line.
        predicted_batch_size: what the simulator said; None without a prediction.
        trials: in the order in which they ran; the records lie beside this one.
    """

    prefix: ClassVar[str] = MAX_BATCH_PREFIX

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

    @property
    def words(self) -> tuple[str, ...]:
        return self.model, self.spec.strategy

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
    identity = (SCHEMA_VERSION, "max batch", spec, search.step, search.most, *machine.identity)
    return MaxBatchRecord(
        schema_version=SCHEMA_VERSION,
        id=short_hash(identity),
        created=now(),
        command=command,
        model=make_model(spec.model, spec.model_options).name,
        spec=spec,
        step=search.step,
        most=search.most,
        batch_size=found.batch,
        failing_batch_size=found.failing,
        bound=_bound(found),
        reason=found.why.reason if found.why else "",
        predicted_batch_size=predicted.batch if predicted else None,
        predicted_bound=_bound(predicted) if predicted else None,
        trials=tuple(search.tried),
        machine=machine,
    )


def _bound(found: Found[Obstacle]) -> Bound:
    return found.why.bound if found.why else "asked maximum"


def load_max_batches(folder: str | Path) -> list[MaxBatchRecord]:
    """All searches of a folder and its subfolders; see `load_records`."""
    return load_kind(folder, MaxBatchRecord)
