"""What a pipelined step will need and how long it will take, before it runs.

    graph on one micro-batch ─► partition ─► stages ─► work ─┬─► memory of each stage
                                             schedule ───────┴─► timing

Predicted, for a named device; nothing here is measured. Memory, in live bytes (an allocator adds
padding and holes, see `arena.py`):

    in use = parameters, constants, batch           all the time
           + what each micro-batch under way left   held, or where it is recomputed only received
           + what the task at work takes            forward, or recomputation and backward

Assumed: the whole batch lies on the stages that read it; what a stage has sent leaves when its task
ends; a stage receives a tensor when it starts the task that reads it. Time:

    host      starts a task's ops, one after the other, and runs ahead of the device
    device    computes one task at a time, in the schedule's order
    link      one per stage: what it sends leaves in turn, beside computation

A task starts when its stage is free, what it receives is there and its host has come to it; it ends
when the device is done and the host has started its last op. In one process, as in torchgpipe,
whose threads share Python's interpreter, one host starts the forward ops and recomputations of all
stages, by the clock; backward ops are started by a thread per device. In processes of their own,
each stage has its own host. Assumed: links do not slow each other down; sending takes the sender's
device no time. The update follows when the stage's last task has ended.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from memtrade.devices import Device
from memtrade.graph import StepGraph
from memtrade.pipeline.design.arena import arena_peak
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.schedule import (
    CheckpointMode,
    Message,
    Schedule,
    ScheduleName,
    StageTask,
    receives,
    sends,
)
from memtrade.pipeline.design.stages import StageGraph, stage_graphs
from memtrade.pipeline.design.work import (
    StageBytes,
    StageSeconds,
    StageTimer,
    Timer,
    stage_bytes,
)
from memtrade.plan import Action
from memtrade.target import Target


class StageMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage needs.

    Attributes:
        parameter_bytes: values, gradients and slots of its variables.
        peak_bytes: most live bytes at once, or, if `allocator` says so, most bytes in use in an
            arena. activation_bytes: of that, all but the parameters.
        peak_task: the task at the peak.
        in_flight: most micro-batches under way at once.
        host_bytes: most bytes in host memory at once, where a strategy swaps.
    """

    parameter_bytes: int
    activation_bytes: int
    peak_bytes: int
    peak_task: StageTask
    in_flight: int
    host_bytes: int
    allocator: bool = False


class StageTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What several stages take together, each at its own peak, as published totals are."""

    stages: tuple[Any, ...]

    @property
    def peak_bytes(self) -> int:
        return sum(stage.peak_bytes for stage in self.stages)

    @property
    def parameter_bytes(self) -> int:
        return sum(stage.parameter_bytes for stage in self.stages)

    @property
    def activation_bytes(self) -> int:
        return sum(stage.activation_bytes for stage in self.stages)


def stage_memory(work: StageBytes, schedule: Schedule, stage: int) -> StageMemory:
    """Walks the stage's tasks. O(tasks x micro-batches under way)."""
    always = work.constants + work.batch * schedule.micro_batches
    left: dict[int, int] = {}  # micro-batch under way -> bytes that its last task left
    outside: dict[int, int] = {}  # micro-batch under way -> of it in host memory
    peaks: list[tuple[int, StageTask]] = []
    in_flight = host = 0
    for task in schedule.tasks[stage]:
        i = task.micro_batch
        left.pop(i, None)
        lying = always + sum(left.values())
        if task.kind == "backward":
            peaks.append((lying + work.backward, task))
            outside.pop(i, None)
        elif task.kind == "forward" and schedule.recomputes(i):
            peaks.append((lying + work.received + work.bare_forward, task))
            left[i], outside[i] = work.received, 0
        else:
            peaks.append((lying + work.received + work.forward, task))
            left[i], outside[i] = work.held, work.swapped
        in_flight = max(in_flight, len(left))
        host = max(host, sum(outside.values()))
    most, peak_task = max(peaks, key=lambda peak: peak[0])
    return StageMemory(
        parameter_bytes=work.parameters,
        activation_bytes=most,
        peak_bytes=work.parameters + most,
        peak_task=peak_task,
        in_flight=in_flight,
        host_bytes=host,
    )


Hosts = Literal["own", "shared"]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When things happen in one step.

    Attributes:
        start_seconds, end_seconds: for each stage, of its tasks in order.
        forward_seconds: until the last forward task has ended.
        step_seconds: until the last update has.
        busy_seconds: for each stage, how long it computes (recomputation and update included).
        recompute_seconds: for each stage, the part of it that is recomputation.
        bubble: the share of the stages' time in which they do not compute, from 0 to 1.
    """

    start_seconds: tuple[tuple[float, ...], ...]
    end_seconds: tuple[tuple[float, ...], ...]
    forward_seconds: float
    step_seconds: float
    busy_seconds: tuple[float, ...]
    recompute_seconds: tuple[float, ...]
    bubble: float


def simulate_timing(
    schedule: Schedule,
    partition: Partition,
    seconds: Sequence[StageSeconds],
    *,
    link_bytes_per_s: float,
    hosts: Hosts = "own",
) -> Timing:
    """One step, event by event. O(tasks x crossings)."""
    return _Simulation(schedule, partition, seconds, link_bytes_per_s, hosts).run()


class _Simulation:
    def __init__(
        self,
        schedule: Schedule,
        partition: Partition,
        seconds: Sequence[StageSeconds],
        link_bytes_per_s: float,
        hosts: Hosts,
    ):
        self.schedule, self.partition, self.seconds = schedule, partition, seconds
        self.rate, self.hosts = link_bytes_per_s, hosts
        stages = range(schedule.stages)
        self.device_free, self.host_free, self.link_free = ([0.0] * len(stages) for _ in range(3))
        self.shared_free = 0.0
        self.arrived: dict[Message, float] = {}
        self.ran: list[list[tuple[float, float]]] = [[] for _ in stages]  # start and end of tasks

    def run(self) -> Timing:
        # By the clock, and within a stage in order, what a task receives has been sent before.
        tasks = [(task, j) for j, own in enumerate(self.schedule.tasks) for task in own]
        for task, stage in sorted(tasks, key=lambda each: (each[0].clock, each[1])):
            self._run(stage, task)
        return self._timing()

    def _run(self, stage: int, task: StageTask) -> None:
        arriving = receives(self.partition, stage, task)
        there = max((self.arrived[message] for message in arriving), default=0.0)
        seconds = self.seconds[stage].of(task, self.schedule)
        shared = self.hosts == "shared" and task.kind != "backward"
        begun = self.shared_free if shared else max(self.host_free[stage], there)
        start = max(self.device_free[stage], there, begun)
        end = max(start + seconds.device, begun + seconds.host)
        self.device_free[stage] = end
        if shared:
            self.shared_free = begun + seconds.host
        else:
            self.host_free[stage] = begun + seconds.host
        self.ran[stage].append((start, end))
        for message in sends(self.partition, stage, task):
            leaves = max(end, self.link_free[stage])
            self.link_free[stage] = leaves + message.size_bytes / self.rate
            self.arrived[message] = self.link_free[stage]

    def _timing(self) -> Timing:
        updates = [max(work.update.device, work.update.host) for work in self.seconds]
        step = max(free + update for free, update in zip(self.device_free, updates, strict=True))
        forward, busy, recomputing = 0.0, [], []
        for own, ran, update in zip(self.schedule.tasks, self.ran, updates, strict=True):
            kinds = [task.kind for task in own]
            spans = [end - start for start, end in ran]
            ended = (end for kind, (_, end) in zip(kinds, ran, strict=True) if kind == "forward")
            forward = max(forward, *ended)
            busy.append(sum(spans) + update)
            again = (span for kind, span in zip(kinds, spans, strict=True) if kind == "recompute")
            recomputing.append(sum(again))
        return Timing(
            start_seconds=tuple(tuple(start for start, _ in ran) for ran in self.ran),
            end_seconds=tuple(tuple(end for _, end in ran) for ran in self.ran),
            forward_seconds=forward,
            step_seconds=step,
            busy_seconds=tuple(busy),
            recompute_seconds=tuple(recomputing),
            bubble=1 - sum(busy) / (len(busy) * step) if step else 0.0,
        )


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a step as a pipeline.

    `strategy` plans each stage; "original" leaves them as they are.
    """

    partitions: int
    micro_batches: int
    schedule: ScheduleName
    checkpoint: CheckpointMode
    strategy: str = "original"


class PipelinePrediction(StageTotals, frozen=True, kw_only=True):
    """One step of one schedule, as the simulator sees it.

    Attributes:
        device_profile: whose rates it is.
        batch_size: of the whole batch.
        stages: for each stage, what it needs.
        fits: for each stage, whether that is no more than the limit.
    """

    device_profile: str
    batch_size: int
    stages: tuple[StageMemory, ...]
    fits: tuple[bool, ...]
    timing: Timing

    @property
    def samples_per_second(self) -> float:
        return self.batch_size / self.timing.step_seconds


# A stage, the whole step's graph, the target and the stage's plan -> its seconds and its bytes.
Kernels = Callable[[StageGraph, StepGraph, Target, Sequence[Action]], tuple[Timer, StageBytes]]


def own_kernels(
    stage: StageGraph, whole: StepGraph, target: Target, plan: Sequence[Action]
) -> tuple[Timer, StageBytes]:
    """As TensorFlow runs them, one by one."""
    return StageTimer(stage, whole, target, plan), stage_bytes(stage, target, plan)


class PipelinePredictor:
    """Predicts schedules of one partition of one graph, whose stages are all on such a target.

    Args:
        graph: of the step on one micro-batch.
        stages: of the partition, if they are there already.
        kernels: what a stage takes by its ops' kernels; by default as TensorFlow runs them.
        plans: for each stage, the actions of a plan of its graph; none keep every activation
            between a forward and its backward task.
    """

    def __init__(
        self,
        graph: StepGraph,
        partition: Partition,
        target: Target,
        *,
        stages: Sequence[StageGraph] | None = None,
        plans: Sequence[Sequence[Action]] | None = None,
        kernels: Kernels = own_kernels,
    ):
        self.graph, self.partition, self.target = graph, partition, target
        self.plans = plans or [()] * len(partition.stages)
        self.stages = tuple(stages or stage_graphs(graph, partition))
        made = [
            kernels(stage, graph, target, plan)
            for stage, plan in zip(self.stages, self.plans, strict=True)
        ]
        self._timers, self.bytes = zip(*made, strict=True)
        self.set_device(target.device)

    def set_device(self, device: Device) -> None:
        """Other rates from here on. The bytes stay those of the target's kernels."""
        self.device = device
        self.seconds = tuple(timer.seconds(device) for timer in self._timers)

    def predict(
        self,
        schedule: Schedule,
        *,
        micro_batch_size: int,
        link_bytes_per_s: float | None = None,
        hosts: Hosts = "own",
        arenas: bool = False,
    ) -> PipelinePrediction:
        """One step.

        Args:
            micro_batch_size: what the graph was traced for.
            link_bytes_per_s: between stages; by default as between the device and the host.
            arenas: peaks by the target's allocator, not in live bytes.
        """
        stages = tuple(stage_memory(b, schedule, i) for i, b in enumerate(self.bytes))
        if arenas:
            stages = tuple(self._in_arena(each, schedule, i) for i, each in enumerate(stages))
        return PipelinePrediction(
            device_profile=self.device.name,
            batch_size=micro_batch_size * schedule.micro_batches,
            stages=stages,
            fits=tuple(each.peak_bytes <= self.target.limit_bytes for each in stages),
            timing=simulate_timing(
                schedule,
                self.partition,
                self.seconds,
                link_bytes_per_s=link_bytes_per_s or self.device.device_to_host_bytes_per_s,
                hosts=hosts,
            ),
        )

    def _in_arena(self, needed: StageMemory, schedule: Schedule, stage: int) -> StageMemory:
        peak = arena_peak(
            self.graph,
            self.partition,
            self.stages[stage],
            schedule,
            stage,
            self.target,
            self.plans[stage],
        )
        return msgspec.structs.replace(
            needed, peak_bytes=peak, activation_bytes=peak - needed.parameter_bytes, allocator=True
        )
