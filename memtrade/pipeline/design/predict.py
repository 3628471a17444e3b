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

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from memtrade.bounds import loosest, stage_bound
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
        bound: what stands before the peak; see `stage_bound`. Live bytes have none; records say
            nothing of it that are older than it.
    """

    parameter_bytes: int
    activation_bytes: int
    peak_bytes: int
    peak_task: StageTask
    in_flight: int
    host_bytes: int
    allocator: bool = False
    bound: str = "≈"


class StageTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What several stages take together, each at its own peak, as published totals are."""

    stages: tuple[Any, ...]

    @property
    def bound(self) -> str:
        """What stands before them; nothing before what was measured."""
        return ""

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
        bound="",
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
    hosts: Hosts,
) -> Timing:
    """One step, event by event. O(tasks x crossings)."""
    device_free, link_free = ([0.0] * schedule.stages for _ in range(2))
    host_free: defaultdict[int | None, float] = defaultdict(float)  # None is the shared one
    arrived: dict[Message, float] = {}
    ran: list[list[tuple[float, float]]] = [[] for _ in seconds]  # start and end of tasks
    tasks = [(task, stage) for stage, own in enumerate(schedule.tasks) for task in own]
    # By the clock, and within a stage in order, what a task receives has been sent before.
    for task, stage in sorted(tasks, key=lambda each: (each[0].clock, each[1])):
        arriving = receives(partition, stage, task)
        there = max((arrived[message] for message in arriving), default=0.0)
        takes = seconds[stage].of(task, schedule)
        host = None if hosts == "shared" and task.kind != "backward" else stage
        begun = host_free[host] if host is None else max(host_free[host], there)
        host_free[host] = begun + takes.host
        start = max(device_free[stage], there, begun)
        device_free[stage] = end = max(start + takes.device, host_free[host])
        ran[stage].append((start, end))
        for message in sends(partition, stage, task):
            link_free[stage] = max(end, link_free[stage]) + message.size_bytes / link_bytes_per_s
            arrived[message] = link_free[stage]
    return _timing(schedule, ran, [max(work.update.device, work.update.host) for work in seconds])


def _timing(
    schedule: Schedule, ran: Sequence[Sequence[tuple[float, float]]], updates: Sequence[float]
) -> Timing:
    step = max(own[-1][1] + update for own, update in zip(ran, updates, strict=True))
    forward, busy, recomputing = 0.0, [], []
    for tasks, own, update in zip(schedule.tasks, ran, updates, strict=True):
        spans = [
            (task.kind, end, end - start) for task, (start, end) in zip(tasks, own, strict=True)
        ]
        forward = max(forward, *(end for kind, end, _ in spans if kind == "forward"))
        busy.append(sum(span for _, _, span in spans) + update)
        recomputing.append(sum(span for kind, _, span in spans if kind == "recompute"))
    return Timing(
        start_seconds=tuple(tuple(start for start, _ in own) for own in ran),
        end_seconds=tuple(tuple(end for _, end in own) for own in ran),
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
    def bound(self) -> str:
        """What stands before sums of the stages' peaks."""
        return loosest(stage.bound for stage in self.stages)

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
        planned = zip(self.stages, self.plans, strict=True)
        made = [kernels(stage, graph, target, plan) for stage, plan in planned]
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
        peak = arena_peak(self.stages[stage], schedule, stage, self.target, self.plans[stage])
        return msgspec.structs.replace(
            needed,
            peak_bytes=peak,
            activation_bytes=peak - needed.parameter_bytes,
            allocator=True,
            bound=stage_bound(self.stages[stage].graph),
        )
