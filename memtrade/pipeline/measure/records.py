"""Records of pipelined trials: one JSON file each.

Kept apart from the other trials' records by the files' names. A record's id is a hash of the
trial, the machine's versions and the schema, so the same trial run again replaces its record.
"""

from pathlib import Path
from typing import ClassVar

import msgspec

from memtrade.measure.host import describe_machine
from memtrade.measure.protocol import Runtime, Status
from memtrade.measure.records import (
    PIPELINE_PREFIX,
    SCHEMA_VERSION,
    AnyRecord,
    load_kind,
    now,
    short_hash,
)
from memtrade.models import make_model
from memtrade.pipeline.design.predict import PipelinePrediction
from memtrade.pipeline.measure.protocol import PipelineMeasured, PipelineOutcome, PipelineTrial


class PipelineRecord(AnyRecord, frozen=True, kw_only=True):
    """One finished pipelined trial, whichever way it ended.

    Attributes:
        stage: that failed, from 0, where one did.
        predicted: what the simulator said of it before it ran.
    """

    prefix: ClassVar[str] = PIPELINE_PREFIX

    trial: PipelineTrial
    status: Status
    reason: str = ""
    stage: int | None = None
    measured: PipelineMeasured | None = None
    predicted: PipelinePrediction
    runtime: Runtime | None = None

    @property
    def words(self) -> tuple[str, ...]:
        trial = self.trial
        sizes = (f"b{trial.batch_size}", f"k{trial.partitions}", f"m{trial.micro_batches}")
        return self.model, *sizes, trial.schedule, trial.checkpoint

    @property
    def peak_errors(self) -> tuple[float, ...]:
        """For each stage, the predicted peak's error as a share of the measured one."""
        if self.measured is None:
            return ()
        pairs = zip(self.predicted.stages, self.measured.stages, strict=True)
        return tuple(said.peak_bytes / seen.peak_bytes - 1 for said, seen in pairs)


def pipeline_record_id(trial: PipelineTrial) -> str:
    """Of the record that the trial would have on this machine."""
    return short_hash((SCHEMA_VERSION, trial, *describe_machine().identity))


def make_pipeline_record(
    trial: PipelineTrial, outcome: PipelineOutcome, predicted: PipelinePrediction, *, command: str
) -> PipelineRecord:
    """The record of a trial that ends now, driven from this machine."""
    machine = describe_machine()
    return PipelineRecord(
        schema_version=SCHEMA_VERSION,
        id=pipeline_record_id(trial),
        created=now(),
        command=command,
        model=make_model(trial.model, trial.model_options).name,
        trial=trial,
        predicted=predicted,
        machine=machine,
        **msgspec.structs.asdict(outcome),
    )


def load_pipeline_records(folder: str | Path) -> list[PipelineRecord]:
    """All records of pipelined trials below a folder, in the order of their file names."""
    return load_kind(folder, PipelineRecord)
