"""When tasks begin and end, and how tensors go from one stage to another.

What a stage makes may be read later than it is ready. So that it does not pile up, and so that a
peak is the same in every step, it goes at a moment of the schedule: behind the last task of its
reader before the one that reads it. The sender's first task of a later moment waits until it has
been received. What leaves and what arrives between two tasks goes one after the other, since the
order decides on where tensors lie. All such edges lead from one moment to a later one, or from one
turn of a moment to a later one: there is no deadlock, and by the clocks nobody waits longer. A
gradient goes behind the recomputations of its clock: it would arrive at any time beside one.

A stage alone receives zeros when it would receive, and what it sends lies there until it would have
gone: its memory is what it is among the others.
"""

import bisect
import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.pipeline.design.schedule import Schedule, StageTask, TaskKind, Turn
from memtrade.pipeline.tf.nodes import NodeWriter, const
from memtrade.pipeline.tf.state import StageState


class Stopwatch:
    """Writes looks at the clock into one vector of each stage, twice for each of its tasks and when
    it has updated: now ─► times[count], count += 1.

    Kept one by one until the step has ended, they would cut the arena's free memory into pieces.
    They lie in host memory: what a look takes of an arena, it gives back at once. They are counted
    by a variable, since a constant for the place of each would stay there, too.
    """

    def __init__(self, writer: NodeWriter, state: StageState, schedule: Schedule):
        self.writer, self._chain = writer, functools.partial(writer.chain, on_host=True)
        self._looks = [2 * len(own) for own in schedule.tasks]
        self._times, self._counts = [], []
        for stage, looks in enumerate(self._looks):
            name = f"stage{stage}/times"
            self._times.append(state.zeros(stage, name, [looks + 1], tf.float64, on_host=True))
            name = f"stage{stage}/count"
            self._counts.append(state.zeros(stage, name, [], tf.int32, on_host=True))

    def look(self, stage: int, name: str) -> str:
        """The time behind the stage's last op. The op that tells it."""
        now, count = self._chain(stage, name, "Timestamp", []), [self._counts[stage]]
        at = self._chain(stage, f"{name}/at", "ReadVariableOp", count, {"dtype": tf.int32})
        self._write(stage, at, now)
        self._count(stage, f"{name}/count", "AssignAddVariableOp", 1)
        return now

    def restart(self, stage: int) -> str:
        """Behind the last task: the next step writes over this one's. The op that does it."""
        by = self._looks[stage]
        return self._count(stage, f"stage{stage}/restart", "AssignSubVariableOp", by)

    def end(self, stage: int) -> str:
        """The time behind the update, which follows all tasks. The op that writes it."""
        now = self._chain(stage, f"stage{stage}/update/end", "Timestamp", [])
        return self._write(stage, self._number(stage, self._looks[stage]), now)

    def times(self, stage: int) -> str:
        """All looks of the step before, in order, in seconds."""
        name, attrs = f"stage{stage}/seconds", {"dtype": tf.float64}
        inputs = [self._times[stage]]
        return self.writer.add(stage, name, "ReadVariableOp", inputs, attrs, on_host=True).name

    def _write(self, stage: int, at: str, now: str) -> str:
        attrs = {"dtype": tf.float64, "Tindices": tf.int32}
        inputs = [self._times[stage], at, now]
        return self._chain(stage, f"{now}/write", "ResourceScatterUpdate", inputs, attrs)

    def _count(self, stage: int, name: str, op: str, by: int) -> str:
        inputs = [self._counts[stage], self._number(stage, by)]
        return self._chain(stage, name, op, inputs, {"dtype": tf.int32})

    def _number(self, stage: int, number: int) -> str:
        name = f"stage{stage}/number{number}"
        return self.writer.number(stage, name, number, tf.int32, on_host=True)


class Parcel(NamedTuple):
    """A tensor to be handed over: its reference, and a name that can be part of a node's."""

    reference: str
    name: str
    dtype: tf.DType
    shape: Sequence[int] | None
    size_bytes: int
    tensor: int


# A stage, and the task of it behind which something happens: None before the first.
_Gap = tuple[int, StageTask | None]


class _Transfer(NamedTuple):
    """In the order in which transfers go that meet on a stage: by turn, then the largest first."""

    turn: Turn
    order: tuple[int, int]  # of one turn
    source: int
    target: int
    sent: str  # the op that sends it
    received: str  # the op that it is on its reader's stage
    waiting: StageTask | None  # its reader's


class HandOver:
    """Writes where tasks begin and end, and what waits for what between stages.

    Args:
        apart: a recomputation waits for the gradient, as its backward task does.
        alone: there is one stage and no other.
    """

    def __init__(
        self,
        writer: NodeWriter,
        stopwatch: Stopwatch,
        schedule: Schedule,
        apart: bool,
        alone: bool,
    ):
        self.writer, self.stopwatch = writer, stopwatch
        self.schedule, self.apart, self.alone = schedule, apart, alone
        self._starts: dict[_Gap, str] = {}  # which a task ends
        self._ends: dict[_Gap, str] = {}  # behind a task
        self._transfers: list[_Transfer] = []

    def begin(self, stage: int, task: StageTask, scope: str) -> None:
        """A task starts behind the stage's last op."""
        self._starts[stage, task] = self.stopwatch.look(stage, f"{scope}/begin")

    def end(self, stage: int, task: StageTask, scope: str) -> None:
        """It has ended."""
        self._ends[stage, task] = self.stopwatch.look(stage, f"{scope}/end")

    def receive(self, stage: int, source: int, kind: TaskKind, i: int, parcel: Parcel) -> str:
        """What the `kind` task of micro-batch i on `source` made, on `stage`. The reference."""
        sent = self.schedule.task(source, kind, i)
        name = f"stage{stage}/batch{i}/receive/{parcel.name}"
        if self.alone:
            into = out = self._zeros(stage, name, parcel)
        else:
            out = self._send(source, sent, stage, parcel)
            into = self.writer.add(stage, name, "Identity", [out], {"T": parcel.dtype}).name
        reader = self.schedule.reader(sent, stage)
        self._add(source, sent, stage, parcel, out, into, reader)
        if self.apart and kind == "backward" and self.schedule.recomputes(i):
            again = self.schedule.task(stage, "recompute", i)
            self._wait(self._starts[stage, again], [self._ends[source, sent]])
        return into

    def keep(self, stage: int, sent: StageTask, target: int, parcel: Parcel) -> None:
        """Alone: what the task made for another stage lies there until it would have gone."""
        moment, *_ = self.schedule.turn(sent, stage, target)
        if self._around(stage, moment)[1]:
            out = self._send(stage, sent, target, parcel)
            self._add(stage, sent, target, parcel, out, out, None)

    def _add(
        self,
        source: int,
        sent: StageTask,
        target: int,
        parcel: Parcel,
        out: str,
        into: str,
        waiting: StageTask | None,
    ) -> None:
        turn, order = self.schedule.turn(sent, source, target), (-parcel.size_bytes, parcel.tensor)
        self._transfers.append(_Transfer(turn, order, source, target, out, into, waiting))

    def _send(self, stage: int, sent: StageTask, target: int, parcel: Parcel) -> str:
        name = f"stage{stage}/batch{sent.micro_batch}/send{target}/{parcel.name}"
        inputs, attrs = [parcel.reference], {"T": parcel.dtype}
        return self.writer.add(stage, name, "Identity", inputs, attrs).name

    def _around(self, stage: int, moment: int) -> tuple[StageTask | None, StageTask | None]:
        """The stage's last task until a moment, and the first one behind it."""
        own = self.schedule.tasks[stage]
        at = bisect.bisect_right(own, moment, key=lambda task: task.moment)
        return own[at - 1] if at else None, own[at] if at < len(own) else None

    def _zeros(self, stage: int, name: str, parcel: Parcel) -> str:
        """What stands for a tensor of another stage."""
        if parcel.shape is None:
            raise UnsupportedGraphError(f"{parcel.name} has no size: its stage cannot run alone")
        shape = f"stage{stage}/shape/{parcel.name}"
        if shape not in self.writer.nodes:
            self.writer.add(stage, shape, "Const", [], const(parcel.shape, tf.int32))
        zero = f"stage{stage}/zero/{parcel.dtype.name}"
        self.writer.number(stage, zero, 0, parcel.dtype)
        attrs = {"T": parcel.dtype, "index_type": tf.int32}
        return self.writer.add(stage, name, "Fill", [shape, zero], attrs).name

    def close(self) -> None:
        """Behind the last task, when all are written: what waits for what.

        A transfer waits for the tasks of both stages until its moment, those behind that wait for
        it. Between two tasks, where it takes memory and gives it back depends on the order: there
        it waits for those before it.
        """
        taken: dict[_Gap, str] = {}  # what arrived last
        given: defaultdict[_Gap, list[str]] = defaultdict(list)  # what has left since
        for each in sorted(self._transfers, key=lambda it: (it.turn, it.order)):
            before, behind = self._around(each.source, each.turn[0])
            leaves = each.source, before
            arrives = each.target, self._around(each.target, each.turn[0])[0]
            waits = [self._ends.get(leaves), self._ends.get(arrives)]
            waits += [taken.get(leaves), taken.get(arrives), *given.pop(arrives, ())]
            self._wait(each.sent, [name for name in waits if name])
            taken[arrives] = each.received
            given[leaves].append(each.received)
            for task in ((each.source, behind), (each.target, each.waiting)):
                if start := self._starts.get(task):
                    self._wait(start, [each.received])

    def _wait(self, waiting: str, names: Iterable[str]) -> None:
        self.writer.nodes[waiting].input.extend("^" + name for name in dict.fromkeys(names))
