"""`memtrade pipeline sweep`: a grid of pipelined steps, measured one after the other."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from memtrade.commands.reading import warnings_on_stderr
from memtrade.errors import MemtradeError
from memtrade.measure.flags import CommandLine, Flag, ModelFlags, Verbose, check_writable
from memtrade.measure.records import save_record
from memtrade.options import Value
from memtrade.pipeline.commands.partition import CutFlags
from memtrade.pipeline.commands.runner import (
    PipelineRunner,
    StageFlags,
    exit_code,
    say,
    show_records,
)
from memtrade.pipeline.design.schedule import (
    CheckpointMode,
    Schedule,
    ScheduleName,
    make_schedule,
    micro_batch_size,
)
from memtrade.pipeline.design.stages import KEEP
from memtrade.pipeline.measure.trial import PipelineRecord
from memtrade.strategies import find_planned, make_options
from memtrade.sweep.shipped import sweep_file


def sweep(
    grid: Path,
    /,
    *,
    model_option: Annotated[list[str] | None, Parameter(negative="")] = None,
    batch_size: int | None = None,
    stages: StageFlags = StageFlags(),
    steps: int = 3,
    warmup: int = 1,
    results: Path = Path("runs"),
    json: Flag = False,
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Run a grid of pipelines: partitions x micro-batches x checkpointing.

    Goes on where it was stopped: what ran, or ran out of memory, by this version on this machine
    is not run again.

    Parameters
    ----------
    grid
        A TOML file of [[pipeline]] tables, or the name of one that comes with memtrade: gpipe_gpt2,
        pipeline_schedules, torchgpipe_at_size.
    model_option
        An option of the model as key=value, to scale it down; repeatable.
    batch_size
        In place of the grid's.
    steps
        Counted steps of each trial.
    warmup
        Steps before those.
    results
        The folder for the records.
    json
        Print the records to stdout as JSON, and no table.
    """
    check_writable(results)
    plans: list[tuple[PipelineRunner, Schedule]] = []
    for each in load_grids(sweep_file(grid, table="pipeline")):
        size = batch_size or each.batch_size
        runner = PipelineRunner(
            model=each.flags(size, model_option or []),
            cutting=CutFlags(),
            where=stages,
            steps=steps,
            warmup=warmup,
            verify=False,
            verbose=verbose,
            command_line=command_line,
            strategy=find_planned(each.strategy).name,
            options=make_options(each.strategy, each.strategy_options),
        )
        plans += [(runner, planned) for planned in each.schedules(size)]
    if not plans:
        raise MemtradeError(f"{grid} makes no trials: a list in it is empty")
    for count in sorted({planned.stages for _, planned in plans}):
        stages.target(count)
    records: list[PipelineRecord] = []
    stopped = False
    try:
        _run_all(plans, results, records)
    except KeyboardInterrupt:
        stopped = True
        say(f"stopped; {len(records)} of {len(plans)} trials had finished")
    except MemtradeError:  # such as a full disk: what was measured is said at least
        if records:
            show_records(records, json)
        raise
    show_records(records, json)
    return 130 if stopped else exit_code(records)


def _run_all(
    plans: Sequence[tuple[PipelineRunner, Schedule]], results: Path, records: list[PipelineRecord]
) -> None:
    """Appends to `records` those of the trials as they end."""
    with warnings_on_stderr():
        found = PipelineRecord.load(results) if results.is_dir() else []
    known = {each.id: each for each in found if each.status in ("ok", "out_of_memory")}
    for number, (runner, planned) in enumerate(plans, start=1):
        k, m, mode = planned.stages, planned.micro_batches, planned.checkpoint
        said = f"{planned.name} K={k} M={m} {mode}"
        said += f" {runner.strategy}" if runner.strategy != KEEP else ""
        say(f"[{number}/{len(plans)}] {said}")
        records.append(runner.run(planned, known))
        save_record(records[-1], results)


class PipelineGrid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One [[pipeline]] table: all combinations of the lists are run."""

    model: str
    batch_size: int
    optimizer: str = "sgd"
    model_options: dict[str, Value] = {}
    partitions: tuple[int, ...]
    micro_batches: tuple[int, ...]
    schedule: ScheduleName = "gpipe"
    checkpoint: tuple[CheckpointMode, ...] = ("always",)
    strategy: str = KEEP
    strategy_options: dict[str, Value] = {}

    def flags(self, batch_size: int, more_options: Sequence[str]) -> ModelFlags:
        """Which step. Raises MemtradeError for what does not exist or is out of bounds."""
        options = [f"{key}={value}" for key, value in self.model_options.items()]
        flags = ModelFlags(
            model=self.model,
            batch_size=batch_size,
            optimizer=self.optimizer,
            model_option=[*options, *more_options],
        )
        flags.make_model()
        return flags

    def schedules(self, batch_size: int) -> list[Schedule]:
        """Raises MemtradeError where micro-batches do not divide the batch."""
        found = []
        for k, m, mode in itertools.product(self.partitions, self.micro_batches, self.checkpoint):
            micro_batch_size(batch_size, m)
            found.append(make_schedule(self.schedule, stages=k, micro_batches=m, checkpoint=mode))
        return found


class _Grids(msgspec.Struct, frozen=True):
    pipeline: tuple[PipelineGrid, ...]


def load_grids(path: Path) -> tuple[PipelineGrid, ...]:
    """Raises MemtradeError for a file that cannot be read or is no grid."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Grids).pipeline
    except OSError as error:
        raise MemtradeError(f"cannot read the grid {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MemtradeError(f"{path} is no grid of pipelines: {error}") from error
