"""What the processes of a pipelined trial say to each other. No TensorFlow here.

    parent ──StageSpec──► each stage's process ──► Serving                       one per stage
    parent ──DriverSpec─► the driver ──► Progress* PipelineFinished|Failed           one
    driver ◄──TensorFlow, gRPC──► stages

Each is one JSON document on the child's standard input, and JSON lines on its standard output. A
stage serves until its parent ends it.
"""

from typing import Any, Literal

import msgspec

from memtrade.comparison import Verified
from memtrade.measure.protocol import Failed, Progress, Runtime, Status
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.predict import StageTotals
from memtrade.pipeline.design.schedule import CheckpointMode, Schedule, ScheduleName
from memtrade.plan import Action

StageDevice = Literal["arena", "gpu"]


class PipelineTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a pipelined trial the same trial.

    Attributes:
        model_options: all options of the model, typed; its batch is the whole one.
        boundaries: the ops that end the stages but the last, as `Partition` names them.
        strategy: that plans each stage, with all its options; "original" keeps activations.
        deferred_batch_norm: moving averages move once per step.
        device: what each stage is: an arena, or a GPU of its own.
        memory_limit_bytes: of each stage.
        cluster: host:port of each stage's server; empty where they are children of this machine.
        steps: the counted steps; `warmup` more come before them.
        verify: compare variables and losses with the unpipelined step's, in micro-batches.
        tasks_alone: time the tasks: nothing is updated, and recomputations wait for the gradient,
            so that with one micro-batch only one stage works at a time.
        one_at_a_time: each stage runs by itself, with zeros for what others would send, one after
            the other: times are sums, and only the last stage's losses mean anything.
    """

    model: str
    model_options: dict[str, Any]
    optimizer: str = "sgd"
    learning_rate: float | None = None
    partitions: int
    micro_batches: int
    schedule: ScheduleName = "gpipe"
    checkpoint: CheckpointMode = "always"
    boundaries: tuple[str, ...] = ()
    strategy: str = "original"
    strategy_options: dict[str, Any] = {}
    deferred_batch_norm: bool = False
    device: StageDevice = "arena"
    memory_limit_bytes: int
    cluster: tuple[str, ...] = ()
    steps: int = 5
    warmup: int = 1
    verify: bool = False
    tasks_alone: bool = False
    one_at_a_time: bool = False

    @property
    def batch_size(self) -> int:
        return self.model_options["batch_size"]


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which stage a process is.

    Attributes:
        device: "arena" or "gpu:N", as in a trial.
        addresses: host:port of all stages, in order.
        local: whether all of them are this machine's, and nobody else is to reach it.
    """

    stage: int
    local: bool = False
    device: str = "arena"
    addresses: tuple[str, ...]
    memory_limit_bytes: int


class DriverSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`plans`: for each stage, the actions of a plan of its graph; none keep every activation.
    `alone`: the only stage that runs."""

    trial: PipelineTrial
    partition: Partition
    schedule: Schedule
    plans: tuple[tuple[Action, ...], ...] = ()
    addresses: tuple[str, ...]
    alone: int | None = None


class StageMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, by its own allocator.

    Attributes:
        parameters: elements of its trainable variables.
        variable_bytes, gradient_bytes, slot_bytes: of values (moving averages too), accumulated
            gradients, and the optimizer's variables.
        persistent_bytes: in use between steps; with the batch and constants.
        peak_bytes: the most in use, over all steps, warm-up included.
        peak_bytes_by_step: the same for each step, warm-up first.
        activation_bytes: peak_bytes less parameter_bytes, as the published logs count it.
        busy_seconds: in its tasks, the median of the counted steps.
        forward_seconds, backward_seconds: of each counted step: in forward tasks, and in backward
            tasks and recomputations.
        update_seconds: from its last task's end to its update's; None if nothing was updated.
    """

    parameters: int
    variable_bytes: int
    gradient_bytes: int
    slot_bytes: int
    persistent_bytes: int
    peak_bytes: int
    peak_bytes_by_step: tuple[int, ...]
    activation_bytes: int
    busy_seconds: float
    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    update_seconds: float | None

    @property
    def parameter_bytes(self) -> int:
        return self.variable_bytes + self.gradient_bytes + self.slot_bytes


class PipelineMeasured(StageTotals, frozen=True, kw_only=True):
    """All stages, and the times of the counted steps (medians).

    Attributes:
        step_seconds: of each counted step, by the driver's clock.
        forward_seconds: from the first task's start to the last forward task's end.
        backward_seconds: from there to the last backward task's end. In a 1F1B schedule backward
            tasks run in the first part, too.
        bubble: the share of stages x time, from the first task to the last, without a task.
        losses: of every step, warm-up first; None where not finite.
        verified: the comparison with the unpipelined step, if it was asked for.
    """

    stages: tuple[StageMeasured, ...]
    step_seconds: tuple[float, ...]
    median_seconds: float
    forward_seconds: float
    backward_seconds: float
    bubble: float
    samples_per_second: float
    build_seconds: float
    losses: tuple[float | None, ...]
    verified: Verified | None = None

    @property
    def parameters(self) -> int:
        return sum(stage.parameters for stage in self.stages)


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """A stage's server takes orders. `exposed`: from other machines, too."""

    stage: int
    runtime: Runtime
    exposed: bool


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A stage (from 0; None: unknown) failed the driver, and why in one line."""

    status: Literal["out_of_memory", "crashed"]
    reason: str
    stage: int | None


class PipelineFinished(msgspec.Struct, frozen=True, tag="finished"):
    measured: PipelineMeasured


PipelineEvent = Serving | Progress | Lost | PipelineFinished | Failed


class PipelineOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a pipelined trial ended.

    Attributes:
        stage: that failed, from 0, where one did.
    """

    status: Status
    reason: str = ""
    stage: int | None = None
    measured: PipelineMeasured | None = None
    runtime: Runtime | None = None
