"""Tables over the records of pipelined trials: measured beside predicted, and beside published.

    schedules    a row per trial: GPipe, 1F1B and swapping, side by side
    published    a row per published run of GPipe on GPT-2, with our trial of the same settings

What was measured, predicted and published stands in columns of its own, named so. Nothing is
measured or simulated again here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import pandas as pd

from memtrade.errors import MemtradeError
from memtrade.papers.pipelines import checkpoint_of
from memtrade.pipeline.design.planned import KEEP
from memtrade.pipeline.design.predict import PipelinePrediction
from memtrade.pipeline.design.schedule import Checkpoint, make_schedule
from memtrade.pipeline.measure.protocol import PipelineMeasured, PipelineTrial
from memtrade.pipeline.measure.records import PipelineRecord
from memtrade.results.sheets import NONE, Sheet

MIB = 1 << 20

# The published table whose rows our trials can stand beside.
PUBLISHED_RUNS = "gpipe_gpt2_runs"


def schedules_sheet(records: Sequence[PipelineRecord], *, command: str = "") -> Sheet:
    """All trials, largest measured peak first."""
    ordered = sorted(records, key=_size, reverse=True)
    return Sheet(
        title=f"Pipelines, measured and predicted: {_steps(records)}",
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
            f"predicted times: profile {_profiles(records)}, as if each stage had that device for "
            f"itself; measured: {_machines(records)}, which all stages share",
            *(f"{record.trial.schedule}: {record.reason}" for record in records if record.reason),
        ),
        command=command,
    )


class _Share(NamedTuple):
    """A run's figures over those of its base: K = 1, M = 1, nothing recomputed."""

    activation: float
    throughput: float


def published_sheet(
    records: Sequence[PipelineRecord], published: pd.DataFrame, *, command: str = ""
) -> Sheet:
    """The runs of GPipe on GPT-2 beside our trials of the same settings.

    Args:
        published: the table `gpipe_gpt2_runs`.

    Raises MemtradeError where the records are of several steps, or have no trial of K = 1 and M = 1
    that keeps everything: what the others are compared with.
    """
    kept = [r for r in records if (r.trial.schedule, r.trial.strategy) == ("gpipe", KEEP)]
    if len({_step(record) for record in kept}) > 1:
        raise MemtradeError(
            f"the records are of several steps ({_steps(kept)}): give each a folder of its own"
        )
    ours = {_settings(record.trial): record for record in kept}
    base = ours.get((1, 1, "never"))
    if base is None or base.measured is None:
        raise MemtradeError(
            "there is no record of K = 1, M = 1 without recomputation, over which all others are "
            "shown: run it by `memtrade pipeline sweep`"
        )
    lines = published.to_dict("records")
    first = {
        line["implementation"]: line
        for line in lines
        if (line["partitions"], line["micro_batches"], line["strategy"]) == (1, 1, "original")
    }
    rows, weak = [], set()
    for line in lines:
        checkpoint = checkpoint_of(line["implementation"], line["strategy"])
        settings = (int(line["partitions"]), int(line["micro_batches"]), checkpoint)
        theirs = _over(line, first[line["implementation"]])
        record = ours.get(settings)
        if record is None or record.measured is None:
            weak.add(len(rows))
        rows.append(
            (
                line["implementation"],
                checkpoint,
                str(settings[0]),
                str(settings[1]),
                f"{line['peak_activation_bytes'] / MIB:,.0f}",
                *_our_bytes(record),
                f"{theirs.activation:.3f}",
                *_ours_over(record, base, attrgetter("activation_bytes")),
                f"{theirs.throughput:.3f}",
                *_ours_over(record, base, attrgetter("samples_per_second")),
            )
        )
    return Sheet(
        title=f"GPipe on GPT-2: {len(rows)} published runs beside {_steps(kept)}",
        columns=(
            "implementation",
            "checkpoint",
            "K",
            "M",
            "activation MiB: published",
            "measured",
            "predicted",
            "activation over K=1, M=1, never: published",
            "measured",
            "predicted",
            "samples/s over K=1, M=1, never: published",
            "measured",
            "predicted",
        ),
        words=2,
        rows=tuple(rows),
        weak=frozenset(weak),
        notes=(
            "published: the logs' 89,762,304 parameters on GPUs that they do not name; measured "
            f"and predicted: ours, scaled down to {base.measured.parameters:,} parameters. So only "
            "what is over K=1, M=1, never (nothing recomputed, the same implementation) is alike",
            "published bytes are what PyTorch's allocator had reserved; measured is the sum of the "
            "stages' peaks by their own allocators, less values, gradients and slots; predicted is "
            "that for simulated allocators",
            "published K = 1 and M up to 4: the logs' timers do not wait for the GPU",
            f"measured throughput: {_machines(kept)}, which all stages share, so that more "
            f"stages compute no faster; predicted: profile {_profiles(kept)} for each stage",
            f"{len(ours)} trials of ours; torchgpipe's with recomputation leaves the last "
            "micro-batch out (except_last)",
        ),
        command=command,
    )


def _settings(trial: PipelineTrial) -> tuple[int, int, Checkpoint]:
    return trial.partitions, trial.micro_batches, trial.checkpoint


def _over(line: dict[str, float], base: dict[str, float]) -> _Share:
    return _Share(
        line["peak_activation_bytes"] / base["peak_activation_bytes"],
        line["samples_per_second"] / base["samples_per_second"],
    )


def _our_bytes(record: PipelineRecord | None) -> tuple[str, str]:
    if record is None:
        return NONE, NONE
    seen = record.measured
    measured = NONE if seen is None else _mib(seen.activation_bytes)
    return measured, _mib(record.predicted.activation_bytes)


def _ours_over(
    record: PipelineRecord | None,
    base: PipelineRecord,
    value: Callable[[PipelineMeasured | PipelinePrediction], float],
) -> tuple[str, str]:
    """The value over the base's: measured, predicted."""
    if record is None or base.measured is None:
        return NONE, NONE
    predicted = value(record.predicted) / value(base.predicted)
    if record.measured is None:
        return NONE, f"{predicted:.3f}"
    return f"{value(record.measured) / value(base.measured):.3f}", f"{predicted:.3f}"


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
        NONE if seen is None else _mib(seen.peak_bytes),
        _mib(said.peak_bytes),
        NONE if seen is None else _mib(max(stage.peak_bytes for stage in seen.stages)),
        _mib(largest),
        NONE if seen is None else _mib(seen.activation_bytes),
        _mib(said.activation_bytes),
        _mib(host) if host else NONE,
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


def _step(record: PipelineRecord) -> tuple[str, int, str]:
    return record.model, record.trial.batch_size, record.trial.optimizer


def _steps(records: Sequence[PipelineRecord]) -> str:
    named = dict.fromkeys(
        f"{model}, batch {batch_size}, {optimizer}"
        for model, batch_size, optimizer in map(_step, records)
    )
    return "; ".join(named)


def _profiles(records: Sequence[PipelineRecord]) -> str:
    return ", ".join(dict.fromkeys(record.predicted.device_profile for record in records))


def _machines(records: Sequence[PipelineRecord]) -> str:
    return ", ".join(dict.fromkeys(f"{record.machine.cores} cores" for record in records))


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.1f}"
