"""The peak of each stage over a schedule.

    in use = parameters, constants, batch           all the time
           + what each micro-batch under way left   held, or where it is recomputed only received
           + what the task at work takes            forward, or recomputation and backward

So a stage's peak follows from its tasks' (`work.py`) and their order. Live bytes: an allocator adds
padding and holes. Assumed: the whole batch lies on the stages that read it; what a stage has sent
leaves when its task ends; a stage receives a tensor when it starts the task that reads it.
"""

from typing import Any

import msgspec

from memtrade.pipeline.design.schedule import Schedule, StageTask
from memtrade.pipeline.design.work import StageBytes


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
