"""What a pipelined step will need and how long it will take, before it runs.

    graph on one micro-batch ─► partition ─► stages ─► work ─┬─► memory of each stage
                                             schedule ───────┴─► timing

Predicted, for a named device; nothing here is measured.
"""

from collections.abc import Callable, Sequence

import msgspec

from memtrade.devices import Device
from memtrade.graph import StepGraph
from memtrade.pipeline.design.arena import arena_peak
from memtrade.pipeline.design.memory import StageMemory, StageTotals, stage_memory
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.schedule import CheckpointMode, Schedule, ScheduleName
from memtrade.pipeline.design.stages import StageGraph, stage_graphs
from memtrade.pipeline.design.timing import Hosts, Timing, simulate_timing
from memtrade.pipeline.design.work import StageBytes, StageTimer, Timer, stage_bytes
from memtrade.plan import Action
from memtrade.target import Target


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
