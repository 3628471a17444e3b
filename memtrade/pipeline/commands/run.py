"""`memtrade pipeline run`: a pipelined step in processes, measured."""

from pathlib import Path
from typing import Any

from memtrade.errors import MemtradeError
from memtrade.measure.flags import (
    CommandLine,
    Flag,
    ModelFlags,
    StrategyFlags,
    Verbose,
    check_writable,
)
from memtrade.measure.records import save_record
from memtrade.pipeline.commands.partition import CutFlags
from memtrade.pipeline.commands.runner import PipelineRunner, StageFlags, exit_code, show_records
from memtrade.pipeline.design.schedule import (
    CheckpointMode,
    ScheduleName,
    make_schedule,
    micro_batch_size,
)
from memtrade.pipeline.design.stages import KEEP
from memtrade.pipeline.measure.trial import check_reachable
from memtrade.strategies import find_planned


def run(
    *,
    model: ModelFlags = ModelFlags(),
    cut: CutFlags = CutFlags(),
    stages: StageFlags = StageFlags(),
    partitions: int = 2,
    micro_batches: int = 8,
    schedule: ScheduleName = "gpipe",
    checkpoint: CheckpointMode = "always",
    strategy: StrategyFlags = StrategyFlags(),
    deferred_batch_norm: Flag = False,
    steps: int = 5,
    warmup: int = 1,
    verify: Flag = False,
    results: Path = Path("runs"),
    json: Flag = False,
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Run a step as a pipeline, each stage a TensorFlow server with an arena of its own.

    Measures the peak of each stage, forward and backward time and throughput, beside what the
    simulator said. A strategy plans each stage by itself: what is swapped, say; unless --strategy
    is given, stages keep what the schedule does not recompute. A stage that dies or runs out of
    memory is a result that names it.

    Parameters
    ----------
    partitions
        How many stages.
    micro_batches
        Into how many to split the batch.
    schedule
        gpipe or 1f1b.
    checkpoint
        always recomputes all micro-batches, except_last all but the last one, never none.
    deferred_batch_norm
        Move batch norm's averages once per step, by the whole batch's mean and variance, and not
        by each micro-batch's.
    steps
        Counted steps; times are their medians.
    warmup
        Steps before those.
    verify
        Compare variables and losses with the unpipelined step's, in the driver, by the share of its
        update by which a variable is off. The exit status is 1 where they differ.
    results
        The folder for the record.
    json
        Print the record to stdout as JSON, and no table.
    """
    sized = cut.sized(model)
    micro_batch_size(sized.make_model().batch_size, micro_batches)
    planned = make_schedule(
        schedule, stages=partitions, micro_batches=micro_batches, checkpoint=checkpoint
    )
    name, options = _one_strategy(strategy)
    stages.target(partitions)
    check_reachable(stages.addresses())
    check_writable(results)
    runner = PipelineRunner(
        model=sized,
        cutting=cut,
        where=stages,
        steps=steps,
        warmup=warmup,
        verify=verify,
        verbose=verbose,
        command_line=command_line,
        strategy=name,
        options=options,
        deferred_batch_norm=deferred_batch_norm,
    )
    record = runner.run(planned)
    save_record(record, results)
    show_records([record], json)
    return exit_code([record])


def _one_strategy(flags: StrategyFlags) -> tuple[str, Any]:
    """The strategy that plans the stages, and its options.

    Raises MemtradeError for several, for one without a plan, and for an order of the executor's.
    """
    names = flags.names(default=[KEEP])
    if len(names) != 1:
        raise MemtradeError(f"a pipeline's stages take one strategy, not {', '.join(names)}")
    if flags.order != "pinned":
        raise MemtradeError(f"stages run in one fixed order: --order {flags.order} is not for them")
    find_planned(names[0])
    return names[0], flags.typed_options(names)[names[0]]
