"""What a rewritten step does without, of what is made of constants alone."""

from __future__ import annotations

import msgspec
import pytest

from memtrade.graph import StepGraph
from memtrade.simulate.spared import spared
from tests.graphs import Builder
from tests.simulate.test_constants import zeros_of_sizes
from tests.simulate.test_memory import everything, simulate

MIB = 1 << 20


def test_a_rewritten_step_computes_what_is_the_same_once():
    """As it came, the runtime computes all copies before it keeps one."""
    data, sizes, zeros = zeros_of_sizes(4, MIB)
    (y,) = data.outputs
    # The third is handed out under its own name, and the last is made of something else.
    data = msgspec.structs.replace(
        data, equal=dict.fromkeys(sizes[1:3], sizes[0]), outputs=(y, zeros[2])
    )
    graph = StepGraph(data)
    without = spared(graph)
    assert without.left_out == {graph.tensors[zeros[1]].op}
    assert without.reads == {(graph.tensors[y].op, 1): zeros[0]}
    rewritten, as_it_came = simulate(graph, everything(graph)), simulate(graph, [])
    # The copy, and the constant that only the copy reads: each twice.
    assert as_it_came.peak_bytes - rewritten.peak_bytes == 2 * (MIB + 256)
    assert rewritten.persistent_bytes == as_it_came.persistent_bytes


def doubled(
    *, op: str = "Mul", beside: int = MIB, handed: bool = False, waits: bool = False
) -> tuple[StepGraph, int, int]:
    """A tensor of one number, and an op that reads it beside another: the graph, and both."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[beside])
    (times,) = b.op("times", "Const", sizes=[4])
    (two,) = b.op("two", "Const", sizes=[4])
    (whole,) = b.op("whole", "Tile", [two, times], sizes=[MIB], controls=[0] if waits else [])
    (y,) = b.op("y", op, [whole, x], sizes=[MIB])
    return b.build(inputs=[x], outputs=[y, whole] if handed else [y], loss=y), whole, y


def test_an_op_reads_the_number_in_place_of_a_tensor_that_is_that_all_over():
    graph, whole, y = doubled()
    without = spared(graph)
    assert without.left_out == {graph.tensors[whole].op}
    assert without.reads == {(graph.tensors[y].op, 0): graph.ops[graph.tensors[whole].op].inputs[0]}
    rewritten, as_it_came = simulate(graph, everything(graph)), simulate(graph, [])
    assert as_it_came.persistent_bytes - rewritten.persistent_bytes >= MIB - 256
    assert as_it_came.peak_bytes - rewritten.peak_bytes >= MIB


@pytest.mark.parametrize(
    "given",
    [{"op": "Concat"}, {"beside": 4}, {"waits": True}],
    ids=["it looks at all of it", "it makes it as large", "it waits for an op"],
)
def test_a_tensor_that_is_needed_as_large_as_it_is_stays(given):
    graph, _, _ = doubled(**given)
    without = spared(graph)
    assert (without.reads, without.left_out) == ({}, frozenset())
    assert simulate(graph, everything(graph)).peak_bytes == simulate(graph, []).peak_bytes


@pytest.mark.parametrize(
    ("read", "asks", "numbers"),
    [
        ("xxw", MIB, [2]),
        ("xwx", MIB, [1]),
        ("xww", MIB, [1, 2]),
        ("xxw", 4, [2]),
        ("xww", 4, []),
        ("wxx", MIB, []),
    ],
    ids=["last", "first", "both", "the other is as large", "none is as large", "what is asked"],
)
def test_a_choice_reads_the_number_where_something_else_is_as_large(
    read: str, asks: int, numbers: list[int]
) -> None:
    """As a gather's gradient does, which takes zeros for what lies outside.

    Args:
        read: of the condition and both branches, which are tensors of one number.
        asks: the condition's bytes.
    """
    b = Builder()
    (asked,), (x,) = b.op("c", "Placeholder", sizes=[asks]), b.op("x", "Placeholder", sizes=[MIB])
    (times,), (zero,) = b.op("times", "Const", sizes=[4]), b.op("zero", "Const", sizes=[4])
    (whole,) = b.op("whole", "Tile", [zero, times], sizes=[MIB])
    inputs = [
        whole if letter == "w" else asked if place == 0 else x for place, letter in enumerate(read)
    ]
    (y,) = b.op("y", "SelectV2", inputs, sizes=[MIB])
    graph = b.build(inputs=[asked, x], outputs=[y], loss=y)
    assert spared(graph).reads == {(graph.tensors[y].op, place): zero for place in numbers}
    assert bool(numbers) == (graph.tensors[whole].op in spared(graph).left_out)


@pytest.mark.parametrize(("read", "numbers"), [("wx", [0]), ("xw", [1]), ("wxx", [])])
def test_a_sum_of_two_reads_the_number(read: str, numbers: list[int]) -> None:
    """One of three adds up tensors that are all as large."""
    b = Builder()
    (x,), (sizes,) = b.op("x", "Placeholder", sizes=[MIB]), b.op("sizes", "Const", sizes=[4])
    (zero,) = b.op("zero", "Const", sizes=[4])
    (whole,) = b.op("whole", "Fill", [sizes, zero], sizes=[MIB])
    (y,) = b.op("y", "AddN", [{"w": whole, "x": x}[letter] for letter in read], sizes=[MIB])
    graph = b.build(inputs=[x], outputs=[y], loss=y)
    assert spared(graph).reads == {(graph.tensors[y].op, place): zero for place in numbers}
    assert bool(numbers) == (graph.tensors[whole].op in spared(graph).left_out)


def test_what_the_step_hands_out_is_made_all_the_same():
    graph, *_ = doubled(handed=True)
    assert not spared(graph).left_out
    assert simulate(graph, everything(graph)).persistent_bytes >= MIB
