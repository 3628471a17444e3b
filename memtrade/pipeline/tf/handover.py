"""When tasks begin and end, and how tensors go from one stage to another.

What a stage makes may be read later than it is ready. So that it does not pile up, and so that a
peak is the same in every step, it goes at a moment of the schedule: behind the last task of its
reader before the one that reads it. The sender's first task of a later moment waits until it has
been received. Tensors of several sizes arrive one after the other, since the order decides on where
they lie. All such edges lead from one moment to a later one: there is no deadlock, and by the
clocks nobody waits longer. Of the transfers, only a gradient's is hidden behind computation: that
of its micro-batch's recomputation.

A stage alone receives zeros when it would receive, and what it sends lies there until it would have
gone: its memory is what it is among the others.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.pipeline.design.schedule import Schedule, StageTask, TaskKind
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


class _Arrival(NamedTuple):
    turn: tuple[int, int]  # those of one turn may arrive in any order
    sent: str  # the op that sends it
    received: str  # the op that it is on this stage


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
        self._starts: dict[tuple[int, StageTask], str] = {}
        self._ends: dict[tuple[int, StageTask], str] = {}
        self._arrivals: list[_Arrival] = []  # what the task in the making has received
        self._received: list[tuple[int, StageTask, str]] = []  # what a task of its sender waits for
        self._kept: list[tuple[int, StageTask, str]] = []  # what is let go behind a task

    def begin(self, stage: int, task: StageTask, scope: str) -> None:
        """A task starts behind the stage's last op."""
        self._starts[stage, task] = self.stopwatch.look(stage, f"{scope}/begin")
        self._arrivals = []

    def end(self, stage: int, task: StageTask, scope: str) -> None:
        """It has ended; it begins when all that it reads has arrived: waiting is no work."""
        self._ends[stage, task] = self.stopwatch.look(stage, f"{scope}/end")
        received = [each.received for each in self._arrivals]
        self._wait(self._starts[stage, task], received)
        if self.apart and task.kind == "backward":
            own = self.schedule.tasks[stage]
            before = own[own.index(task) - 1]
            if before.kind == "recompute":
                self._wait(self._starts[stage, before], received)
        self._take_turns()

    def receive(self, stage: int, source: int, kind: TaskKind, i: int, parcel: Parcel) -> str:
        """What the `kind` task of micro-batch i on `source` made, on `stage`. The reference."""
        sent = next(
            task
            for task in self.schedule.tasks[source]
            if (task.kind, task.micro_batch) == (kind, i)
        )
        before, gone = self.schedule.hand_over(sent, stage)
        name = f"stage{stage}/batch{i}/receive/{parcel.name}"
        if self.alone:
            into = out = self._zeros(stage, name, parcel)
        else:
            out = self._send(source, sent, stage, parcel)
            attrs = {"T": parcel.dtype}
            into = self.writer.add(stage, name, "Identity", [out], attrs).name
            self._wait(out, [self._ends[source, sent]])
            if waiting := self._first_after(source, gone):
                self._received.append((source, waiting, into))
        if before:
            self._wait(out, [self._ends[stage, before]])
        self._arrivals.append(_Arrival((sent.moment, -parcel.size_bytes), out, into))
        return into

    def keep(self, stage: int, sent: StageTask, target: int, parcel: Parcel) -> None:
        """Alone: what the task made for another stage lies there until it would have gone."""
        _, gone = self.schedule.hand_over(sent, target)
        if waiting := self._first_after(stage, gone):
            own = self.schedule.tasks[stage]
            out = self._send(stage, sent, target, parcel)
            self._kept.append((stage, own[own.index(waiting) - 1], out))
            self._received.append((stage, waiting, out))

    def _send(self, stage: int, sent: StageTask, target: int, parcel: Parcel) -> str:
        name = f"stage{stage}/batch{sent.micro_batch}/send{target}/{parcel.name}"
        inputs, attrs = [parcel.reference], {"T": parcel.dtype}
        return self.writer.add(stage, name, "Identity", inputs, attrs).name

    def _first_after(self, stage: int, moment: int) -> StageTask | None:
        return next((task for task in self.schedule.tasks[stage] if task.moment > moment), None)

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

    def _take_turns(self) -> None:
        by_turn = sorted(self._arrivals, key=lambda each: each.turn)
        turns = [list(own) for _, own in itertools.groupby(by_turn, lambda each: each.turn)]
        for before, after in itertools.pairwise(turns):
            for each in after:
                self._wait(each.sent, [one.received for one in before])

    def close(self) -> None:
        """Behind the last task: senders wait, whichever of the two tasks was written first."""
        for stage, task, name in self._kept:
            self._wait(name, [self._ends[stage, task]])
        for stage, task, name in self._received:
            self._wait(self._starts[stage, task], [name])

    def _wait(self, waiting: str, names: Iterable[str]) -> None:
        self.writer.nodes[waiting].input.extend("^" + name for name in dict.fromkeys(names))
