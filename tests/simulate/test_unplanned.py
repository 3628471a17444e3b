"""Steps without a plan: what the runtime merges before it runs them."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest

from memtrade.facts import CPU, OUTPUTS, shipped
from memtrade.graph import StepGraph
from memtrade.kernel_pairs import bias_gradients
from memtrade.simulate.bfc import MIB
from memtrade.simulate.memory import Simulator
from memtrade.simulate.turns import turns_of
from memtrade.simulate.unplanned import executor_order, merged_tensors, other_orders
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


def with_a_bias() -> StepGraph:
    """A convolution's gradients, and an update that reads the bias's."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (g,) = b.op("g", "Relu", [x], sizes=[MIB])
    (bias,) = b.op("bias", "BiasAddGrad", [g], sizes=[4])
    (dx,) = b.op("dx", "Conv2DBackpropInput", [x, g], sizes=[MIB])
    (dw,) = b.op("dw", "Conv2DBackpropFilter", [x, g], sizes=[MIB])
    (update,) = b.op("update", "Mul", [bias, x], sizes=[4])
    (last,) = b.op("last", "Concat", [dx, dw, update], sizes=[MIB])
    return b.build(inputs=[x], outputs=[last], loss=last)


def test_gradients_that_one_kernel_makes_run_side_by_side_behind_the_inputs() -> None:
    graph = with_a_bias()
    pairs = bias_gradients(graph)
    apart, paired = (
        [graph.ops[i].name for i in executor_order(graph, each)] for each in ({}, pairs)
    )
    assert apart == ["x", "g", "dw", "dx", "bias", "update", "last"]
    assert paired == ["x", "g", "dx", "dw", "bias", "update", "last"]


@pytest.mark.parametrize("onednn", [True, False])
def test_readers_go_in_other_orders_where_onednn_may_have_them(onednn: bool) -> None:
    target = dataclasses.replace(ARENA, facts=shipped(CPU if onednn else OUTPUTS))
    graph = with_a_bias()
    simulator = Simulator(graph, target)
    usual = [action.id for action in simulator.unplanned]
    others = [[action.id for action in each] for each in simulator.otherwise]
    assert all(sorted(each) == sorted(usual) for each in others)
    gradients = graph.find(["dx", "dw"])
    first = {next(graph.ops[i].name for i in each if i in gradients) for each in others}
    assert first == ({"dx", "dw"} if onednn else {"dw"})


def test_filter_gradients_that_may_wait_all_do_in_one_order_and_none_in_another() -> None:
    """Twelve layers, of which each goes either way: that all go one is one chance in thousands."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (g,) = b.op("g", "Relu", [x], sizes=[MIB])
    made = []
    for i in range(12):
        bias, dw = (
            b.op(f"bias{i}", "BiasAddGrad", [g], sizes=[4]),
            b.op(f"dw{i}", "Conv2DBackpropFilter", [x, g], sizes=[MIB]),
        )
        made += [*bias, *dw]
        (g,) = b.op(f"dx{i}", "Conv2DBackpropInput", [x, g], sizes=[MIB])
    (last,) = b.op("last", "Concat", [g, *made], sizes=[MIB])
    graph = b.build(inputs=[x], outputs=[last], loss=last)
    pairs = bias_gradients(graph)
    end = graph.find(["dx11"])[0]
    early = {
        sum(order.index(gradient) < order.index(end) for gradient in pairs)
        for order in other_orders(graph, pairs, onednn=True)
    }
    assert {0, len(pairs)} <= early


def with_two_weights() -> StepGraph:
    """The gradient of what is between two weights waits for nothing but the first product."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (one,) = b.op("one", "ReadVariableOp", sizes=[MIB])
    (two,) = b.op("two", "ReadVariableOp", sizes=[MIB])
    (y,) = b.op("y", "MatMul", [x, one], sizes=[MIB])
    (early,) = b.op("early", "Sign", [y], sizes=[MIB])
    (loss,) = b.op("loss", "MatMul", [y, two], sizes=[MIB])
    (last,) = b.op("last", "Mul", [early, loss], sizes=[MIB])
    return b.build(inputs=[x], outputs=[last], loss=loss)


def test_what_waits_for_nothing_goes_in_any_order_with_all_that_hangs_on_it() -> None:
    """So what the gradient reads early may be there before the forward pass goes on, or after."""
    graph = with_two_weights()
    loss, early = graph.find(["loss", "early"])
    orders = list(other_orders(graph, {}, onednn=False))
    assert {order.index(loss) < order.index(early) for order in orders} == {True, False}
    for order in orders:
        assert all(order.index(p) < order.index(op.id) for op in graph.ops for p in op.inputs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_gradient_that_was_come_to_first_has_the_later_turn(dtype: str) -> None:
    """By the weight, that of the input; by all else, as a rule, that of the weight."""
    b = Builder()
    (w,) = b.op("w", "ReadVariableOp", sizes=[MIB])
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (y,) = b.op("y", "MatMul", [x, w], sizes=[MIB])
    (dy,) = b.op("dy", "Neg", [y], sizes=[MIB])
    (dx,) = b.op("dx", "MatMul", [dy, w], sizes=[MIB])
    (dw,) = b.op("dw", "MatMul", [x, dy], sizes=[MIB])
    (last,) = b.op("last", "Mul", [dx, dw], sizes=[MIB])
    b.tensors = [msgspec.structs.replace(t, dtype=dtype) for t in b.tensors]
    graph = b.build(inputs=[x], outputs=[last], loss=y)
    turns = [turns_of(graph, random.Random(seed)) for seed in range(8)]
    if dtype == "float64":  # oneDNN has no kernels for it
        assert turns == [{}] * 8
        return
    dw_id, dx_id = graph.find(["dw", "dx"])
    assert {set(each) == set(graph.find(["y", "dx", "dw"])) for each in turns} == {True}
    assert {each[dx_id] < each[dw_id] for each in turns} == {True, False}


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
