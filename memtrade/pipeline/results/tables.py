"""Partition reports and pipeline predictions as sheets: finished text for terminal and Markdown."""

from collections.abc import Callable, Sequence

from memtrade.pipeline.design.predict import Case, PipelinePrediction
from memtrade.pipeline.design.report import Evenness, PartitionReport, RealTimes
from memtrade.results.sheets import Sheet
from memtrade.results.words import seconds
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
