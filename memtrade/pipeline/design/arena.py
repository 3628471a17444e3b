"""A stage's whole step in its own arena: what `predict.py` counts in live bytes, on an allocator.

    F0 F1 .. R1 B1 R0 B0      the stage's tasks
    = ops of one long program, each task a copy of the stage's ops, in one StepGraph

which the simulator walks like any step, padding and holes included. Handed over as the runtime does
(`memtrade.pipeline.tf.handover`): what a stage sends, past others too, leaves once its reader is
about to start.
"""

import math
from collections.abc import Sequence

import msgspec

from memtrade.graph import Op, StepGraph
from memtrade.graph_writer import GraphWriter
from memtrade.op_types import RECEIVE, SEND, SOURCE_TYPES
from memtrade.pipeline.design.schedule import Schedule, StageTask, Turn
from memtrade.pipeline.design.stages import StageGraph
from memtrade.pipeline.design.work import TaskActions
from memtrade.plan import Action
from memtrade.simulate.memory import ROOMY_BYTES, Simulator
from memtrade.target import Target

# From so many micro-batches on, one step leaves the same holes as two.
_MANY = 8


def arena_peak(
    stage: StageGraph, schedule: Schedule, index: int, target: Target, plan: Sequence[Action]
) -> int:
    """Bytes at the peak of stage `index`, by the allocator. O(micro-batches x ops).

    Args:
        plan: the actions of a plan of the stage's graph; none keep every activation.
    """
    unrolled = _Unrolled(stage, schedule, index, plan)
    graph = unrolled.graph()
    steps = 1 if schedule.micro_batches >= _MANY else 2
    simulator = Simulator(graph, target)
    return simulator.memory(unrolled.actions, limit_bytes=ROOMY_BYTES, steps=steps).peak_bytes


class _Unrolled:
    """The long program in the making. "Own" ids are the stage graph's, "new" ones the program's."""

    def __init__(self, stage: StageGraph, schedule: Schedule, index: int, plan: Sequence[Action]):
        self.stage, self.schedule, self.index = stage, schedule, index
        self.own = stage.graph
        self.made = GraphWriter()
        self.values: dict[int, tuple[int, ...]] = {}
        self.inputs: list[int] = []
        self.actions: list[Action] = []
        self.shared: dict[int, int] = {}  # own tensor -> new one, of what all micro-batches read
        self.latest: dict[tuple[int, int], int] = {}  # (micro-batch, own tensor) -> new one
        self.outgoing: list[tuple[Turn, int]] = []  # (turn to leave, new tensor)
        self.tasks = TaskActions(self.own, plan)
        self.arriving = [t for op in self.own.ops if op.type == RECEIVE for t in op.outputs]

    def graph(self) -> StepGraph:
        own = self.own
        for op in own.ops:
            if op.type in SOURCE_TYPES and not {*op.outputs} & {*own.data.inputs}:
                # Constants lie there like a batch: a session, unlike a function, folds nothing.
                like = msgspec.structs.replace(op, type="Placeholder")
                for t, new in zip(op.outputs, self._add(like, ()), strict=True):
                    self.shared[t] = new
                    if op.type == "Const":
                        self.inputs.append(new)
        for t in self.stage.batch:
            self._add_batch(t)
        for task in self.schedule.tasks[self.index]:
            self._run_task(task)
        self._hand_over(math.inf)  # what the last task has sent lies there until it ends
        unrolled = msgspec.structs.replace(
            own.data,
            ops=tuple(self.made.ops),
            tensors=tuple(self.made.tensors),
            inputs=tuple(self.inputs),
            captures=tuple(self.shared[t] for t in own.data.captures),
            outputs=(),
            control_outputs=(),
            loss=len(self.made.tensors) - 1,
            collection=(),
            values=self.values,
        )
        return StepGraph(unrolled)

    def _add_batch(self, t: int) -> None:
        """An input of the step for all micro-batches: parts of one tensor, which share its
        buffer."""
        count = self.schedule.micro_batches
        for i in range(count):
            (new,) = self._add(self.own.ops[self.own.tensors[t].op], ())
            part = self.made.tensors[new]
            whole_bytes = 0 if i else part.size_bytes * count
            self.made.tensors[new] = msgspec.structs.replace(part, size_bytes=whole_bytes)
            self.inputs.append(new)
            self.latest[i, t] = new

    def _run_task(self, task: StageTask) -> None:
        i, recomputed = task.micro_batch, self.schedule.recomputes(task.micro_batch)
        self._hand_over(task.moment, self._arrivals(task))
        for action in self.tasks.of(task.kind, recomputed=recomputed):
            self._act(i, action)
        for own, target in self.stage.leaving[task.kind]:
            turn = self.schedule.turn(task, self.index, target)
            self.outgoing.append((turn, self._read(i, own)))

    def _act(self, i: int, action: Action) -> None:
        if action.kind in ("run", "recompute"):
            op = self.own.ops[action.id]
            if op.type not in SOURCE_TYPES:
                self._copy(i, op)
        else:
            self.actions.append(Action(action.kind, self.latest[i, action.id]))

    def _copy(self, i: int, op: Op) -> None:
        inputs = [self._read(i, t) for t in op.inputs]
        for t, new in zip(op.outputs, self._add(op, inputs), strict=True):
            self.latest[i, t] = new

    def _read(self, i: int, t: int) -> int:
        return self.shared[t] if t in self.shared else self.latest[i, t]

    def _arrivals(self, task: StageTask) -> list[tuple[Turn, int, int]]:
        """(turn, micro-batch, own tensor) of what has arrived when the task starts, in order."""
        i, schedule, found = task.micro_batch, self.schedule, []
        tensors = {"forward": self.stage.received, "backward": self.arriving}
        for t in tensors.get(task.kind, ()):
            source = self.stage.sources[t]
            turn = schedule.turn(schedule.task(source, task.kind, i), source, self.index)
            found.append((turn, i, t))
        return found

    def _hand_over(self, moment: float, arrivals: Sequence[tuple[Turn, int, int]] = ()) -> None:
        """What has gone before a task of that moment, and what has arrived: each in its turn."""
        due = sorted(each for each in self.outgoing if each[0][0] < moment)
        self.outgoing = [each for each in self.outgoing if each[0][0] >= moment]
        for turn, i, t in arrivals:
            self._send([new for at, new in due if at < turn])
            due = [each for each in due if each[0] >= turn]
            op = Op(0, f"receive/{t}", RECEIVE, (), (), (t,), False, {})
            (self.latest[i, t],) = self._add(op, ())
        self._send([new for _, new in due])

    def _send(self, tensors: Sequence[int]) -> None:
        if tensors:
            self._add(Op(0, "send", SEND, (), (), (), False, {}), tensors)

    def _add(self, op: Op, inputs: Sequence[int]) -> tuple[int, ...]:
        """A copy of an own op, which runs now. The new ids of its outputs."""
        copy = self.made.add(
            f"{op.name}#{len(self.made.ops)}",
            op.type,
            inputs,
            [self.own.tensors[t] for t in op.outputs],
            stateful=op.stateful,
            attrs=op.attrs,
            node=op.node,
        )
        known = self.own.data.values
        pairs = zip(op.outputs, copy.outputs, strict=True)
        self.values |= {new: known[t] for t, new in pairs if t in known}
        if op.type not in SOURCE_TYPES:
            self.actions.append(Action("run", copy.id))
        return copy.outputs
