"""Programs in stages: what is recomputed may be dropped again, and recomputed again.

`schedule.lower` recomputes each dropped tensor once and keeps it until its last reader. With little
memory that is not enough: a checkpoint may have to go again between the recomputations that start
from it. Here a schedule says so, stage by stage:

    forward    run the forward part; of its tensors hold only `retained`
    stage      recompute `rebuild`, then run some backward ops, recomputing whatever else they
               read just before they read it; afterwards of the forward tensors hold only `retained`

"Hold" means that later readers read that version; a version that is not held is free once its last
reader has run, and whoever reads the tensor later gets a new one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from memtrade.graph import StepGraph
from memtrade.plan import Action, ActionKind, Decision, Fate
from memtrade.schedule import lower
from memtrade.strategies.base import worth_deciding


class BackwardStage(NamedTuple):
    """Attributes:
    ops: run in this order.
    rebuild: root tensors to recompute first, unless they are there, in this order.
    retained: forward root tensors that later stages may still read as they are.
    """

    ops: Sequence[int]
    rebuild: Sequence[int] = ()
    retained: Iterable[int] = ()


def droppable(graph: StepGraph) -> frozenset[int]:
    """The forward root tensors that can be recomputed and whose memory counts.

    Not those of stateful ops, nor what is read later but too small for a decision.
    """
    large = set(worth_deciding(graph))
    return frozenset(
        t
        for op_id in graph.forward
        for t in graph.ops[op_id].outputs
        if graph.root[t] == t
        and graph.is_intermediate(t)
        and not graph.ops[op_id].stateful
        and (t in large or graph.forward.issuperset(graph.readers(t)))
    )


def phases(graph: StepGraph, kept: Iterable[int]) -> tuple[list[int], list[int]]:
    """The ops up to the turn, and those behind it, in the order that suits keeping `kept`."""
    decisions: dict[int, Decision] = dict.fromkeys(worth_deciding(graph), "recompute")
    decisions.update(dict.fromkeys(kept, "keep"))
    order = [action.id for action in lower(graph, decisions) if action.kind == "run"]
    turn = max(i for i, op_id in enumerate(order) if op_id in graph.forward)
    return order[: turn + 1], order[turn + 1 :]


def emit(graph: StepGraph, stages: Iterable[BackwardStage]) -> tuple[Action, ...]:
    """The program that carries out `stages`, whose ops together must be all ops, in an order that
    respects their inputs. O(actions + stages x tensors held)."""
    may_drop = droppable(graph)
    made: list[Action] = []
    held: set[int] = set()  # tensors, views included, whose latest version may be read

    def is_gone(tensor: int) -> bool:
        return tensor not in held and graph.root[tensor] in may_drop

    def do(kind: ActionKind, op_id: int) -> None:
        made.append(Action(kind, op_id))
        held.update(graph.ops[op_id].outputs)

    def bring_back(tensor: int) -> None:
        stack = [tensor]
        while stack:
            if not is_gone(stack[-1]):
                stack.pop()
                continue
            op_id = graph.tensors[stack[-1]].op
            missing = [t for t in graph.ops[op_id].inputs if is_gone(t)]
            if missing:
                stack.extend(reversed(missing))
            else:
                do("recompute", op_id)

    for stage in stages:
        for t in stage.rebuild:
            bring_back(t)
        for op_id in stage.ops:
            for t in graph.ops[op_id].inputs:
                bring_back(t)
            do("run", op_id)
        retained = frozenset(stage.retained)
        held = {t for t in held if graph.root[t] in retained}
    return tuple(made)


def fates(graph: StepGraph, actions: Iterable[Action]) -> list[Fate]:
    """What becomes of each activation, read off a program without swaps."""
    again = Counter(action.id for action in actions if action.kind == "recompute")
    made = []
    for t in worth_deciding(graph):
        op = graph.ops[graph.tensors[t].op]
        if again[op.id]:
            times = "once" if again[op.id] == 1 else f"{again[op.id]} times"
            made.append(Fate(t, "recompute", times))
        else:
            made.append(Fate(t, "keep", "its op is stateful" if op.stateful else "stored"))
    return made
