"""What one stage's work on one micro-batch takes: bytes and seconds of its tasks.

From the stage's StepGraph and a program for it, in base order or as a strategy planned it:

    forward │ backward        the program, split where its first backward op stands
       held ┘                 what the forward part leaves for the backward part

The simulator walks it for the bytes, the target says the seconds. Where a micro-batch is
recomputed, its forward task keeps nothing, and the whole program runs later, forward and backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from memtrade.costs import OpClass, OpCost, op_cost
from memtrade.devices import Device
from memtrade.graph import Op, StepGraph
from memtrade.op_types import GIVEN_TYPES, HANDED_TYPES
from memtrade.order import base_order
from memtrade.pipeline.design.schedule import Schedule, StageTask, TaskKind
from memtrade.pipeline.design.stages import StageGraph
from memtrade.plan import Action
from memtrade.simulate.memory import Simulator
from memtrade.simulate.regions import GRAIN_BYTES
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import Target

# Where a program is split, the simulator reads off what is held there: the reservation's bytes.
_MARK = Action("reserve", 1)

# Ops of a stage's graph that stand for other stages.
_STAND_INS = HANDED_TYPES | {"Placeholder"}


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """What a stage's tasks on one micro-batch need, and what lies there all the time.

    Live bytes: what is asked for, without the allocator's padding and holes.

    Attributes:
        parameters: what persists between steps: values, gradients and slots.
        constants: of the stage's own.
        batch: of what the stage reads of one micro-batch.
        received: of what it receives for one forward task.
        held: what a forward task leaves for its backward task: activations, and what of the
            received tensors is read again.
        forward: the most that a forward task that leaves `held` makes and holds at once.
        bare_forward: of one that keeps nothing, likewise.
        backward: of a backward task, `held` of its own micro-batch included.
        swapped: in host memory, for each micro-batch under way.
    """

    parameters: int
    constants: int
    batch: int
    received: int
    held: int
    forward: int
    bare_forward: int
    backward: int
    swapped: int


@dataclass(frozen=True, kw_only=True)
class TaskSeconds:
    """How long a task takes: `device` to compute, `host` to start its ops. They overlap."""

    device: float
    host: float


@dataclass(frozen=True, kw_only=True)
class StageSeconds:
    """A stage's tasks.

    Attributes:
        forward: a forward task that leaves what its backward task reads, and a recomputation.
        bare_forward: a forward task that keeps nothing.
        update: once per step.
    """

    forward: TaskSeconds
    bare_forward: TaskSeconds
    backward: TaskSeconds
    update: TaskSeconds

    def of(self, task: StageTask, schedule: Schedule) -> TaskSeconds:
        """Of a task, which recomputes its micro-batch if the schedule does."""
        if task.kind == "backward":
            return self.backward
        bare = task.kind == "forward" and schedule.recomputes(task.micro_batch)
        return self.bare_forward if bare else self.forward


def stage_program(graph: StepGraph, plan: Sequence[Action]) -> Sequence[Action]:
    """The plan's actions; without any, the ops in the order of creation: stages are pinned."""
    return plan or [Action("run", op_id) for op_id in base_order(graph)]


def stage_bytes(stage: StageGraph, target: Target, plan: Sequence[Action] = ()) -> StageBytes:
    """What the stage's tasks need; in the arena with the whole chunks that constants take there:
    there are hundreds of them, of a few bytes each.

    Args:
        plan: actions of a plan of the stage's graph; none keep every activation.
    """
    simulator = Simulator(stage.graph, target)
    actions = stage_program(stage.graph, plan)
    split = split_program(stage.graph, actions)
    base = simulator.live_bytes([_MARK])[0] - _MARK.id
    live = simulator.live_bytes([*actions[:split], _MARK, *actions[split:]])
    bare = simulator.live_bytes([*_bare(actions[:split]), _MARK])
    return StageBytes(
        parameters=stage.parameter_bytes,
        constants=base
        - stage.parameter_bytes
        - stage.batch_bytes
        - stage.received_bytes
        + (_constants_padding(stage.graph) if target.copies_in_line else 0),
        batch=stage.batch_bytes,
        received=stage.received_bytes,
        held=live[split] - _MARK.id - base + stage.retained_bytes,
        forward=max(live[:split], default=base) - base,
        bare_forward=max(bare) - base,
        backward=max(live[split:]) - base + stage.retained_bytes,
        swapped=_swapped_bytes(stage.graph, actions[:split]),
    )


def _constants_padding(graph: StepGraph) -> int:
    """Bytes that the allocator adds to constants."""
    return sum(
        -graph.tensors[t].size_bytes % GRAIN_BYTES
        for op in graph.ops
        if op.type == "Const"
        for t in op.outputs
    )


class Timer(Protocol):
    """Says how long a stage's tasks take on a device."""

    def seconds(self, device: Device) -> StageSeconds: ...


class StageTimer:
    """The seconds of one stage's tasks on one device after another.

    Args:
        whole: the graph that the stage was cut out of.
    """

    def __init__(
        self, stage: StageGraph, whole: StepGraph, target: Target, plan: Sequence[Action] = ()
    ):
        self._timer = TimeSimulator(stage.graph, target)
        self._program = stage_program(stage.graph, plan)
        self._split = split_program(stage.graph, self._program)
        self._bare = _bare(self._program[: self._split])
        costs = [op_cost(op, stage.graph) for op in stage.graph.ops]
        self._kernels = [cost.op_class is not OpClass.FREE for cost in costs]
        self._updates = update_costs(stage, whole, target)

    def seconds(self, device: Device) -> StageSeconds:
        # Starting ops is counted apart: who starts them is not known here.
        self._timer.set_device(msgspec.structs.replace(device, dispatch_seconds=0.0))
        ends = self._timer.clocked(self._program).ends
        turn = max(ends[: self._split], default=0.0)
        forward, backward = self._program[: self._split], self._program[self._split :]

        def task(seconds: float, actions: Sequence[Action]) -> TaskSeconds:
            runs = (action.id for action in actions if action.kind in ("run", "recompute"))
            started = sum(self._kernels[op_id] for op_id in runs)
            return TaskSeconds(device=seconds, host=started * device.dispatch_seconds)

        return StageSeconds(
            forward=task(turn, forward),
            bare_forward=task(max(self._timer.clocked(self._bare).ends, default=0.0), self._bare),
            backward=task(max(ends, default=0.0) - turn, backward),
            update=update_seconds(self._updates, device),
        )


# The cost of an update, and its kernel's seconds where they are known.
Update = tuple[OpCost, float | None]


def update_costs(stage: StageGraph, whole: StepGraph, target: Target) -> list[Update]:
    """Of the updates that run once per step."""
    ops = [whole.ops[op_id] for op_id in stage.gradient_of]
    return [(op_cost(op, whole), target.facts.of(op, whole).seconds) for op in ops]


def update_seconds(updates: Sequence[Update], device: Device) -> TaskSeconds:
    return TaskSeconds(
        device=sum(device.seconds(*update) for update in updates),
        host=len(updates) * device.dispatch_seconds,
    )


def split_program(graph: StepGraph, actions: Sequence[Action]) -> int:
    """The index behind the forward part: the loss or what is sent, and what follows on it at once
    without a gradient. Ops of the backward part that read no gradient, such as shapes, may come
    anywhere behind that."""
    end = 1 + max(
        (i for i, a in enumerate(actions) if a.kind == "run" and a.id in graph.forward), default=-1
    )
    while end < len(actions) and (
        actions[end].kind in ("swap_out", "wait")
        or (actions[end].kind == "run" and actions[end].id not in graph.backward)
    ):
        end += 1
    return end


def _bare(forward: Sequence[Action]) -> list[Action]:
    """The forward part of a micro-batch that is recomputed later: nothing is swapped."""
    return [action for action in forward if action.kind == "run"]


class TaskActions:
    """What a stage's tasks run, but for the ops that stand for other stages.

    Reservations are left out: they fit one step in an arena of its own, and here many micro-batches
    share one. Nothing waits for a copy: it has ended before the next action starts.

    Attributes:
        forward: by a forward task that leaves what its backward task reads.
        bare_forward: by one that keeps nothing.
        recompute: the forward part again, without stateful ops, which run once, and without what
            nothing in the backward part needs.
        backward: by a backward task.
    """

    def __init__(self, graph: StepGraph, plan: Sequence[Action]):
        program = stage_program(graph, plan)
        split = split_program(graph, program)
        self.forward, self.backward = (
            [
                action
                for action in part
                if action.kind not in ("reserve", "wait")
                and not (action.kind == "run" and graph.ops[action.id].type in _STAND_INS)
            ]
            for part in (program[:split], program[split:])
        )
        self.bare_forward = _bare(self.forward)
        needed = {action.id for action in self.backward if action.kind == "run"}
        for action in reversed(self.bare_forward):
            made = graph.ops[action.id].outputs
            if any(consumer in needed for t in made for consumer in graph.consumers[t]):
                needed.add(action.id)
        beside = {action.id for action in self.bare_forward} - needed
        self.recompute: list[Action] = []
        for action in self.forward:
            runs = action.kind in ("run", "recompute")
            op = graph.ops[action.id if runs else graph.tensors[action.id].op]
            if op.id not in beside and not (runs and has_state(op)):
                self.recompute.append(action)

    def of(self, kind: TaskKind, *, recomputed: bool) -> Sequence[Action]:
        """What a task runs on a micro-batch that is `recomputed`, or not."""
        if kind == "forward":
            return self.bare_forward if recomputed else self.forward
        return self.recompute if kind == "recompute" else self.backward


def has_state(op: Op) -> bool:
    """Whether running the op again would change what it makes, or something else."""
    return op.stateful and op.type not in GIVEN_TYPES


def _swapped_bytes(graph: StepGraph, forward: Sequence[Action]) -> int:
    """What is in host memory behind the forward part."""
    outside: set[int] = set()
    for action in forward:
        if action.kind == "swap_out":
            outside.add(action.id)
        elif action.kind == "swap_in":
            outside.discard(action.id)
    return sum(graph.tensors[t].size_bytes for t in outside)
