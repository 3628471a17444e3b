"""What the pipeline commands share: where the stages are, trials, what is shown."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cyclopts import Parameter

from memtrade.commands.progress import ignore, log, say
from memtrade.commands.screen import show, show_json
from memtrade.commands.verify import differing
from memtrade.comparison import Verified
from memtrade.devices import device_names
from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.measure.flags import DeviceFlags, Flag, ModelFlags, check_steps
from memtrade.measure.here import here_target, learned_target
from memtrade.measure.protocol import Progress
from memtrade.models import Model
from memtrade.pipeline.commands.partition import CutFlags, micro_batch_graphs
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.predict import PipelinePredictor
from memtrade.pipeline.design.schedule import Schedule, micro_batch_size
from memtrade.pipeline.design.stages import KEEP, plan_stages, stage_graphs
from memtrade.pipeline.design.work import has_state
from memtrade.pipeline.measure.protocol import PipelineEvent, PipelineTrial, Serving, StageDevice
from memtrade.pipeline.measure.records import (
    PipelineRecord,
    make_pipeline_record,
    pipeline_record_id,
)
from memtrade.pipeline.measure.trial import run_pipeline
from memtrade.pipeline.results.tables import device_sheet, runs_sheet
from memtrade.results.words import number
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

    @cached_property
    def graph_at(self) -> Callable[[int], StepGraph]:
        timeout_seconds = self.where.timeout
        return micro_batch_graphs(self.model, timeout_seconds=timeout_seconds, verbose=self.verbose)

    def run(
        self, schedule: Schedule, known: Mapping[str, PipelineRecord] | None = None
    ) -> PipelineRecord:
        """The trial's record, out of those that are known by their ids, or made now."""
        model = self.model.make_model()
        if self.where.one_at_a_time and (self.where.cluster or self.verify):
            raise MemtradeError(
                "--one-at-a-time runs stages apart, on this machine: without --cluster and --verify"
            )
        size = micro_batch_size(model.batch_size, schedule.micro_batches)
        graph = self.graph_at(size)
        if not graph.data.inputs:
            raise MemtradeError(
                f"{graph.name} draws its batch itself, and a pipeline splits one that it is given: "
                "leave draw_batch out"
            )
        target = self.where.target(schedule.stages)
        if self.verify:
            _check_draws_nothing(graph)
        planned = planned_stages(graph, self.cutting, schedule, target, self.strategy, self.options)
        trial = self._trial(model, schedule, planned.partition, target)
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

    def _trial(
        self, model: Model, schedule: Schedule, partition: Partition, target: Target
    ) -> PipelineTrial:
        return PipelineTrial(
            model=model.family,
            model_options=dataclasses.asdict(model),
            optimizer=self.model.optimizer,
            learning_rate=self.model.learning_rate,
            partitions=schedule.stages,
            micro_batches=schedule.micro_batches,
            schedule=schedule.name,
            checkpoint=schedule.checkpoint,
            boundaries=partition.boundaries,
            strategy=self.strategy,
            strategy_options=dataclasses.asdict(self.options) if self.options is not None else {},
            deferred_batch_norm=self.deferred_batch_norm,
            device=self.where.device,
            memory_limit_bytes=target.limit_bytes,
            cluster=self.where.addresses(),
            steps=self.steps,
            warmup=self.warmup,
            verify=self.verify,
            one_at_a_time=self.where.one_at_a_time,
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
    if not records:
        return
    if len(records) == 1 and records[0].measured is not None:
        show([device_sheet(records[0])])
        verified = records[0].measured.verified
        if verified is not None:
            print(_verdict(verified) + "\n")
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
            record.status in ("crashed", "unsupported")
            or (record.measured and record.measured.verified and not record.measured.verified.equal)
            for record in records
        )
    )
