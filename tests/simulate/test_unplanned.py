"""Steps without a plan: what the runtime merges before it runs them."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from memtrade.graph import StepGraph
from memtrade.simulate.bfc import MIB
from memtrade.simulate.memory import Simulator
from memtrade.simulate.unplanned import executor_order, merged_tensors
from tests.graphs import ARENA, Builder


def twice(*, stateful: bool = False, held_back: bool = False, same: bool = True) -> StepGraph:
    """Two branches that begin with a ReLU of x each; both are read again at the end."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (one,) = b.op("one", "Relu", [x], sizes=[MIB], stateful=stateful)
    (a,) = b.op("a", "MatMul", [one, x], sizes=[MIB])
    controls = [2] if held_back else []
    (two,) = b.op("two", "Relu", [x], sizes=[MIB], stateful=stateful, controls=controls)
    (c,) = b.op("c", "MatMul", [two, a], sizes=[MIB])
    (last,) = b.op("last", "Concat", [one, two, c], sizes=[MIB])
    places = {"one": 0, "two": 0 if same else 1}
    b.ops = [msgspec.structs.replace(op, node=places.get(op.name, -1)) for op in b.ops]
    return b.build(inputs=[x], outputs=[last], loss=last)


def test_what_is_computed_twice_is_computed_once_and_read_by_all() -> None:
    graph = twice()
    one, two = graph.find(["one", "two"])
    assert merged_tensors(graph) == {two: one}
    assert [graph.ops[i].name for i in executor_order(graph)] == ["x", "one", "a", "c", "last"]


@pytest.mark.parametrize("apart", [{"stateful": True}, {"held_back": True}, {"same": False}])
def test_what_only_looks_alike_stays_apart(apart: dict[str, bool]) -> None:
    graph = twice(**apart)
    assert merged_tensors(graph) == {}
    assert len(executor_order(graph)) == len(graph.ops)


def test_a_step_without_a_plan_holds_the_merged_tensor_once() -> None:
    target = dataclasses.replace(ARENA, limit_bytes=64 * MIB)
    merged, apart = (
        Simulator(graph, target).memory([]).live_peak_bytes
        for graph in (twice(), twice(same=False))
    )
    assert apart - merged == MIB


def test_a_gradient_of_constants_alone_holds_nothing_back() -> None:
    """That of the last bias under a mean of outputs: the optimizer gathers it with all others."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (c,) = b.op("c", "Const", sizes=[4])
    (loss,) = b.op("loss", "Mean", [x], sizes=[4])
    (bias,) = b.op("bias", "Neg", [c], sizes=[4])
    (weight,) = b.op("weight", "MatMul", [x, loss], sizes=[MIB])
    (one,) = b.op("one", "Mul", [weight, loss], sizes=[MIB])
    (two,) = b.op("two", "Mul", [bias, c, loss], sizes=[4])
    graph = b.build(inputs=[x], outputs=[one, two], loss=loss)
    data = msgspec.structs.replace(graph.data, gathered=((weight, bias),))
    graph = StepGraph(data)
    assert graph.folded[graph.tensors[bias].op]
    ran = {graph.ops[i].name for i in executor_order(graph)}
    assert ran == {"x", "c", "loss", "weight", "one", "two"}
