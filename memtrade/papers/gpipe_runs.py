"""GPipe on GPT-2: a row per published run, with our trial of the same settings beside it.

What was measured, predicted and published stands in columns of its own, named so. Nothing is
measured or simulated again here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import pandas as pd

from memtrade.errors import MemtradeError
from memtrade.papers.pipelines import checkpoint_of
from memtrade.pipeline.design.planned import KEEP
from memtrade.pipeline.design.predict import PipelinePrediction
from memtrade.pipeline.design.schedule import CheckpointMode
from memtrade.pipeline.measure.protocol import PipelineMeasured, PipelineTrial
from memtrade.pipeline.measure.records import PipelineRecord
from memtrade.pipeline.results.measured import (
    MIB,
    machines_text,
    mib,
    profiles_text,
    step_of,
    steps_text,
)
from memtrade.results.sheets import NONE, Sheet

# The published table whose rows our trials can stand beside.
PUBLISHED_RUNS = "gpipe_gpt2_runs"


_COLUMNS = (
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
)

RunKey = tuple[int, int, CheckpointMode]
LogRow = dict[Any, Any]


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
    if len({step_of(record) for record in kept}) > 1:
        raise MemtradeError(
            f"the records are of several steps ({steps_text(kept)}): give each a folder of its own"
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
    beside = [ours.get(_settings_of(line)) for line in lines]
    return Sheet(
        title=f"GPipe on GPT-2: {len(lines)} published runs beside {steps_text(kept)}",
        columns=_COLUMNS,
        words=2,
        rows=tuple(
            _row(line, first[line["implementation"]], record, base)
            for line, record in zip(lines, beside, strict=True)
        ),
        weak=frozenset(i for i, r in enumerate(beside) if r is None or r.measured is None),
        notes=_notes(kept, base.measured, trials=len(ours)),
        command=command,
    )


def _row(
    line: LogRow, first: LogRow, record: PipelineRecord | None, base: PipelineRecord
) -> tuple[str, ...]:
    """A published run over the implementation's first, and our trial over our base."""
    partitions, micro_batches, checkpoint = _settings_of(line)

    def over_first(name: str) -> str:
        return f"{line[name] / first[name]:.3f}"

    return (
        line["implementation"],
        checkpoint,
        str(partitions),
        str(micro_batches),
        f"{line['peak_activation_bytes'] / MIB:,.0f}",
        *_our_bytes(record),
        over_first("peak_activation_bytes"),
        *_ours_over(record, base, attrgetter("activation_bytes")),
        over_first("samples_per_second"),
        *_ours_over(record, base, attrgetter("samples_per_second")),
    )


def _notes(
    kept: Sequence[PipelineRecord], base: PipelineMeasured, *, trials: int
) -> tuple[str, ...]:
    return (
        "published: the logs' 89,762,304 parameters on V100s; measured "
        f"and predicted: ours, scaled down to {base.parameters:,} parameters. So only "
        "what is over K=1, M=1, never (nothing recomputed, the same implementation) is alike",
        "published bytes are what PyTorch's allocator had reserved; measured is the sum of the "
        "stages' peaks by their own allocators, less values, gradients and slots; predicted is "
        "that for simulated allocators",
        "published K = 1 and M up to 4: the logs' timers do not wait for the GPU",
        f"measured throughput: {machines_text(kept)}, which all stages share, so that more "
        f"stages compute no faster; predicted: profile {profiles_text(kept)} for each stage",
        f"{trials} trials of ours; torchgpipe's with recomputation leaves the last "
        "micro-batch out (except_last)",
    )


def _settings(trial: PipelineTrial) -> RunKey:
    return trial.partitions, trial.micro_batches, trial.checkpoint


def _settings_of(line: LogRow) -> RunKey:
    checkpoint = checkpoint_of(line["implementation"], line["strategy"])
    return int(line["partitions"]), int(line["micro_batches"]), checkpoint


def _our_bytes(record: PipelineRecord | None) -> tuple[str, str]:
    if record is None:
        return NONE, NONE
    seen = record.measured
    measured = NONE if seen is None else mib(seen.activation_bytes)
    return measured, mib(record.predicted.activation_bytes)


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
