"""When each task of a schedule runs on a device, and so the bubble and the throughput.

    host      starts a task's ops, one after the other, and runs ahead of the device
    device    computes one task at a time, in the schedule's order
    link      one per stage: what it sends leaves in turn, beside computation

A task starts when its stage is free, what it receives is there and its host has come to it; it ends
when the device is done and the host has started its last op. In one process, as in torchgpipe,
whose threads share Python's interpreter, one host starts the forward ops and recomputations of all
stages, by the clock; backward ops are started by a thread per device. In processes of their own,
each stage has its own host.

Assumed: links do not slow each other down; sending takes the sender's device no time. The update
follows when the stage's last task has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.schedule import Message, Schedule, StageTask, receives, sends
from memtrade.pipeline.design.work import StageSeconds, TaskSeconds

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


@dataclass
class _Simulation:
    schedule: Schedule
    partition: Partition
    seconds: Sequence[StageSeconds]
    rate: float  # of the links
    hosts: Hosts

    def __post_init__(self) -> None:
        stages = self.schedule.stages
        self.device_free, self.host_free, self.link_free = ([0.0] * stages for _ in range(3))
        self.shared_free = 0.0
        self.arrived: dict[Message, float] = {}
        self.starts: list[list[float]] = [[] for _ in range(stages)]
        self.ends: list[list[float]] = [[] for _ in range(stages)]

    def run(self) -> Timing:
        # By the clock, and within a stage in order, what a task receives has been sent before.
        for _, stage, index in sorted(
            (task.clock, stage, index)
            for stage, tasks in enumerate(self.schedule.tasks)
            for index, task in enumerate(tasks)
        ):
            self._run(stage, self.schedule.tasks[stage][index])
        return self._timing()

    def _run(self, stage: int, task: StageTask) -> None:
        arriving = receives(self.partition, stage, task)
        there = max((self.arrived[message] for message in arriving), default=0.0)
        seconds = self._task_seconds(stage, task)
        shared = self.hosts == "shared" and task.kind != "backward"
        begun = self.shared_free if shared else max(self.host_free[stage], there)
        start = max(self.device_free[stage], there, begun)
        end = max(start + seconds.device, begun + seconds.host)
        self.device_free[stage] = end
        if shared:
            self.shared_free = begun + seconds.host
        else:
            self.host_free[stage] = begun + seconds.host
        self.starts[stage].append(start)
        self.ends[stage].append(end)
        for message in sends(self.partition, stage, task):
            leaves = max(end, self.link_free[stage])
            self.link_free[stage] = leaves + message.size_bytes / self.rate
            self.arrived[message] = self.link_free[stage]

    def _task_seconds(self, stage: int, task: StageTask) -> TaskSeconds:
        work = self.seconds[stage]
        if task.kind == "backward":
            return work.backward
        keeps_nothing = self.schedule.recomputes(task.micro_batch)
        return work.bare_forward if task.kind == "forward" and keeps_nothing else work.forward

    def _timing(self) -> Timing:
        tasks = self.schedule.tasks
        spans = [
            [end - start for start, end in zip(starts, ends, strict=True)]
            for starts, ends in zip(self.starts, self.ends, strict=True)
        ]
        updates = [max(work.update.device, work.update.host) for work in self.seconds]
        step = max(ends[-1] + update for ends, update in zip(self.ends, updates, strict=True))
        busy = [sum(own) + update for own, update in zip(spans, updates, strict=True)]
        recomputing = [
            sum(span for span, task in zip(own, each, strict=True) if task.kind == "recompute")
            for own, each in zip(spans, tasks, strict=True)
        ]
        return Timing(
            start_seconds=tuple(map(tuple, self.starts)),
            end_seconds=tuple(map(tuple, self.ends)),
            forward_seconds=max(
                end
                for ends, each in zip(self.ends, tasks, strict=True)
                for end, task in zip(ends, each, strict=True)
                if task.kind == "forward"
            ),
            step_seconds=step,
            busy_seconds=tuple(busy),
            recompute_seconds=tuple(recomputing),
            bubble=1 - sum(busy) / (len(tasks) * step) if step else 0.0,
        )
