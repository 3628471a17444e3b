"""Unrolled loops, in the order in which TensorFlow runs them as loops."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from memtrade.graph import StepGraph
from memtrade.iterations import (
    AT_ONCE,
    Place,
    iteration_name,
    largest_sums,
    loops_read,
    places_of,
)
from memtrade.simulate.bfc import MIB
from memtrade.simulate.unplanned import (
    executor_order,
    merged_tensors,
    other_orders,
    usual_order,
)
from tests.graphs import Builder, chain


def mapped(times: int, at_once: int = AT_ONCE) -> StepGraph:
    """Each iteration multiplies x by itself; a gradient reads the first one's product."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    named = [f"{iteration_name('map', i, at_once)}body/mul" for i in range(times)]
    made = [b.op(name, "Mul", [x, x], sizes=[MIB])[0] for name in named]
    (early,) = b.op("early", "Neg", [made[0]], sizes=[MIB])
    (loss,) = b.op("loss", "AddN", [early, *made], sizes=[MIB])
    return b.build(inputs=[x], outputs=[loss], loss=loss)


def names(graph: StepGraph) -> list[str]:
    return [graph.ops[op_id].name for op_id in executor_order(graph)]


def test_a_place_names_the_loop_the_iteration_and_what_the_body_calls_it() -> None:
    b = Builder()
    b.op("a/while/3/body/scan/while/0/body/b/mul", "NoOp")
    (loss,) = b.op("layer/2/body_part", "Sum", sizes=[4])
    graph = b.build(inputs=[], outputs=[loss], loss=loss)
    assert places_of(graph) == {
        0: (
            Place("a/while", 3, "scan/while/0/body/b/mul"),
            Place("a/while/3/body/scan/while", 0, "b/mul"),
        )
    }
    assert places_of(chain(2)) == {}


def test_a_list_is_read_once_it_is_whole() -> None:
    assert names(mapped(3))[-2:] == ["early", "loss"]


def test_each_iteration_computes_its_own() -> None:
    assert merged_tensors(mapped(3)) == {}


@pytest.mark.parametrize("at_once", [1, 3, AT_ONCE])
def test_an_iteration_begins_once_the_one_so_many_before_it_is_done(at_once: int) -> None:
    graph = mapped(2 * AT_ONCE + 1, at_once)
    places = places_of(graph)
    turns = [places[op_id][0] for op_id in executor_order(graph) if op_id in places]
    at = [turn.iteration for turn in turns]
    begun = [at.index(i) for i in range(2 * AT_ONCE + 1)]
    for one, later in zip(begun, begun[at_once:], strict=False):
        assert one < later
    assert (at == sorted(at)) == (at_once == 1)  # the last that is ready goes first
    assert {turn.at_once for turn in turns} == {at_once}


def summed() -> StepGraph:
    """A loop, and one that reads what it made and sums up a large and a small tensor of it."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    made = [b.op(f"f/{i}/body/y", "Sin", [x], sizes=[MIB])[0] for i in range(3)]
    totals = {2 * MIB: x, MIB: x}
    for i, y in enumerate(reversed(made)):
        for size in totals:
            (part,) = b.op(f"g/{i}/body/part{size}", "MatMul", [y, y], sizes=[size])
            (totals[size],) = b.op(
                f"g/{i}/body/sum{size}", "AddV2", [totals[size], part], sizes=[size]
            )
    (loss,) = b.op("loss", "AddN", [*totals.values()], sizes=[4])
    return b.build(inputs=[x], outputs=[loss], loss=loss)


def test_a_gradient_s_loop_reads_the_one_that_it_is_the_gradient_of() -> None:
    assert loops_read(summed()) == {"g": "f"}


def test_the_largest_sum_that_goes_on_may_be_left_for_later() -> None:
    """What it adds up then waits, of all iterations."""
    graph = summed()
    sums = largest_sums(graph)
    assert {graph.ops[each].name for each in sums} == {f"g/{i}/body/sum{2 * MIB}" for i in range(3)}
    one_at_a_time, *others = other_ways(graph)[1:]
    assert of_large(one_at_a_time) == ["part", "sum"] * 3
    assert ["part"] * 3 + ["sum"] * 3 in map(of_large, others)


def test_of_sums_as_large_as_each_other_all_may_be_left_for_later() -> None:
    """As an LSTM's two kernels' are."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    totals = {"one": x, "two": x, "bias": x}
    for i in range(3):
        for name, size in zip(totals, (MIB, MIB, 4), strict=True):
            (part,) = b.op(f"g/{i}/body/{name}", "MatMul", [x, x], sizes=[size])
            (totals[name],) = b.op(
                f"g/{i}/body/{name}_sum", "AddV2", [totals[name], part], sizes=[size]
            )
    (loss,) = b.op("loss", "AddN", [*totals.values()], sizes=[4])
    graph = b.build(inputs=[x], outputs=[loss], loss=loss)
    names = {graph.ops[each].name for each in largest_sums(graph)}
    assert names == {f"g/{i}/body/{name}_sum" for i in range(3) for name in ("one", "two")}


def of_large(names: list[str]) -> list[str]:
    return [
        name.split("/")[-1].removesuffix(str(2 * MIB)) for name in names if str(2 * MIB) in name
    ]


def other_ways(graph: StepGraph) -> list[list[str]]:
    orders = [usual_order(graph), *other_orders(graph, {}, onednn=True)]
    return [[graph.ops[each].name for each in order] for order in orders]


def test_a_step_whose_ops_wait_for_each_other_has_one_order() -> None:
    assert len(set(map(tuple, other_ways(chain(3))))) == 1


def test_other_orders_are_the_same_ones_each_time() -> None:
    assert other_ways(summed()) == other_ways(summed())


def test_what_an_iteration_computes_twice_runs_once_however_late_it_begins() -> None:
    """What is merged away waits for nothing, its own iteration's turn included."""
    b = Builder()
    (last,) = b.op("x", "Placeholder", sizes=[MIB])
    for i in range(AT_ONCE + 2):
        (one,) = b.op(f"l/{i}/body/one", "Neg", [last], sizes=[MIB])
        (two,) = b.op(f"l/{i}/body/two", "Neg", [last], sizes=[MIB])
        (last,) = b.op(f"l/{i}/body/sum", "AddV2", [one, two], sizes=[MIB])
    b.ops = [msgspec.structs.replace(op, node=0 if op.type == "Neg" else -1) for op in b.ops]
    graph = b.build(inputs=[0], outputs=[last], loss=last)
    assert len(merged_tensors(graph)) == AT_ONCE + 2
    turns = [[f"l/{i}/body/one", f"l/{i}/body/sum"] for i in range(AT_ONCE + 2)]
    assert names(graph) == ["x", *itertools.chain.from_iterable(turns)]


def test_names_that_only_look_like_a_loop_s_hold_nothing_up() -> None:
    """Each of these would wait for the other."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (first,) = b.op("l/0/body/a", "Neg", [x], sizes=[MIB])
    (outside,) = b.op("outside", "Neg", [first], sizes=[MIB])
    (last,) = b.op("l/1/body/a", "Neg", [outside], sizes=[MIB])
    graph = b.build(inputs=[x], outputs=[last], loss=last)
    assert names(graph) == ["x", "l/0/body/a", "outside", "l/1/body/a"]
