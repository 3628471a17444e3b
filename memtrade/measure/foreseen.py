"""A plan that goes along with a trial: the child runs what its parent has foreseen.

    parent's graph ─► plan ─┐
          └─────────────────┴─► files ─► child: the same ops, and a few that hand results on

The child reads its step out of a file, so functions lie within functions, and ops that only hand
on what they get come on top. A search for a plan ends elsewhere for each small difference, and
takes as long again; carried over by the ops that are the same, the plan that is tried is the one
that was simulated.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from memtrade.errors import InvalidPlanError
from memtrade.graph import Op, StepGraph
from memtrade.measure.protocol import TrialSpec
from memtrade.plan import Action, Fate, Plan, check_plan, load_plan
from memtrade.rebatch import bare

# Ops that may be there on top: they compute nothing.
_HANDING_ON = frozenset({"Identity", "NoOp"})


# A plan, and the graph that it was made for.
Foreseen = tuple[Plan, StepGraph]


@contextlib.contextmanager
def told(spec: TrialSpec, foreseen: Foreseen | None) -> Iterator[TrialSpec]:
    """The trial as its child is told of it: within the block, the plan and its graph are files."""
    if foreseen is None:
        yield spec
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "foreseen.plan"
        save_foreseen(*foreseen, path)
        yield msgspec.structs.replace(spec, plan_path=str(path))


def save_foreseen(plan: Plan, graph: StepGraph, path: Path) -> None:
    """Writes the plan, and beside it the graph that it was made for."""
    plan.save(path)
    _graph_of(path).write_bytes(graph.to_bytes())


def given_plan(path: Path, graph: StepGraph) -> Plan | None:
    """The saved plan, carried over to `graph` if the one that it was made for is beside it; None if
    that is another step. Raises InvalidPlanError where none is beside it and it does not fit."""
    plan = load_plan(path)
    if not was_foreseen(path):
        check_plan(plan, graph)
        return plan
    return carried(plan, StepGraph.from_bytes(_graph_of(path).read_bytes()), graph)


def was_foreseen(path: Path) -> bool:
    """Whether the saved plan goes along with a trial: others are run whatever they take."""
    return _graph_of(path).exists()


def carried(plan: Plan, before: StepGraph, graph: StepGraph) -> Plan | None:
    """A plan for `before` as one for `graph`, which has the same ops in the same order, and others
    among them that hand on what they get, which run as soon as they can; None of another step."""
    places = _places(before, graph)
    if places is None:
        return None
    tensors = {
        t: made
        for op, place in zip(before.ops, places, strict=True)
        for t, made in zip(op.outputs, graph.ops[place].outputs, strict=True)
    }
    moved = msgspec.structs.replace(
        plan,
        fingerprint=graph.fingerprint,
        fates=tuple(Fate(tensors[f.tensor], f.decision, f.reason) for f in plan.fates),
        actions=tuple(_actions(plan, graph, places, tensors)),
    )
    try:
        check_plan(moved, graph)
    except InvalidPlanError:
        return None
    return moved


def _graph_of(path: Path) -> Path:
    return path.with_suffix(".graph")


def _places(before: StepGraph, graph: StepGraph) -> list[int] | None:
    """For each op of `before`, the id of the same in `graph`; None where one is missing."""
    places: list[int] = []
    tensors: dict[int, int] = {}
    for op in graph.ops:
        mine = before.ops[len(places)] if len(places) < len(before.ops) else None
        if mine is not None and _is_same(mine, before, op, graph, tensors):
            places.append(op.id)
            tensors.update(zip(mine.outputs, op.outputs, strict=True))
        elif op.type not in _HANDING_ON:
            return None
    return places if len(places) == len(before.ops) else None


def _is_same(
    mine: Op, before: StepGraph, op: Op, graph: StepGraph, tensors: dict[int, int]
) -> bool:
    if (mine.type, mine.stateful, mine.attrs) != (op.type, op.stateful, op.attrs):
        return False
    if mine.type != "Placeholder" and not bare(op.name).endswith(bare(mine.name)):
        return False
    made = [
        [(g.tensors[t].dtype, g.tensors[t].shape) for t in each.outputs]
        for g, each in ((before, mine), (graph, op))
    ]
    return made[0] == made[1] and op.inputs == tuple(tensors[t] for t in mine.inputs)


def _actions(
    plan: Plan, graph: StepGraph, places: list[int], tensors: dict[int, int]
) -> Iterator[Action]:
    if not plan.actions:
        return
    left = sorted({op.id for op in graph.ops} - set(places))
    ran: set[int] = set()
    for action in plan.actions:
        if action.kind in ("run", "recompute"):
            yield Action(action.kind, places[action.id])
            ran.add(places[action.id])
            for extra in [each for each in left if _is_ready(graph.ops[each], graph, ran)]:
                yield Action("run", extra)
                ran.add(extra)
                left.remove(extra)
        elif action.kind == "reserve":
            yield action
        else:
            yield Action(action.kind, tensors[action.id])
    yield from (Action("run", extra) for extra in left)


def _is_ready(op: Op, graph: StepGraph, ran: set[int]) -> bool:
    return all(graph.tensors[t].op in ran for t in op.inputs) and ran.issuperset(op.controls)
