"""Partition reports and pipeline predictions as sheets: finished text for terminal and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from memtrade.pipeline.design.predict import Case, PipelinePrediction
from memtrade.pipeline.design.report import Balance, PartitionReport, PhaseTimes, RealTimes
from memtrade.results.sheets import Sheet
from memtrade.results.tables import seconds
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
    rows = []
    ends = (*report.boundaries, "the loss")
    for stage, traffic in enumerate(report.traffic):
        rows.append(
            (
                str(stage),
                *_phases(report.sequential.times, stage, 1e3),
                *_phases(report.parallel.times, stage, 1e3),
                f"{traffic.input_bytes / 1e6:,.3f}",
                f"{traffic.receive_seconds * 1e3:,.3f}",
                f"{traffic.output_bytes / 1e6:,.3f}",
                f"{traffic.send_seconds * 1e3:,.3f}",
                ends[stage],
            )
        )
    recomputation = "include" if report.recomputation else "leave out"
    return Sheet(
        title=f"{report.step} in {report.partitions} stages, balanced by {report.balanced_by}",
        columns=(
            "stage",
            "sequential forward ms",
            "backward ms",
            "parallel forward ms",
            "backward ms",
            "input MB",
            "receive ms",
            "output MB",
            "send ms",
            "ends with",
        ),
        words=1,
        rows=tuple(rows),
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
    rows = tuple(
        (
            str(stage),
            *(
                cell
                for phase in ("forward", "backward")
                for cell in (
                    f"{getattr(real.mean, phase)[stage] * 1e3:,.4g}",
                    f"{getattr(real.variance, phase)[stage] * 1e6:,.4g}",
                    f"{getattr(real.mean_deviation, phase)[stage] * 1e3:,.4g}",
                )
            ),
        )
        for stage in range(len(real.mean.forward))
    )
    return Sheet(
        title="Real times, measured on this machine",
        columns=(
            "stage",
            "forward ms",
            "variance ms²",
            "mean deviation ms",
            "backward ms",
            "variance ms²",
            "mean deviation ms",
        ),
        words=1,
        rows=rows,
        notes=(
            f"means of {real.iterations} runs of each stage, one stage at a time; the slowest of "
            f"{real.iterations + 1} does not count. Deviations: mean absolute, from the mean",
        ),
    )


def _imbalances(report: PartitionReport, command: str) -> Sheet:
    kinds: dict[str, Balance] = {
        "theoretical sequential": report.sequential,
        "theoretical parallel": report.parallel,
    }
    if report.real is not None:
        kinds["real"] = report.real
    rows = tuple(
        (
            kind,
            f"{balance.imbalance.forward:.4f}",
            f"{balance.imbalance.backward:.4f}",
            f"{balance.topology_aware.forward:.4f}",
            f"{balance.topology_aware.backward:.4f}",
        )
        for kind, balance in kinds.items()
    )
    return Sheet(
        title="Imbalance: fastest over slowest, from 0 to 1, higher is better",
        columns=(
            "times",
            "forward",
            "backward",
            "topology-aware forward",
            "topology-aware backward",
        ),
        words=1,
        rows=rows,
        notes=(
            "topology-aware: the worst of two stages that are connected",
            f"the heaviest stage costs {report.heaviest_over_optimum:.3f} times the least possible",
        ),
        command=command,
    )


def _phases(times: PhaseTimes, stage: int, unit: float) -> list[str]:
    return [f"{times.forward[stage] * unit:,.4g}", f"{times.backward[stage] * unit:,.4g}"]


def prediction_sheet(
    title: str, predictions: Sequence[tuple[Case, PipelinePrediction]], *, command: str = ""
) -> Sheet:
    """A row per case."""
    strategies = any(case.strategy != "original" for case, _ in predictions)
    columns = ["stages", "micro-batches", "schedule", "checkpoint"]
    columns += ["strategy"] if strategies else []
    words = len(columns) + 1
    columns += [
        "fits", "parameters MB", "activations MB", "total MB", "largest MB", "forward s",
        "step s", "bubble", "examples/s",
    ]  # fmt: skip
    columns += ["host MB"] if strategies else []
    rows = []
    for case, predicted in predictions:
        timing = predicted.timing
        row = [str(case.partitions), str(case.micro_batches), case.schedule, case.checkpoint]
        row += [case.strategy] if strategies else []
        row += [
            "yes" if all(predicted.fits) else "no",
            megabytes(predicted.parameter_bytes),
            megabytes(predicted.activation_bytes),
            megabytes(predicted.peak_bytes),
            megabytes(max(stage.peak_bytes for stage in predicted.stages)),
            seconds(timing.forward_seconds),
            seconds(timing.step_seconds),
            f"{timing.bubble:.3f}",
            f"{predicted.samples_per_second:,.1f}",
        ]
        row += [megabytes(sum(s.host_bytes for s in predicted.stages))] if strategies else []
        rows.append(tuple(row))
    return Sheet(
        title=title,
        columns=tuple(columns),
        words=words,
        rows=tuple(rows),
        weak=frozenset(i for i, (_, p) in enumerate(predictions) if not all(p.fits)),
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
    timing = predicted.timing
    rows = []
    for i, stage in enumerate(predicted.stages):
        rows.append(
            (
                str(i),
                f"{stage.peak_task.kind} of micro-batch {stage.peak_task.micro_batch}",
                "yes" if predicted.fits[i] else "no",
                megabytes(stage.parameter_bytes),
                megabytes(stage.activation_bytes),
                megabytes(stage.peak_bytes),
                str(stage.in_flight),
                seconds(timing.busy_seconds[i]),
                seconds(timing.recompute_seconds[i]),
                f"{1 - timing.busy_seconds[i] / timing.step_seconds:.3f}",
            )
        )
    return Sheet(
        title=f"Stages of {case.schedule}, {case.micro_batches} micro-batches, {case.checkpoint}",
        columns=(
            "stage", "peak in", "fits", "parameters MB", "activations MB", "peak MB", "in flight",
            "busy s", "of it recomputing s", "idle",
        ),
        words=3,
        rows=tuple(rows),
    )  # fmt: skip
