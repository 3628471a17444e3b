"""GPipe on GPT-2: a row per published run, with our trial of the same settings beside it.

What was measured, predicted and published stands in columns of its own, named so. Nothing is
measured or simulated again here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from memtrade.errors import MemtradeError
from memtrade.papers.pipelines import checkpoint_of
from memtrade.pipeline.design.predict import PipelinePrediction
from memtrade.pipeline.design.schedule import CheckpointMode
from memtrade.pipeline.design.stages import KEEP
from memtrade.pipeline.measure.protocol import PipelineMeasured
from memtrade.pipeline.measure.trial import PipelineRecord
from memtrade.pipeline.results.tables import (
    MIB,
    about_notes,
    machines_text,
    mib,
    profiles_text,
    step_of,
    steps_text,
)
from memtrade.results.sheets import Sheet, cell

# The published table whose rows our trials can stand beside.
PUBLISHED_RUNS = "gpipe_gpt2_runs"

RunKey = tuple[int, int, CheckpointMode]
LogRow = dict[Any, Any]
# A published run, and our trial of the same settings if there is one.
Beside = tuple[LogRow, PipelineRecord | None]
Column = tuple[str, Callable[[Beside], str]]
Totals = PipelineMeasured | PipelinePrediction


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
    trials = ((record.trial, record) for record in kept)
    ours = {(t.partitions, t.micro_batches, t.checkpoint): record for t, record in trials}
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
    return Sheet.of(
        [(line, ours.get(_settings_of(line))) for line in lines],
        _columns(first, base),
        title=f"GPipe on GPT-2: {len(lines)} published runs beside {steps_text(kept)}",
        words=2,
        weak=lambda it: it[1] is None or it[1].measured is None,
        notes=_notes(kept, base.measured, trials=len(ours)),
        command=command,
    )


def _columns(first: dict[str, LogRow], base: PipelineRecord) -> list[Column]:
    """`first`: of each implementation, the run over which its others are shown."""

    def over_first(name: str) -> Callable[[Beside], str]:
        return lambda it: f"{it[0][name] / first[it[0]['implementation']][name]:.3f}"

    def ours(text: Callable[[Totals, Totals], str]) -> tuple[Column, Column]:
        """What was measured and predicted of our trial: `text` gets that, and the base's."""
        seen, said = base.measured, base.predicted
        assert seen is not None
        return (
            ("measured", lambda it: cell(lambda of: text(of, seen), it[1] and it[1].measured)),
            ("predicted", lambda it: cell(lambda of: text(of.predicted, said), it[1])),
        )

    memory, speed = "peak_activation_bytes", "samples_per_second"
    return [
        ("implementation", lambda it: it[0]["implementation"]),
        ("checkpoint", lambda it: _settings_of(it[0])[2]),
        ("K", lambda it: str(_settings_of(it[0])[0])),
        ("M", lambda it: str(_settings_of(it[0])[1])),
        ("activation MiB: published", lambda it: f"{it[0][memory] / MIB:,.0f}"),
        *ours(lambda of, _: mib(of.activation_bytes, of.bound)),
        ("activation over K=1, M=1, never: published", over_first(memory)),
        *ours(lambda of, base: f"{of.activation_bytes / base.activation_bytes:.3f}"),
        ("samples/s over K=1, M=1, never: published", over_first(speed)),
        *ours(lambda of, base: f"{of.samples_per_second / base.samples_per_second:.3f}"),
    ]


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
        *about_notes(kept),
        "published K = 1 and M up to 4: the logs' timers do not wait for the GPU",
        f"measured throughput: {machines_text(kept)}, which all stages share, so that more "
        f"stages compute no faster; predicted: profile {profiles_text(kept)} for each stage",
        f"{trials} trials of ours; torchgpipe's with recomputation leaves the last "
        "micro-batch out (except_last)",
    )


def _settings_of(line: LogRow) -> RunKey:
    checkpoint = checkpoint_of(line["implementation"], line["strategy"])
    return int(line["partitions"]), int(line["micro_batches"]), checkpoint
