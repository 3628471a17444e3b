"""`memtrade pipeline run`, `sweep` and `serve`: pipelined steps in processes, measured."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from memtrade.commands.progress import ignore, log
from memtrade.commands.run import Flag
from memtrade.commands.screen import stdout
from memtrade.commands.verify import differing, number
from memtrade.comparison import Verified
from memtrade.devices import device_names
from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.measure.environment import default_limit_bytes
from memtrade.measure.flags import DeviceFlags, ModelFlags, StrategyFlags, check_writable
from memtrade.measure.here import here_target, learned_target
from memtrade.measure.protocol import Progress
from memtrade.options import Value
from memtrade.pipeline.commands.partition import CutFlags, trace_step
from memtrade.pipeline.design.planned import KEEP, plan_stages
from memtrade.pipeline.design.predict import PipelinePredictor
from memtrade.pipeline.design.schedule import (
    Checkpoint,
    Schedule,
    ScheduleName,
    make_schedule,
    micro_batch_size,
)
from memtrade.pipeline.design.stages import stage_graphs
from memtrade.pipeline.design.work import has_state
from memtrade.pipeline.measure.protocol import PipelineEvent, PipelineTrial, Serving, StageDevice
from memtrade.pipeline.measure.records import (
    PipelineRecord,
    make_pipeline_record,
    save_pipeline_record,
)
from memtrade.pipeline.measure.trial import check_reachable, run_pipeline, serve_stage
from memtrade.pipeline.results.measured import device_sheet, runs_sheet
from memtrade.strategies import find_planned, make_options
from memtrade.target import ARENA, Target, profile_target
from memtrade.units import parse_bytes


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StageFlags:
    """Where the stages are.

    Attributes:
        device: arena or gpu. Each stage has a GPU of its own: stage 1 has gpu:0, and so on, or the
            one that its server was given.
        profile: A device profile, by whose rates stages are cut, planned and predicted: a name out
            of `memtrade devices`, or a .toml file. Unless given: the arena's, or the nearest to the
            card; servers elsewhere with GPUs need it said.
        memory_limit: Of each stage, such as 2GiB. Unless given: an equal share of what a single
            arena would get, or what the smallest GPU has free.
        cluster: host:port of each stage, separated by commas, where `memtrade pipeline serve` runs.
            Unless given: processes of this machine.
        timeout: Seconds that one trial may take.
    """

    device: StageDevice = "arena"
    profile: str | None = None
    memory_limit: str | None = None
    cluster: str | None = None
    timeout: float = 3600.0

    def addresses(self) -> tuple[str, ...]:
        if self.cluster is None:
            return ()
        return tuple(each.strip() for each in self.cluster.split(","))

    def target(self, stages: int) -> Target:
        """Of each stage. Raises MemtradeError where there is no such profile, or none was named
        for GPUs elsewhere."""
        limit_bytes = self.limit_bytes(stages)
        if self.cluster is None:
            name = "gpu:0" if self.device == "gpu" else ARENA
            return here_target(name, profile=self.profile, limit_bytes=limit_bytes)
        if self.profile is None and self.device == "gpu":
            raise MemtradeError(
                "stages on GPUs elsewhere are cut and planned by a device profile: name it with "
                f"--profile, one of {', '.join(device_names())} or a .toml file by "
                "`memtrade calibrate`"
            )
        return profile_target(self.profile or ARENA, limit_bytes=limit_bytes)

    def limit_bytes(self, stages: int) -> int:
        if self.device == "gpu" and self.cluster is None:
            return min(
                DeviceFlags(device=f"gpu:{i}", memory_limit=self.memory_limit).resolve()[1]
                for i in range(stages)
            )
        if self.memory_limit is None:
            return default_limit_bytes() // stages
        return parse_bytes(self.memory_limit)


@dataclass(frozen=True, kw_only=True)
class _Runner:
    """Runs trials of one model. Graphs are traced once per size of a micro-batch."""

    model: ModelFlags
    cutting: CutFlags
    where: StageFlags
    steps: int
    warmup: int
    verify: bool
    verbose: bool
    command_line: str
    strategy: str = KEEP
    options: Any = None
    deferred_batch_norm: bool = False
    graphs: dict[int, StepGraph] = field(default_factory=dict)

    def run(self, schedule: Schedule) -> PipelineRecord:
        model = self.model.make_model()
        size = micro_batch_size(model.batch_size, schedule.micro_batches)
        if size not in self.graphs:
            self.graphs[size] = trace_step(
                self.model,
                timeout_seconds=self.where.timeout,
                verbose=self.verbose,
                batch_size=size,
            )
        graph = self.graphs[size]
        target = learned_target(self.where.target(schedule.stages), [graph])
        if self.verify:
            _check_draws_nothing(graph)
        mode = schedule.checkpoint[0]
        in_flight = schedule.micro_batches if mode == "never" else 1
        partition = self.cutting.cut(graph, schedule.stages, target, in_flight=in_flight)
        stages, options = stage_graphs(graph, partition), self.options
        plans = plan_stages(stages, self.strategy, options, target)
        predicted = PipelinePredictor(graph, partition, target, stages=stages, plans=plans).predict(
            schedule, micro_batch_size=size, arenas=True
        )
        trial = PipelineTrial(
            model=self.model.model,
            model_options=dataclasses.asdict(model),
            optimizer=self.model.optimizer,
            learning_rate=self.model.learning_rate,
            partitions=schedule.stages,
            micro_batches=schedule.micro_batches,
            schedule=schedule.name,
            checkpoint=mode,
            boundaries=partition.boundaries,
            strategy=self.strategy,
            strategy_options=dataclasses.asdict(options) if options is not None else {},
            deferred_batch_norm=self.deferred_batch_norm,
            device=self.where.device,
            memory_limit_bytes=target.limit_bytes,
            cluster=self.where.addresses(),
            steps=self.steps,
            warmup=self.warmup,
            verify=self.verify,
        )
        outcome = run_pipeline(
            trial,
            partition,
            schedule,
            plans=plans,
            timeout_seconds=self.where.timeout,
            on_event=_progress,
            on_log=log if self.verbose else ignore,
        )
        return make_pipeline_record(trial, outcome, predicted, command=self.command_line)


def run(
    *,
    model: ModelFlags | None = None,
    cut: CutFlags | None = None,
    stages: StageFlags | None = None,
    partitions: int = 2,
    micro_batches: int = 8,
    schedule: ScheduleName = "gpipe",
    checkpoint: Checkpoint = "always",
    strategy: StrategyFlags | None = None,
    deferred_batch_norm: Flag = False,
    steps: int = 5,
    warmup: int = 1,
    verify: Flag = False,
    results: Path = Path("runs"),
    json: Flag = False,
    verbose: Flag = False,
    command_line: Annotated[str, Parameter(parse=False)] = "",
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
    verbose
        Pass on what TensorFlow logs.
    """
    cutting, where = cut or CutFlags(), stages or StageFlags()
    sized = cutting.sized(model or ModelFlags())
    if steps < 1 or warmup < 0:
        raise MemtradeError(f"there must be at least 1 counted step, not {steps}")
    micro_batch_size(sized.make_model().batch_size, micro_batches)
    planned = make_schedule(
        schedule, stages=partitions, micro_batches=micro_batches, checkpoint=checkpoint
    )
    name, options = _one_strategy(strategy or StrategyFlags())
    where.target(partitions)
    check_reachable(where.addresses())
    check_writable(results)
    runner = _Runner(
        model=sized,
        cutting=cutting,
        where=where,
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
    save_pipeline_record(record, results)
    _show([record], json)
    return 3 if record.status == "out_of_memory" else _exit_code([record])


def sweep(
    grid: Path,
    /,
    *,
    model_option: Annotated[list[str] | None, Parameter(negative="")] = None,
    batch_size: int | None = None,
    stages: StageFlags | None = None,
    steps: int = 3,
    warmup: int = 1,
    results: Path = Path("runs"),
    json: Flag = False,
    verbose: Flag = False,
    command_line: Annotated[str, Parameter(parse=False)] = "",
) -> int:
    """Run a grid of pipelines: partitions x micro-batches x checkpointing.

    Parameters
    ----------
    grid
        A TOML file of [[pipeline]] tables, such as sweeps/gpipe_gpt2.toml.
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
    verbose
        Pass on what TensorFlow logs.
    """
    where = stages or StageFlags()
    check_writable(results)
    plans: list[tuple[_Runner, Schedule]] = []
    for each in load_grids(grid):
        size = batch_size or each.batch_size
        options = [f"{key}={value}" for key, value in each.model_options.items()]
        flags = ModelFlags(
            model=each.model,
            batch_size=size,
            optimizer=each.optimizer,
            model_option=[*options, *(model_option or [])],
        )
        flags.make_model()
        runner = _Runner(
            model=flags,
            cutting=CutFlags(),
            where=where,
            steps=steps,
            warmup=warmup,
            verify=False,
            verbose=verbose,
            command_line=command_line,
            strategy=find_planned(each.strategy).name,
            options=make_options(each.strategy, each.strategy_options),
        )
        plans += [(runner, planned) for planned in each.schedules(size)]
    for stages_each in sorted({planned.stages for _, planned in plans}):
        where.target(stages_each)
    records: list[PipelineRecord] = []
    try:
        for number, (runner, planned) in enumerate(plans, start=1):
            k, m, mode = planned.stages, planned.micro_batches, planned.checkpoint[0]
            said = f"{planned.name} K={k} M={m} {mode}"
            said += f" {runner.strategy}" if runner.strategy != KEEP else ""
            _say(f"[{number}/{len(plans)}] {said}")
            record = runner.run(planned)
            save_pipeline_record(record, results)
            records.append(record)
    except KeyboardInterrupt:
        _say(f"stopped; {len(records)} of {len(plans)} trials had finished")
        _show(records, json)
        return 130
    _show(records, json)
    return _exit_code(records)


def serve(
    *,
    cluster: str,
    stage: int,
    device: str | None = None,
    memory_limit: str | None = None,
    verbose: Flag = False,
) -> int:
    """Serve one stage for pipelines that are driven from another machine. Ctrl-C ends it.

    Like all TensorFlow servers it listens on all interfaces, asks for no password, and runs
    whatever it is asked to: only within a network of one's own.

    Parameters
    ----------
    cluster
        host:port of all stages, in order, separated by commas: the same for every server.
    stage
        Which of them this one is, from 1.
    device
        arena or gpu:N, out of `memtrade devices`. Unless given: gpu:0 if there is one, else arena.
    memory_limit
        Of the stage, such as 2GiB.
    verbose
        Pass on what TensorFlow logs.
    """
    where = StageFlags(cluster=cluster)
    name, limit_bytes = DeviceFlags(device=device, memory_limit=memory_limit).resolve()

    def tell(event: PipelineEvent) -> None:
        if isinstance(event, Serving):
            _say(f"serving stage {event.stage + 1} at {where.addresses()[event.stage]}")

    outcome = serve_stage(
        stage - 1,
        where.addresses(),
        device=name,
        memory_limit_bytes=limit_bytes,
        on_event=tell,
        on_log=log if verbose else ignore,
    )
    _say(outcome.reason)
    return 1


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


class Grid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One [[pipeline]] table: all combinations of the lists are run."""

    model: str
    batch_size: int
    optimizer: str = "sgd"
    model_options: dict[str, Value] = {}
    partitions: tuple[int, ...]
    micro_batches: tuple[int, ...]
    schedule: ScheduleName = "gpipe"
    checkpoint: tuple[Checkpoint, ...] = ("always",)
    strategy: str = KEEP
    strategy_options: dict[str, Value] = {}

    def schedules(self, batch_size: int) -> list[Schedule]:
        """Raises MemtradeError where micro-batches do not divide the batch."""
        found = []
        for k, m, mode in itertools.product(self.partitions, self.micro_batches, self.checkpoint):
            micro_batch_size(batch_size, m)
            found.append(make_schedule(self.schedule, stages=k, micro_batches=m, checkpoint=mode))
        return found


class _Grids(msgspec.Struct, frozen=True):
    pipeline: tuple[Grid, ...]


def load_grids(path: Path) -> tuple[Grid, ...]:
    """Raises MemtradeError for a file that cannot be read or is no grid."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Grids).pipeline
    except OSError as error:
        raise MemtradeError(f"cannot read the grid {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise MemtradeError(f"{path} is no grid of pipelines: {error}") from error


def _progress(event: PipelineEvent) -> None:
    if isinstance(event, Serving) and event.exposed:
        _say(
            f"stage {event.stage + 1}'s server could not be kept to this machine: until the run "
            "ends, whoever reaches its port can run anything there"
        )
    if isinstance(event, Progress):
        _say(f"{event.phase} {event.step}/{event.of}" if event.of else event.phase)


def _say(text: str) -> None:
    print(f"memtrade: {text}", file=sys.stderr, flush=True)


def _check_draws_nothing(graph: StepGraph) -> None:
    """Each micro-batch draws numbers of its own, and the unpipelined step others."""
    drawing = next((op for op in graph.ops if has_state(op) and op.outputs), None)
    if drawing is not None:
        raise MemtradeError(
            f"--verify compares steps that draw no random numbers, and {graph.name} does "
            f"({drawing.name}): give --model-option dropout=0"
        )


def _show(records: list[PipelineRecord], json: bool) -> None:
    if json:
        encoded: Any = msgspec.json.encode(records, order="sorted")
        print(msgspec.json.format(encoded, indent=2).decode())
        return
    if not records:
        return
    console = stdout()
    if len(records) == 1 and records[0].measured is not None:
        console.print(device_sheet(records[0]).to_rich())
        verified = records[0].measured.verified
        if verified is not None:
            console.print(_verdict(verified) + "\n", markup=False)
    console.print(runs_sheet(records).to_rich())


def _verdict(found: Verified) -> str:
    said = f"off by {number(found.of_update)} of an update at most, {found.tolerance:g} allowed"
    if found.equal:
        return f"Equal to the unpipelined step: {said}"
    return f"Differs from the unpipelined step: {'; '.join(differing(found))}; {said}"


def _exit_code(records: list[PipelineRecord]) -> int:
    """Running out of memory is a result like any other in a grid, as in `memtrade run`."""
    return int(
        any(
            record.status in ("crashed", "unsupported")
            or (record.measured and record.measured.verified and not record.measured.verified.equal)
            for record in records
        )
    )
