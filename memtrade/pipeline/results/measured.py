"""Tables over the records of pipelined trials: measured beside predicted.

    schedules    a row per trial: GPipe, 1F1B and swapping, side by side
    runs         a row per trial, as the published logs print theirs
    devices      a row per stage of one trial

What was measured and predicted stands in columns of its own, named so. Nothing is measured or
simulated again here.
"""

from __future__ import annotations

from collections.abc import Sequence

from memtrade.pipeline.design.planned import KEEP
from memtrade.pipeline.design.schedule import make_schedule
from memtrade.pipeline.measure.protocol import PipelineTrial
from memtrade.pipeline.measure.records import PipelineRecord
from memtrade.results.sheets import NONE, Sheet, cell

MIB = 1 << 20


def schedules_sheet(records: Sequence[PipelineRecord], *, command: str = "") -> Sheet:
    """All trials, largest measured peak first."""
    ordered = sorted(records, key=_size, reverse=True)
    return Sheet(
        title=f"Pipelines, measured and predicted: {steps_text(records)}",
        columns=(
            "schedule",
            "checkpoint",
            "strategy",
            "K",
            "M",
            "status",
            "total MiB: measured",
            "predicted",
            "largest stage MiB: measured",
            "predicted",
            "activation MiB: measured",
            "predicted",
            "host MiB: predicted",
            "bubble: by clocks",
            "measured",
            "predicted",
            "step s: measured",
            "predicted",
        ),
        words=3,
        rows=tuple(map(_schedules_row, ordered)),
        weak=frozenset(i for i, record in enumerate(ordered) if record.measured is None),
        notes=(
            "total: all stages, each at its own peak; activation: that less values, gradients and "
            "slots. Measured by each stage's allocator, predicted for it",
            "bubble by clocks: the share of the schedule's clocks in which a stage has no task. "
            "Measured and predicted: the share of the stages' time; a stage that waits for what "
            "it receives has no task",
            f"predicted times: profile {profiles_text(records)}, as if each stage had that device "
            f"for itself; measured: {machines_text(records)}, which all stages share",
            *(f"{record.trial.schedule}: {record.reason}" for record in records if record.reason),
        ),
        command=command,
    )


def runs_sheet(records: Sequence[PipelineRecord], *, command: str = "") -> Sheet:
    """A row for each trial: what the published logs print of theirs, in their order."""
    return Sheet(
        title=_runs_title(records),
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
    pairs = list(zip(record.measured.stages, record.predicted.stages, strict=True))
    return Sheet.of(
        [(i, *pair) for i, pair in enumerate(pairs, start=1)],
        [
            ("stage", lambda it: f"stage {it[0]}"),
            ("parameters", lambda it: f"{it[1].parameters:,}"),
            ("values MiB", lambda it: mib(it[1].variable_bytes)),
            ("gradients MiB", lambda it: mib(it[1].gradient_bytes)),
            ("slots MiB", lambda it: mib(it[1].slot_bytes)),
            ("activation MiB", lambda it: mib(it[1].activation_bytes)),
            ("peak MiB", lambda it: mib(it[1].peak_bytes)),
            ("predicted MiB", lambda it: mib(it[2].peak_bytes)),
            ("error", lambda it: f"{it[2].peak_bytes / it[1].peak_bytes - 1:+.1%}"),
            ("busy s", lambda it: f"{it[1].busy_seconds:.3f}"),
            ("update s", lambda it: cell("{:.3f}".format, it[1].update_seconds)),
        ],
        title="Peak memory per stage",
        words=1,
    )


def _runs_title(records: Sequence[PipelineRecord]) -> str:
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
        mib(measured.parameter_bytes),
        mib(measured.activation_bytes),
        share,
        mib(measured.peak_bytes),
        f"{measured.forward_seconds:.3f}",
        f"{measured.backward_seconds:.3f}",
        f"{measured.median_seconds:.3f}",
        f"{measured.samples_per_second:.2f}",
        f"{measured.bubble:.3f}",
        f"{max(record.peak_errors, key=abs):+.1%}",
    )


def _schedules_row(record: PipelineRecord) -> tuple[str, ...]:
    trial, seen, said = record.trial, record.measured, record.predicted
    largest = max(stage.peak_bytes for stage in said.stages)
    host = sum(stage.host_bytes for stage in said.stages)
    return (
        trial.schedule,
        trial.checkpoint,
        trial.strategy,
        str(trial.partitions),
        str(trial.micro_batches),
        record.status.replace("_", " "),
        NONE if seen is None else mib(seen.peak_bytes),
        mib(said.peak_bytes),
        NONE if seen is None else mib(max(stage.peak_bytes for stage in seen.stages)),
        mib(largest),
        NONE if seen is None else mib(seen.activation_bytes),
        mib(said.activation_bytes),
        mib(host) if host else NONE,
        f"{_bubble_by_clocks(trial):.3f}",
        NONE if seen is None else f"{seen.bubble:.3f}",
        f"{said.timing.bubble:.3f}",
        NONE if seen is None else f"{seen.median_seconds:.3f}",
        f"{said.timing.step_seconds:.3f}",
    )


def _bubble_by_clocks(trial: PipelineTrial) -> float:
    schedule = make_schedule(
        trial.schedule,
        stages=trial.partitions,
        micro_batches=trial.micro_batches,
        checkpoint=trial.checkpoint,
    )
    busy = sum(len({task.clock for task in tasks}) for tasks in schedule.tasks)
    return 1 - busy / (schedule.stages * schedule.clocks)


def _size(record: PipelineRecord) -> int:
    return record.measured.peak_bytes if record.measured else record.predicted.peak_bytes


def step_of(record: PipelineRecord) -> tuple[str, int, str]:
    return record.model, record.trial.batch_size, record.trial.optimizer


def steps_text(records: Sequence[PipelineRecord]) -> str:
    named = dict.fromkeys(
        f"{model}, batch {batch_size}, {optimizer}"
        for model, batch_size, optimizer in map(step_of, records)
    )
    return "; ".join(named)


def profiles_text(records: Sequence[PipelineRecord]) -> str:
    return ", ".join(dict.fromkeys(record.predicted.device_profile for record in records))


def machines_text(records: Sequence[PipelineRecord]) -> str:
    return ", ".join(dict.fromkeys(f"{record.machine.cores} cores" for record in records))


def mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.1f}"
