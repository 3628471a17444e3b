"""A plan goes along with a trial: to the same step with ops on top, and to no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from memtrade.errors import InvalidPlanError
from memtrade.graph import Op, StepGraph, Tensor
from memtrade.measure import worker
from memtrade.measure.foreseen import carried, given_plan, save_foreseen
from memtrade.measure.protocol import TrialSpec
from memtrade.plan import Action, Fate, check_plan
from memtrade.simulate.predict import Predictor
from memtrade.strategies import PLANNED, make_options
from memtrade.strategies.base import make_plan
from memtrade.target import Target
from tests.graphs import ARENA, chain

GRAPH = chain(6)


def handed_on(graph: StepGraph, at: int, kind: str = "NoOp") -> StepGraph:
    """With an op before that place which waits for the one before it, and one at the end that
    returns what was returned."""
    data = graph.data

    def moved(op_id: int) -> int:
        return op_id + (op_id >= at)

    ops = [
        msgspec.structs.replace(
            op, id=moved(op.id), name=f"outer/{op.name}_3", controls=tuple(map(moved, op.controls))
        )
        for op in data.ops
    ]
    ops.insert(at, Op(at, "leave", kind, (), (at - 1,), (), False, {}))
    tensors = [msgspec.structs.replace(each, op=moved(each.op)) for each in data.tensors]
    returned, new = data.outputs[0], len(tensors)
    like = tensors[returned]
    tensors.append(Tensor(new, len(ops), 0, like.dtype, like.shape, like.size_bytes))
    ops.append(Op(len(ops), "Identity_2", "Identity", (returned,), (at,), (new,), False, {}))
    outputs = (new, *data.outputs[1:])
    return StepGraph(
        msgspec.structs.replace(data, ops=tuple(ops), tensors=tuple(tensors), outputs=outputs)
    )


@pytest.mark.parametrize("strategy", ["lms", "sqrt_n", "optimal"])
def test_ops_that_hand_on_change_nothing(strategy: str, tmp_path: Path) -> None:
    plan = PLANNED[strategy].plan(GRAPH, make_options(strategy), ARENA)
    above = handed_on(GRAPH, 5)
    save_foreseen(plan, GRAPH, tmp_path / "foreseen.plan")
    made = given_plan(tmp_path / "foreseen.plan", above)
    assert made is not None
    check_plan(made, above)
    before, after = Predictor(GRAPH, ARENA).predict(plan), Predictor(above, ARENA).predict(made)
    assert after.peak_bytes == before.peak_bytes
    assert len(made.actions) == len(plan.actions) + 2
    assert [fate.decision for fate in made.fates] == [fate.decision for fate in plan.fates]


def test_a_plan_alone_is_taken_as_it_is_and_for_its_own_graph(tmp_path: Path) -> None:
    plan = PLANNED["lms"].plan(GRAPH, make_options("lms"), ARENA)
    plan.save(tmp_path / "saved.plan")
    assert given_plan(tmp_path / "saved.plan", GRAPH) == plan
    with pytest.raises(InvalidPlanError, match="made for another graph"):
        given_plan(tmp_path / "saved.plan", handed_on(GRAPH, 5))


def test_another_step_has_plans_of_its_own() -> None:
    plan = PLANNED["lms"].plan(GRAPH, make_options("lms"), ARENA)
    assert carried(plan, GRAPH, GRAPH) == plan
    assert carried(plan, GRAPH, handed_on(GRAPH, 5, kind="Relu")) is None  # it computes something
    assert carried(plan, GRAPH, chain(7)) is None
    assert carried(plan, GRAPH, chain(6, size=2 << 20)) is None
    assert carried(plan, handed_on(GRAPH, 5), GRAPH) is None


@pytest.mark.parametrize("far", [Action("run", 10**6), Fate(10**6, "swap")])
def test_a_saved_plan_is_checked_before_anyone_looks_into_it(
    far: Action | Fate, tmp_path: Path
) -> None:
    plan = PLANNED["lms"].plan(GRAPH, make_options("lms"), ARENA)
    if isinstance(far, Action):
        plan = msgspec.structs.replace(plan, actions=(*plan.actions, far))
    else:
        plan = msgspec.structs.replace(plan, fates=(*plan.fates, far))
    plan.save(tmp_path / "saved.plan")
    trial = worker._Worker(TrialSpec(plan_path=str(tmp_path / "saved.plan")), lambda said: None)
    traced: Any = SimpleNamespace(graph=GRAPH)
    with pytest.raises(InvalidPlanError, match="1000000, but the graph's"):
        trial._plan(traced, ARENA)


def test_a_foreseen_plan_that_finds_no_room_here_gives_way_to_one_of_ones_own(
    tmp_path: Path,
) -> None:
    """It was made for memory without the holes that lie between variables here."""
    foreseen = make_plan("lms", GRAPH, make_options("lms"), ARENA, ())  # keeps all
    own = PLANNED["lms"].plan(GRAPH, make_options("lms"), ARENA)
    limit_bytes = Predictor(GRAPH, ARENA).predict(foreseen).peak_bytes - 1
    small = ARENA.replace(limit_bytes=limit_bytes)
    path = tmp_path / "tried.plan"
    spec = TrialSpec(strategy="lms", plan_path=str(path))
    traced: Any = SimpleNamespace(graph=GRAPH)

    def planned(target: Target) -> tuple[Action, ...]:
        return worker._Worker(spec, lambda said: None)._plan(traced, target).actions

    save_foreseen(foreseen, GRAPH, path)
    assert planned(ARENA) == foreseen.actions
    assert planned(small) == own.actions
    path.with_suffix(".graph").unlink()  # given by hand, it is run whatever it takes
    assert planned(small) == foreseen.actions
