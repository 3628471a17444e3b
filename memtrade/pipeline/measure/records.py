"""Records of pipelined trials: one JSON file each, and the table over them.

Kept apart from the other trials' records by the files' names. A record's id is a hash of the
trial, the machine's versions and the schema, so the same trial run again replaces its record.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from memtrade.measure.host import Machine, describe_machine
from memtrade.measure.protocol import Runtime, Status
from memtrade.measure.records import (
    PIPELINE_PREFIX,
    SCHEMA_VERSION,
    json_name,
    load_json,
    save_json,
    short_hash,
)
from memtrade.models import make_model
from memtrade.pipeline.design.planned import KEEP
from memtrade.pipeline.design.predict import PipelinePrediction
from memtrade.pipeline.measure.protocol import PipelineMeasured, PipelineOutcome, PipelineTrial
from memtrade.results.sheets import NONE, Sheet

MIB = 1 << 20


class PipelineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One finished pipelined trial, whichever way it ended.

    Attributes:
        model: its display name.
        stage: that failed, from 0, where one did.
        predicted: what the simulator said of it before it ran.
    """

    schema_version: int
    id: str
    created: str
    command: str
    model: str
    trial: PipelineTrial
    status: Status
    reason: str = ""
    stage: int | None = None
    measured: PipelineMeasured | None = None
    predicted: PipelinePrediction
    runtime: Runtime | None = None
    machine: Machine

    @property
    def filename(self) -> str:
        trial = self.trial
        return PIPELINE_PREFIX + json_name(
            self.model,
            f"b{trial.batch_size}",
            f"k{trial.partitions}",
            f"m{trial.micro_batches}",
            trial.schedule,
            trial.checkpoint,
            self.id,
        )

    @property
    def peak_errors(self) -> tuple[float, ...]:
        """For each stage, the predicted peak's error as a share of the measured one."""
        if self.measured is None:
            return ()
        pairs = zip(self.predicted.stages, self.measured.stages, strict=True)
        return tuple(said.peak_bytes / seen.peak_bytes - 1 for said, seen in pairs)


def make_pipeline_record(
    trial: PipelineTrial,
    outcome: PipelineOutcome,
    predicted: PipelinePrediction,
    *,
    command: str,
) -> PipelineRecord:
    """The record of a trial that ends now, driven from this machine."""
    machine = describe_machine()
    identity = (SCHEMA_VERSION, trial, *machine.identity)
    return PipelineRecord(
        schema_version=SCHEMA_VERSION,
        id=short_hash(identity),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        model=make_model(trial.model, trial.model_options).name,
        trial=trial,
        status=outcome.status,
        reason=outcome.reason,
        stage=outcome.stage,
        measured=outcome.measured,
        predicted=predicted,
        runtime=outcome.runtime,
        machine=machine,
    )


def save_pipeline_record(record: PipelineRecord, folder: Path) -> Path:
    """Raises MemtradeError where the folder cannot be written to."""
    path = folder / record.filename
    save_json(record, path)
    return path


def load_pipeline_records(folder: str | Path) -> list[PipelineRecord]:
    """All records of pipelined trials below a folder, in the order of their file names."""
    return load_json(folder, PipelineRecord, lambda name: name.startswith(PIPELINE_PREFIX))


def runs_sheet(records: Sequence[PipelineRecord], *, command: str = "") -> Sheet:
    """A row for each trial: what the published logs print of theirs, in their order."""
    return Sheet(
        title=_title(records),
        columns=(
            "schedule",
            "checkpoint",
            "K",
            "M",
            "status",
            "parameters",
            "parameter MiB",
            "activation MiB",
            "of never, K=1, M=1",
            "total MiB",
            "forward s",
            "backward s",
            "step s",
            "samples / s",
            "bubble",
            "worst peak error",
        ),
        words=2,
        rows=tuple(_run_row(record, _base_of(record, records)) for record in records),
        weak=frozenset(i for i, record in enumerate(records) if record.status != "ok"),
        notes=(
            "Memory: all stages together, each at its own peak, by its own allocator. Parameters: "
            "value, accumulated gradient and slots; activation: peak less that.",
            "Worst peak error: of a stage's predicted peak, as a share of the measured one.",
            *(record.reason for record in records if record.reason),
        ),
        command=command,
    )


def device_sheet(record: PipelineRecord) -> Sheet:
    """A row for each stage of one trial, predicted beside measured."""
    assert record.measured is not None
    rows = []
    for i, (seen, said) in enumerate(
        zip(record.measured.stages, record.predicted.stages, strict=True)
    ):
        rows.append(
            (
                f"stage {i + 1}",
                f"{seen.parameters:,}",
                *(
                    _mib(size)
                    for size in (
                        seen.variable_bytes,
                        seen.gradient_bytes,
                        seen.slot_bytes,
                        seen.activation_bytes,
                        seen.peak_bytes,
                        said.peak_bytes,
                    )
                ),
                f"{said.peak_bytes / seen.peak_bytes - 1:+.1%}",
                f"{seen.busy_seconds:.3f}",
                NONE if seen.update_seconds is None else f"{seen.update_seconds:.3f}",
            )
        )
    return Sheet(
        title="Peak memory per stage",
        columns=(
            "stage",
            "parameters",
            "values MiB",
            "gradients MiB",
            "slots MiB",
            "activation MiB",
            "peak MiB",
            "predicted MiB",
            "error",
            "busy s",
            "update s",
        ),
        words=1,
        rows=tuple(rows),
    )


def _title(records: Sequence[PipelineRecord]) -> str:
    kinds = dict.fromkeys(
        f"{record.model}, batch {record.trial.batch_size}, {record.trial.optimizer}"
        for record in records
    )
    return "Pipelined steps, measured: " + "; ".join(kinds)


def _base_of(record: PipelineRecord, records: Sequence[PipelineRecord]) -> int | None:
    """Activation bytes of the same step unpipelined and without recomputation, if it is there."""
    for other in records:
        trial = other.trial
        unpipelined = (trial.partitions, trial.micro_batches) == (1, 1)
        same = (other.model, trial.batch_size) == (record.model, record.trial.batch_size)
        kept = (trial.checkpoint, trial.strategy) == ("never", KEEP)
        if unpipelined and same and kept and other.measured:
            return other.measured.activation_bytes
    return None


def _run_row(record: PipelineRecord, base_bytes: int | None) -> tuple[str, ...]:
    trial, measured = record.trial, record.measured
    within = "" if trial.strategy == KEEP else f", {trial.strategy}"
    head = (
        trial.schedule,
        trial.checkpoint + within,
        str(trial.partitions),
        str(trial.micro_batches),
        record.status.replace("_", " "),
    )
    if measured is None:
        return (*head, *[NONE] * 11)
    share = NONE if base_bytes is None else f"{measured.activation_bytes / base_bytes:.3f}"
    return (
        *head,
        f"{measured.parameters:,}",
        _mib(measured.parameter_bytes),
        _mib(measured.activation_bytes),
        share,
        _mib(measured.peak_bytes),
        f"{measured.forward_seconds:.3f}",
        f"{measured.backward_seconds:.3f}",
        f"{measured.median_seconds:.3f}",
        f"{measured.samples_per_second:.2f}",
        f"{measured.bubble:.3f}",
        f"{max(record.peak_errors, key=abs):+.1%}",
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.1f}"
