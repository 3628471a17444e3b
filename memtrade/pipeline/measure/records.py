"""Records of pipelined trials: one JSON file each.

Kept apart from the other trials' records by the files' names. A record's id is a hash of the
trial, the machine's versions and the schema, so the same trial run again replaces its record.
"""

from typing import ClassVar

import msgspec

from memtrade.measure.host import describe_machine
from memtrade.measure.protocol import Runtime, Status
from memtrade.measure.records import (
    PIPELINE_PREFIX,
    AnyRecord,
    record_id,
)
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
    return record_id((trial,), describe_machine())


def make_pipeline_record(
    trial: PipelineTrial, outcome: PipelineOutcome, predicted: PipelinePrediction, *, command: str
) -> PipelineRecord:
    """The record of a trial that ends now, driven from this machine."""
    told = msgspec.structs.asdict(outcome)
    return PipelineRecord.made_now(
        trial, (trial,), command=command, trial=trial, predicted=predicted, **told
    )
