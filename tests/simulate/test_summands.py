"""Sums of three and more add up as they did in the step as it came."""

import msgspec

from memtrade.graph import StepGraph
from memtrade.plan import Action
from memtrade.simulate.memory import Simulator
from memtrade.simulate.summands import Sum, sums_as_they_came, taken_by_sums
from tests.graphs import ARENA, Builder

SIZE = 1024
TOTAL = 6  # the sum that `kept_in_a_plan` has


def everything(graph: StepGraph) -> list[Action]:
    return [Action("run", op.id) for op in graph.ops]


def summed(graph: StepGraph, actions=None) -> dict[str, Sum]:
    actions = actions or everything(graph)
    found = sums_as_they_came(graph, actions)
    return {graph.ops[actions[index].id].name: each for index, each in found.items()}


def shared() -> StepGraph:
    """As the runtime computes twice what is written twice only once, the first sum of both reads
    what the second one does."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[SIZE])
    firsts = [b.op(name, "Sin", [x], sizes=[SIZE])[0] for name in ("m", "n")]
    (a,) = b.op("a", "Cos", [x], sizes=[SIZE])
    (one,) = b.op("one", "AddN", [*firsts, a], sizes=[SIZE])
    again = [b.op(f"{name} again", "Sin", [x], sizes=[SIZE])[0] for name in ("m", "n")]
    (c,) = b.op("c", "Cos", [one], sizes=[SIZE])
    (two,) = b.op("two", "AddN", [*again, c], sizes=[SIZE])
    nodes = {"m": 0, "n": 1, "m again": 0, "n again": 1}
    b.ops = [msgspec.structs.replace(op, node=nodes.get(op.name, -1)) for op in b.ops]
    return b.build(inputs=[x], outputs=[two], loss=two)


def test_what_another_sum_still_reads_is_not_begun_with():
    assert summed(shared()) == {"one": Sum(order=(2, 1, 0), held=())}


def kept_in_a_plan() -> tuple[StepGraph, list[Action]]:
    """Of a and b something is computed before they are added up, and by a plan once more."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[SIZE])
    a, other, c = (b.op(name, "Sin", [x], sizes=[SIZE])[0] for name in "abc")
    of_a, of_b = (b.op(f"of {t}", "Cos", [t], sizes=[SIZE])[0] for t in (a, other))
    (total,) = b.op("total", "AddN", [a, other, c], controls=[4, 5], sizes=[SIZE])
    (end,) = b.op("end", "Dot", [total, of_a, of_b], sizes=[4])
    graph = b.build(inputs=[x], outputs=[end], loss=end)
    *most, last = everything(graph)
    return graph, [*most, Action("recompute", 4), Action("recompute", 5), last]


def test_what_a_plan_reads_later_is_begun_with_all_the_same():
    graph, actions = kept_in_a_plan()
    assert summed(graph) == {}
    assert summed(graph, actions) == {"total": Sum(order=(0, 1, 2), held=(2,))}


def test_what_is_held_is_not_taken_for_the_sum():
    """The rewriter holds c, which alone is free: so the kernel asks for a place of its own."""
    graph, actions = kept_in_a_plan()
    assert taken_by_sums(graph) == {TOTAL: (0, 1)}
    result = Simulator(graph, ARENA).memory(actions, series=True)
    at = next(i for i, action in enumerate(actions) if action.id == TOTAL)
    assert result.in_use_bytes is not None
    assert result.in_use_bytes[at] == result.persistent_bytes + 4 * SIZE  # a, b, c and their sum


def test_what_a_sum_began_with_is_tried_first():
    graph = shared()
    assert taken_by_sums(graph)[next(op.id for op in graph.ops if op.name == "one")] == (2, 1)


def test_two_summands_have_no_order():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[SIZE])
    parts = [b.op(name, "Sin", [x], sizes=[SIZE])[0] for name in "ab"]
    (total,) = b.op("total", "AddN", parts, sizes=[SIZE])
    (end,) = b.op("end", "Dot", [total, *parts], sizes=[4])
    graph = b.build(inputs=[x], outputs=[end], loss=end)
    assert summed(graph) == {}
