"""A stage's program as its tasks run it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memtrade.graph import StepGraph
from memtrade.pipeline.design.stages import RECEIVE, SEND, StageGraph
from memtrade.pipeline.design.work import TaskActions, split_program, stage_program
from memtrade.plan import Action

# Ops of a stage's graph that stand for other stages.
_STAND_INS = frozenset({SEND, RECEIVE, "Placeholder"})


class StageProgram:
    """In ids of the whole graph.

    Attributes:
        tasks: what they run; updates stand for the addition to the accumulator.
        gradient_of: for each update of a weight, the gradient that it applies, in their order.
    """

    def __init__(self, whole: StepGraph, stage: StageGraph, plan: Sequence[Action]):
        own = stage.graph
        program = stage_program(own, plan)
        split = split_program(own, program)
        forward = list(_translated(program[:split], own, whole))
        backward = list(_translated(program[split:], own, whole))
        self.tasks = TaskActions(whole, forward, backward)
        late = [action.id for action in backward if action.kind == "run"]
        self.gradient_of = {op: stage.gradient_of[op] for op in late if op in stage.gradient_of}


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
