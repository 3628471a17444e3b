"""Tables over the records of pipelined trials: measured beside predicted.

    schedules    a row per trial: GPipe, 1F1B and swapping, side by side
    runs         a row per trial, as the published logs print theirs
    devices      a row per stage of one trial

What was measured and predicted stands in columns of its own, named so. Nothing is measured or
simulated again here.
"""

from collections.abc import Callable, Sequence

from memtrade.pipeline.design.schedule import make_schedule
from memtrade.pipeline.design.stages import KEEP
from memtrade.pipeline.measure.protocol import PipelineMeasured, PipelineTrial
from memtrade.pipeline.measure.records import PipelineRecord
from memtrade.results.sheets import NONE, Sheet, cell
from memtrade.results.words import status_text

MIB = 1 << 20

Column = tuple[str, Callable[[PipelineRecord], str]]

_SIZE_AND_STATUS: tuple[Column, ...] = (
    ("K", lambda it: str(it.trial.partitions)),
    ("M", lambda it: str(it.trial.micro_batches)),
    ("status", lambda it: status_text(it.status)),
)


def _measured(heading: str, text: Callable[[PipelineRecord, PipelineMeasured], str]) -> Column:
    """A column that says something only of trials that ran."""
    return heading, lambda it: cell(lambda seen: text(it, seen), it.measured)


def schedules_sheet(records: Sequence[PipelineRecord], *, command: str = "") -> Sheet:
    """All trials, largest measured peak first."""

    def size(record: PipelineRecord) -> int:
        return (record.measured or record.predicted).peak_bytes

    def largest(record: PipelineRecord, seen: PipelineMeasured) -> str:
        return mib(max(stage.peak_bytes for stage in seen.stages))

    def host(record: PipelineRecord) -> str:
        swapped = sum(stage.host_bytes for stage in record.predicted.stages)
        return mib(swapped) if swapped else NONE

    return Sheet.of(
        sorted(records, key=size, reverse=True),
        [
            ("schedule", lambda it: it.trial.schedule),
            ("checkpoint", lambda it: it.trial.checkpoint),
            ("strategy", lambda it: it.trial.strategy),
            *_SIZE_AND_STATUS,
            _measured("total MiB: measured", lambda _, seen: mib(seen.peak_bytes)),
            ("predicted", lambda it: mib(it.predicted.peak_bytes)),
            _measured("largest stage MiB: measured", largest),
            ("predicted", lambda it: mib(max(each.peak_bytes for each in it.predicted.stages))),
            _measured("activation MiB: measured", lambda _, seen: mib(seen.activation_bytes)),
            ("predicted", lambda it: mib(it.predicted.activation_bytes)),
            ("host MiB: predicted", host),
            ("bubble: by clocks", lambda it: f"{_bubble_by_clocks(it.trial):.3f}"),
            _measured("measured", lambda _, seen: f"{seen.bubble:.3f}"),
            ("predicted", lambda it: f"{it.predicted.timing.bubble:.3f}"),
            _measured("step s: measured", lambda _, seen: f"{seen.median_seconds:.3f}"),
            ("predicted", lambda it: f"{it.predicted.timing.step_seconds:.3f}"),
        ],
        title=f"Pipelines, measured and predicted: {steps_text(records)}",
        words=3,
        weak=lambda it: it.measured is None,
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


def runs_sheet(records: Sequence[PipelineRecord]) -> Sheet:
    """A row for each trial: what the published logs print of theirs, in their order."""

    def within(trial: PipelineTrial) -> str:
        return "" if trial.strategy == KEEP else f", {trial.strategy}"

    def share(record: PipelineRecord, seen: PipelineMeasured) -> str:
        base_bytes = _base_of(record, records)
        return cell(lambda base: f"{seen.activation_bytes / base:.3f}", base_bytes)

    return Sheet.of(
        records,
        [
            ("schedule", lambda it: it.trial.schedule),
            ("checkpoint", lambda it: it.trial.checkpoint + within(it.trial)),
            *_SIZE_AND_STATUS,
            _measured("parameters", lambda _, seen: f"{seen.parameters:,}"),
            _measured("parameter MiB", lambda _, seen: mib(seen.parameter_bytes)),
            _measured("activation MiB", lambda _, seen: mib(seen.activation_bytes)),
            _measured("of never, K=1, M=1", share),
            _measured("total MiB", lambda _, seen: mib(seen.peak_bytes)),
            _measured("forward s", lambda _, seen: f"{seen.forward_seconds:.3f}"),
            _measured("backward s", lambda _, seen: f"{seen.backward_seconds:.3f}"),
            _measured("step s", lambda _, seen: f"{seen.median_seconds:.3f}"),
            _measured("samples / s", lambda _, seen: f"{seen.samples_per_second:.2f}"),
            _measured("bubble", lambda _, seen: f"{seen.bubble:.3f}"),
            _measured("worst peak error", lambda it, _: f"{max(it.peak_errors, key=abs):+z.1%}"),
        ],
        title=f"Pipelined steps, measured: {steps_text(records)}",
        words=2,
        weak=lambda it: it.status != "ok",
        notes=(
            "Memory: all stages together, each at its own peak, by its own allocator. Parameters: "
            "value, accumulated gradient and slots; activation: peak less that.",
            "Worst peak error: of a stage's predicted peak, as a share of the measured one.",
            *(record.reason for record in records if record.reason),
        ),
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
            ("error", lambda it: f"{it[2].peak_bytes / it[1].peak_bytes - 1:+z.1%}"),
            ("busy s", lambda it: f"{it[1].busy_seconds:.3f}"),
            ("update s", lambda it: cell("{:.3f}".format, it[1].update_seconds)),
        ],
        title="Peak memory per stage",
    )


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


def _bubble_by_clocks(trial: PipelineTrial) -> float:
    schedule = make_schedule(
        trial.schedule,
        stages=trial.partitions,
        micro_batches=trial.micro_batches,
        checkpoint=trial.checkpoint,
    )
    busy = sum(len({task.clock for task in tasks}) for tasks in schedule.tasks)
    return 1 - busy / (schedule.stages * schedule.clocks)


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
