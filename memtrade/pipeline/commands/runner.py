"""`memtrade pipeline run` and `serve`: pipelined steps in processes, measured; for `sweep`, too."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from memtrade.commands.progress import ignore, log, say
from memtrade.commands.screen import show, show_json
from memtrade.commands.verify import differing
from memtrade.comparison import Verified
from memtrade.devices import device_names
from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.measure.flags import (
    CommandLine,
    DeviceFlags,
    Flag,
    ModelFlags,
    StrategyFlags,
    Verbose,
    check_steps,
    check_writable,
)
from memtrade.measure.here import here_target, learned_target
from memtrade.measure.protocol import FAILED, Progress
from memtrade.measure.records import save_record
from memtrade.pipeline.commands.partition import CutFlags, micro_batch_graphs
from memtrade.pipeline.design.predict import PipelinePredictor
from memtrade.pipeline.design.runnable import check_runs
from memtrade.pipeline.design.schedule import (
    CheckpointMode,
    Schedule,
    ScheduleName,
    make_schedule,
    micro_batch_size,
)
from memtrade.pipeline.design.stages import KEEP, plan_stages, stage_graphs
from memtrade.pipeline.design.work import has_state
from memtrade.pipeline.measure.protocol import PipelineEvent, PipelineTrial, Serving, StageDevice
from memtrade.pipeline.measure.trial import (
    PipelineRecord,
    check_each_has_one,
    check_reachable,
    make_pipeline_record,
    pipeline_record_id,
    run_pipeline,
    serve_stage,
)
from memtrade.pipeline.results.tables import device_sheet, runs_sheet
from memtrade.results.words import number
from memtrade.strategies import find_planned
from memtrade.target import ARENA, Target, profile_target


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
        one_at_a_time: Run one stage after the other, each with zeros for what others would send.
            Peaks are the same, and memory is needed for one stage alone; times are sums.
        timeout: Seconds that one trial may take, or each stage, one at a time.
    """

    device: StageDevice = "arena"
    profile: str | None = None
    memory_limit: str | None = None
    cluster: str | None = None
    one_at_a_time: Flag = False
    timeout: float = 3600.0

    def addresses(self) -> tuple[str, ...]:
        if self.cluster is None:
            return ()
        found = tuple(each.strip() for each in self.cluster.split(","))
        if twice := next((each for each in found if found.count(each) > 1), None):
            raise MemtradeError(f"--cluster names {twice} more than once: give each stage its own")
        return found

    def target(self, stages: int) -> Target:
        """Of each stage. Raises MemtradeError where there is no such profile, or none was named
        for GPUs elsewhere, or where there are not as many servers as stages."""
        check_each_has_one(self.addresses(), stages)
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
        apart = self.device == "gpu" and self.cluster is None
        flags = DeviceFlags(memory_limit=self.memory_limit, timeout=self.timeout)
        devices = [f"gpu:{i}" for i in range(stages)] if apart else [ARENA]
        limit_bytes = min(dataclasses.replace(flags, device=d).resolve()[1] for d in devices)
        return limit_bytes if apart or self.memory_limit else limit_bytes // stages


def planned_stages(
    graph: StepGraph, cut: CutFlags, schedule: Schedule, target: Target, strategy: str, options: Any
) -> PipelinePredictor:
    """The step on a micro-batch in stages for the schedule, each planned by the strategy.

    Schedules with as many stages, and as many micro-batches held at once, have the same.
    """
    learned = learned_target(target, [graph])
    partition = cut.cut(graph, schedule.stages, learned, in_flight=schedule.held)
    stages = stage_graphs(graph, partition)
    plans = plan_stages(stages, strategy, options, learned)
    return PipelinePredictor(graph, partition, learned, stages=stages, plans=plans)


@dataclass(frozen=True, kw_only=True)
class PipelineRunner:
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

    def __post_init__(self) -> None:
        check_steps(self.steps, self.warmup)
        if self.where.one_at_a_time and (self.where.cluster or self.verify):
            raise MemtradeError(
                "--one-at-a-time runs stages apart, on this machine: without --cluster and --verify"
            )
        check_runs(self.model.make_model())
        check_reachable(self.where.addresses())

    @cached_property
    def graph_at(self) -> Callable[[int], StepGraph]:
        timeout_seconds = self.where.timeout
        return micro_batch_graphs(self.model, timeout_seconds=timeout_seconds, verbose=self.verbose)

    def run(
        self, schedule: Schedule, known: Mapping[str, PipelineRecord] | None = None
    ) -> PipelineRecord:
        """The trial's record, out of those that are known by their ids, or made now."""
        size = micro_batch_size(self.model.make_model().batch_size, schedule.micro_batches)
        graph = self.graph_at(size)
        target = self.where.target(schedule.stages)
        if self.verify:
            _check_draws_nothing(graph)
        planned = planned_stages(graph, self.cutting, schedule, target, self.strategy, self.options)
        trial = self._trial(schedule, planned)
        if found := (known or {}).get(pipeline_record_id(trial)):
            say("measured before")
            return found
        predicted = planned.predict(schedule, micro_batch_size=size, arenas=True)
        outcome = run_pipeline(
            trial,
            planned.partition,
            schedule,
            plans=planned.plans,
            timeout_seconds=self.where.timeout,
            on_event=_progress,
            on_log=log if self.verbose else ignore,
        )
        return make_pipeline_record(trial, outcome, predicted, command=self.command_line)

    def _trial(self, schedule: Schedule, planned: PipelinePredictor) -> PipelineTrial:
        model, where = self.model.make_model(), self.where
        return PipelineTrial(
            model=model.family,
            model_options=dataclasses.asdict(model),
            optimizer=self.model.optimizer,
            learning_rate=self.model.learning_rate,
            partitions=schedule.stages,
            micro_batches=schedule.micro_batches,
            schedule=schedule.name,
            checkpoint=schedule.checkpoint,
            boundaries=planned.partition.boundaries,
            strategy=self.strategy,
            strategy_options=dataclasses.asdict(self.options) if self.options is not None else {},
            deferred_batch_norm=self.deferred_batch_norm,
            device=where.device,
            memory_limit_bytes=planned.target.limit_bytes,
            cluster=where.addresses(),
            steps=self.steps,
            warmup=self.warmup,
            verify=self.verify,
            one_at_a_time=where.one_at_a_time,
        )


def _progress(event: PipelineEvent) -> None:
    if isinstance(event, Serving) and event.exposed:
        say(
            f"stage {event.stage + 1}'s server could not be kept to this machine: until the run "
            "ends, whoever reaches its port can run anything there"
        )
    if isinstance(event, Progress):
        say(f"{event.phase} {event.step}/{event.of}" if event.of else event.phase)


def _check_draws_nothing(graph: StepGraph) -> None:
    """Each micro-batch draws numbers of its own, and the unpipelined step others."""
    drawing = next((op for op in graph.ops if has_state(op) and op.outputs), None)
    if drawing is not None:
        raise MemtradeError(
            f"--verify compares steps that draw no random numbers, and {graph.name} does "
            f"({drawing.name}): give --model-option dropout=0"
        )


def show_records(records: list[PipelineRecord], json: bool) -> None:
    if json:
        show_json(records)
        return
    if len(records) == 1 and (measured := records[0].measured) is not None:
        show([device_sheet(records[0])])
        if measured.verified is not None:
            print(_verdict(measured.verified) + "\n")
    if records:
        show([runs_sheet(records)])


def _verdict(found: Verified) -> str:
    said = f"off by {number(found.of_update)} of an update at most, {found.tolerance:g} allowed"
    if found.equal:
        return f"Equal to the unpipelined step: {said}"
    return f"Differs from the unpipelined step: {'; '.join(differing(found))}; {said}"


def exit_code(records: list[PipelineRecord]) -> int:
    """Running out of memory is a result like any other in a grid, as in `memtrade run`."""
    return int(
        any(
            record.status in {*FAILED, "unsupported"}
            or (record.measured and record.measured.verified and not record.measured.verified.equal)
            for record in records
        )
    )


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
    cut.stages(partitions)
    micro_batch_size(sized.make_model().batch_size, micro_batches)
    planned = make_schedule(
        schedule, stages=partitions, micro_batches=micro_batches, checkpoint=checkpoint
    )
    name, options = _one_strategy(strategy)
    stages.target(partitions)
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


def serve(
    *,
    cluster: str,
    stage: int,
    device: str | None = None,
    memory_limit: str | None = None,
    verbose: Verbose = False,
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
    """
    where = StageFlags(cluster=cluster)
    name, limit_bytes = DeviceFlags(device=device, memory_limit=memory_limit).resolve()

    def tell(event: PipelineEvent) -> None:
        if isinstance(event, Serving):
            say(f"serving stage {event.stage + 1} at {where.addresses()[event.stage]}")

    outcome = serve_stage(
        stage - 1,
        where.addresses(),
        device=name,
        memory_limit_bytes=limit_bytes,
        on_event=tell,
        on_log=log if verbose else ignore,
    )
    say(outcome.reason)
    return 1
