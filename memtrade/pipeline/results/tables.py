"""Partitions, predicted pipelines and records of pipelined trials as sheets.

What was measured and predicted stands in columns of its own, named so. Nothing is measured or
simulated again here.
"""

from collections.abc import Callable, Sequence

from memtrade.pipeline.design.predict import Case, PipelinePrediction
from memtrade.pipeline.design.report import Evenness, PartitionReport, RealTimes
from memtrade.pipeline.design.schedule import make_schedule
from memtrade.pipeline.design.stages import KEEP
from memtrade.pipeline.measure.protocol import PipelineMeasured, PipelineTrial
from memtrade.pipeline.measure.trial import PipelineRecord
from memtrade.results.sheets import NONE, Sheet, cell
from memtrade.results.words import seconds, status_text
from memtrade.units import megabytes

_DEFINITIONS = {
    "sum": "receive and send times are those of all tensors together",
    "largest": "receive and send times are those of the largest tensor",
}


def report_sheets(report: PartitionReport, *, command: str = "") -> list[Sheet]:
    """The stages, their measured times if there are any, then how even they are. The last one
    carries the command."""
    measured = [] if report.real_times is None else [_real(report.real_times)]
    return [_stages(report), *measured, _imbalances(report, command)]


def _stages(report: PartitionReport) -> Sheet:
    ends, traffic = (*report.boundaries, "the loss"), report.traffic
    sequential, parallel = report.sequential.times, report.parallel.times
    recomputation = "include" if report.recomputation else "leave out"
    return Sheet.of(
        range(len(traffic)),
        [
            ("stage", _number),
            ("sequential forward ms", _each(sequential.forward)),
            ("backward ms", _each(sequential.backward)),
            ("parallel forward ms", _each(parallel.forward)),
            ("backward ms", _each(parallel.backward)),
            ("input MB", lambda i: f"{traffic[i].input_bytes / 1e6:,.3f}"),
            ("receive ms", lambda i: f"{traffic[i].receive_seconds * 1e3:,.3f}"),
            ("output MB", lambda i: f"{traffic[i].output_bytes / 1e6:,.3f}"),
            ("send ms", lambda i: f"{traffic[i].send_seconds * 1e3:,.3f}"),
            ("ends with", lambda i: ends[i]),
        ],
        title=f"{report.step} in {report.partitions} stages, balanced by {report.balanced_by}",
        notes=(
            f"cutting edges: {report.cutting_edges:,}, one per tensor and stage that reads it "
            f"({report.op_edges:,} edges between ops)",
            f"sequential: sum of the stage's op times; parallel: its longest path; both predicted "
            f"for the profile {report.device_profile}; backward times {recomputation} "
            "recomputation",
            f"{_DEFINITIONS[report.volumes]}, at {report.link_bytes_per_s / 1e9:,.1f} GB/s",
        ),
    )


def _real(real: RealTimes) -> Sheet:
    return Sheet.of(
        range(len(real.mean.forward)),
        [
            ("stage", _number),
            ("forward ms", _each(real.mean.forward)),
            ("variance ms²", _each(real.variance.forward, 1e6)),
            ("mean deviation ms", _each(real.mean_deviation.forward)),
            ("backward ms", _each(real.mean.backward)),
            ("variance ms²", _each(real.variance.backward, 1e6)),
            ("mean deviation ms", _each(real.mean_deviation.backward)),
        ],
        title="Real times, measured on this machine",
        notes=(
            f"means of {real.iterations} runs of each stage, one stage at a time; the slowest of "
            f"{real.iterations + 1} does not count. Deviations: mean absolute, from the mean",
        ),
    )


def _number(stage: int) -> str:
    """As people count: from 1."""
    return str(stage + 1)


def _each(stages: Sequence[float], unit: float = 1e3) -> Callable[[int], str]:
    """A column with a figure of each stage."""
    return lambda stage: f"{stages[stage] * unit:,.4g}"


def _imbalances(report: PartitionReport, command: str) -> Sheet:
    kinds: dict[str, Evenness] = {
        "theoretical sequential": report.sequential,
        "theoretical parallel": report.parallel,
    }
    if report.real is not None:
        kinds["real"] = report.real
    return Sheet.of(
        list(kinds.items()),
        [
            ("times", lambda it: it[0]),
            ("forward", lambda it: f"{it[1].imbalance.forward:.4f}"),
            ("backward", lambda it: f"{it[1].imbalance.backward:.4f}"),
            ("topology-aware forward", lambda it: f"{it[1].topology_aware.forward:.4f}"),
            ("topology-aware backward", lambda it: f"{it[1].topology_aware.backward:.4f}"),
        ],
        title="Imbalance: fastest over slowest, from 0 to 1, higher is better",
        notes=(
            "topology-aware: the worst of two stages that are connected",
            f"the heaviest stage costs {report.heaviest_over_optimum:.3f} times the least possible",
        ),
        command=command,
    )


def prediction_sheet(
    title: str, predictions: Sequence[tuple[Case, PipelinePrediction]], *, command: str = ""
) -> Sheet:
    """A row per case."""
    planned = any(case.strategy != "original" for case, _ in predictions)
    columns: list[tuple[str, Callable[[tuple[Case, PipelinePrediction]], str]]] = [
        ("stages", lambda it: str(it[0].partitions)),
        ("micro-batches", lambda it: str(it[0].micro_batches)),
        ("schedule", lambda it: it[0].schedule),
        ("checkpoint", lambda it: it[0].checkpoint),
        *([("strategy", lambda it: it[0].strategy)] if planned else []),
        ("fits", lambda it: "yes" if all(it[1].fits) else "no"),
        ("parameters MB", lambda it: megabytes(it[1].parameter_bytes)),
        ("activations MB", lambda it: megabytes(it[1].activation_bytes)),
        ("total MB", lambda it: megabytes(it[1].peak_bytes)),
        ("largest MB", lambda it: megabytes(max(s.peak_bytes for s in it[1].stages))),
        ("forward s", lambda it: seconds(it[1].timing.forward_seconds)),
        ("step s", lambda it: seconds(it[1].timing.step_seconds)),
        ("bubble", lambda it: f"{it[1].timing.bubble:.3f}"),
        ("examples/s", lambda it: f"{it[1].samples_per_second:,.1f}"),
    ]
    if planned:
        columns.append(("host MB", lambda it: megabytes(sum(s.host_bytes for s in it[1].stages))))
    return Sheet.of(
        predictions,
        columns,
        title=title,
        words=6 if planned else 5,
        weak=lambda it: not all(it[1].fits),
        notes=(
            "parameters: values, gradients and optimizer slots; activations: all else that is live "
            "at the stages' peaks, summed over the stages; no allocator padding",
            "largest: of the stage that needs most; bubble: the share of the stages' time in which "
            "they compute nothing",
        ),
        command=command,
    )


def stages_sheet(case: Case, predicted: PipelinePrediction) -> Sheet:
    """A row per stage of one case."""
    busy, again = predicted.timing.busy_seconds, predicted.timing.recompute_seconds
    return Sheet.of(
        list(enumerate(predicted.stages)),
        [
            ("stage", lambda it: _number(it[0])),
            (
                "peak in",
                lambda it: f"{it[1].peak_task.kind} of micro-batch {it[1].peak_task.micro_batch}",
            ),
            ("fits", lambda it: "yes" if predicted.fits[it[0]] else "no"),
            ("parameters MB", lambda it: megabytes(it[1].parameter_bytes)),
            ("activations MB", lambda it: megabytes(it[1].activation_bytes)),
            ("peak MB", lambda it: megabytes(it[1].peak_bytes)),
            ("in flight", lambda it: str(it[1].in_flight)),
            ("busy s", lambda it: seconds(busy[it[0]])),
            ("of it recomputing s", lambda it: seconds(again[it[0]])),
            ("idle", lambda it: f"{1 - busy[it[0]] / predicted.timing.step_seconds:.3f}"),
        ],
        title=f"Stages of {case.schedule}, {case.micro_batches} micro-batches, {case.checkpoint}",
        words=3,
    )


MIB = 1 << 20

_ABOUT = (
    "≈: about. Small tensors of the pipeline's own, such as what first values are made of, lie "
    "among a stage's, and TensorFlow gives back what a stage has sent when its bytes have left"
)

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

    def foreseen(record: PipelineRecord) -> str:
        most = max(record.predicted.stages, key=lambda stage: stage.peak_bytes)
        return mib(most.peak_bytes, most.bound)

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
            ("predicted", lambda it: mib(it.predicted.peak_bytes, it.predicted.bound)),
            _measured("largest stage MiB: measured", largest),
            ("predicted", foreseen),
            _measured("activation MiB: measured", lambda _, seen: mib(seen.activation_bytes)),
            ("predicted", lambda it: mib(it.predicted.activation_bytes, it.predicted.bound)),
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
            *about_notes(records),
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
            ("predicted MiB", lambda it: mib(it[2].peak_bytes, it[2].bound)),
            ("error", lambda it: f"{it[2].peak_bytes / it[1].peak_bytes - 1:+z.1%}"),
            ("busy s", lambda it: f"{it[1].busy_seconds:.3f}"),
            ("update s", lambda it: cell("{:.3f}".format, it[1].update_seconds)),
        ],
        title="Peak memory per stage",
        notes=about_notes([record]),
    )


def about_notes(records: Sequence[PipelineRecord]) -> tuple[str, ...]:
    """What stands before predicted peaks of stages, where it does."""
    said = any(stage.bound == "≈" for record in records for stage in record.predicted.stages)
    return (_ABOUT,) if said else ()


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


def mib(size_bytes: int, bound: str = "") -> str:
    return f"{bound} {size_bytes / MIB:,.1f}".lstrip()
