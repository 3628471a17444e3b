"""Unrolled loops, in the order in which TensorFlow runs them as loops."""

from __future__ import annotations

import itertools

import msgspec

from memtrade.graph import StepGraph
from memtrade.iterations import AT_ONCE, Place, places_of
from memtrade.simulate.bfc import MIB
from memtrade.simulate.unplanned import executor_order, merged_tensors
from tests.graphs import Builder, chain


def mapped(times: int) -> StepGraph:
    """Each iteration multiplies x by itself; a gradient reads the first one's product."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    made = [b.op(f"map/{i}/body/mul", "Mul", [x, x], sizes=[MIB])[0] for i in range(times)]
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


def test_an_iteration_begins_once_the_one_so_many_before_it_is_done() -> None:
    ran = names(mapped(2 * AT_ONCE + 1))
    at = [ran.index(f"map/{i}/body/mul") for i in range(2 * AT_ONCE + 1)]
    for done, begun in zip(at, at[AT_ONCE:], strict=False):
        assert done < begun


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
