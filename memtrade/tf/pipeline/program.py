"""A stage's program as its tasks run it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memtrade.graph import StepGraph
from memtrade.pipeline.stages import RECEIVE, SEND, StageGraph
from memtrade.pipeline.work import split_program
from memtrade.plan import Action
from memtrade.schedule import base_order

# Ops of a stage's graph that stand for other stages.
_STAND_INS = frozenset({SEND, RECEIVE, "Placeholder"})


class Program:
    """In ids of the whole graph.

    Attributes:
        forward: the actions of a forward task and of a recomputation.
        backward: likewise; updates stand for the addition to the accumulator.
        only_beside: forward ops that a recomputation leaves out.
        gradient_of: for each update of a weight, the gradient that it applies.
    """

    def __init__(self, whole: StepGraph, stage: StageGraph, plan: Sequence[Action]):
        own = stage.graph
        program = plan or [Action("run", op_id) for op_id in base_order(own)]
        split = split_program(own, program)
        self.forward = list(_translated(program[:split], own, whole))
        self.backward = list(_translated(program[split:], own, whole))
        updates = set(stage.updates)
        late = [action.id for action in self.backward if action.kind == "run"]
        self.gradient_of = {
            update: max(
                (t for t in whole.ops[update].inputs if whole.tensors[t].op in whole.backward),
                key=lambda t: whole.tensors[t].size_bytes,
            )
            for update in late
            if update in updates
        }
        needed, early = set(late), [a.id for a in self.forward if a.kind == "run"]
        for op_id in reversed(early):
            if any(c in needed for t in whole.ops[op_id].outputs for c in whole.consumers[t]):
                needed.add(op_id)
        self.only_beside = frozenset(early) - needed


def _translated(actions: Iterable[Action], own: StepGraph, whole: StepGraph) -> Iterable[Action]:
    """A stage's actions in the whole graph's ids, without the ops that stand for other stages.

    Reservations are left out: they fit one step in an arena of its own, and here many micro-batches
    share one. Nothing waits for a copy: it has ended before the next action starts.
    """
    ids = {op.name: op.id for op in whole.ops}
    for action in actions:
        if action.kind in ("run", "recompute"):
            op = own.ops[action.id]
            if op.type not in _STAND_INS:
                yield Action(action.kind, ids[op.name])
        elif action.kind in ("swap_out", "swap_in"):
            t = own.tensors[action.id]
            yield Action(action.kind, whole.ops[ids[own.ops[t.op].name]].outputs[t.index])
