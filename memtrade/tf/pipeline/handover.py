"""When tasks begin, and how tensors go from one stage to another.

What a stage makes may be read later than it is ready. So that it does not pile up, it is sent once
its reader has ended the task of the clock before, and the sender's next task waits until it has
been received; this only where the schedule's clocks say that nobody waits longer for it. All such
edges lead from one clock to a later one: there is no deadlock.
"""

from __future__ import annotations

import tensorflow as tf

from memtrade.pipeline.schedule import Schedule, Task, TaskKind
from memtrade.tf.pipeline.nodes import NodeWriter


class HandOver:
    """Writes the looks at the clock around each task, and what waits for what between stages.

    Args:
        apart: a recomputation waits for the gradient, as its backward task does.
    """

    def __init__(self, writer: NodeWriter, schedule: Schedule, apart: bool):
        self.writer, self.schedule, self.apart = writer, schedule, apart
        self._starts: dict[tuple[int, Task], str] = {}
        self._ends: dict[tuple[int, Task], str] = {}
        self._arrivals: list[str] = []  # what the task in the making has received
        self._received: list[tuple[int, Task, str]] = []  # what a task of its sender waits for

    def begin(self, stage: int, task: Task, scope: str) -> None:
        """A task starts behind the stage's last op."""
        self._starts[stage, task] = self.writer.timestamp(stage, f"{scope}/begin")
        self._arrivals = []

    def end(self, stage: int, task: Task, scope: str) -> None:
        """It has ended; it begins when all that it reads has arrived: waiting is no work."""
        self._ends[stage, task] = self.writer.timestamp(stage, f"{scope}/end")
        starts = [self._starts[stage, task]]
        if self.apart and task.kind == "backward":
            own = self.schedule.tasks[stage]
            before = own[own.index(task) - 1]
            starts += [self._starts[stage, before]] if before.kind == "recompute" else []
        for start in starts:
            self.writer.nodes[start].input.extend("^" + name for name in self._arrivals)

    def receive(
        self, stage: int, source: int, kind: TaskKind, i: int, made: str, flat: str, dtype: tf.DType
    ) -> str:
        """What the `kind` task of micro-batch i on `source` made, on `stage`. The reference."""
        sent = next(
            task
            for task in self.schedule.tasks[source]
            if (task.kind, task.micro_batch) == (kind, i)
        )
        reading = self.schedule.reading_task(stage, sent)
        add, attrs = self.writer.add, {"T": dtype}
        out = add(source, f"stage{source}/batch{i}/send{stage}/{flat}", "Identity", [made], attrs)
        name = f"stage{stage}/batch{i}/receive/{flat}"
        into = add(stage, name, "Identity", [out.name], attrs)
        before = [each for each in self.schedule.tasks[stage] if each.clock < reading.clock]
        own = self.schedule.tasks[source]
        after = own[own.index(sent) + 1 :]
        if before:
            out.input.append("^" + self._ends[stage, before[-1]])
            if after and before[-1].clock < after[0].clock:
                self._received.append((source, after[0], into.name))
        self._arrivals.append(into.name)
        return into.name

    def close(self) -> None:
        """Behind the last task: senders wait, whichever of the two tasks was written first."""
        for stage, task, name in self._received:
            self.writer.nodes[self._starts[stage, task]].input.append("^" + name)

    def times(self, stage: int) -> str:
        """When each of the stage's tasks began and ended, in one tensor."""
        own = self.schedule.tasks[stage]
        stamps = [name[stage, task] for task in own for name in (self._starts, self._ends)]
        attrs = {"T": tf.float64, "N": len(stamps), "axis": 0}
        return self.writer.add(stage, f"stage{stage}/times", "Pack", stamps, attrs).name
