"""Outputs that threads ask for, in any order."""

from __future__ import annotations

import pytest

from memtrade.graph import StepGraph
from memtrade.simulate.memory import Simulator
from memtrade.simulate.otherwise import made_abreast, otherwise
from tests.graphs import ARENA, Builder, target
from tests.simulate.test_memory import everything

KIB = 1 << 10
SIZE = 512 * KIB


def split(outputs: int = 4, size: int = SIZE, op: str = "Split") -> StepGraph:
    """Two holes, one of them twice as large; a split, of which the second output goes early; and a
    tensor that fits the larger hole if that output lay there."""
    b = Builder()
    (axis,) = b.op("axis", "Const", sizes=[4])
    (x,) = b.op("x", "Placeholder", sizes=[outputs * size])
    (hole,) = b.op("hole", "Make", [x], sizes=[size])
    (kept,) = b.op("kept", "Make", [x], sizes=[size])
    (larger,) = b.op("larger", "Make", [x], sizes=[2 * size - 256])
    (last,) = b.op("last", "Make", [x], sizes=[size])
    (read,) = b.op("read", "Make", [hole, larger], sizes=[4])
    parts = b.op("split", op, [axis, x], sizes=[size] * outputs)
    (early,) = b.op("early", "Make", [parts[1], read], sizes=[4])
    (fits,) = b.op("fits", "Make", [early], sizes=[2 * size - 256])
    rest = [part for part in parts if part != parts[1]]
    (y,) = b.op("y", "Make", [kept, last, fits, *rest], sizes=[4])
    return b.build(inputs=[x], outputs=[y], loss=y)


def test_the_peak_is_that_of_the_worst_order_and_nobody_knows_which_it_is() -> None:
    graph = split()
    found = Simulator(graph, ARENA).memory(everything(graph))
    assert found.peak_bytes - found.told_peak_bytes > SIZE // 2
    assert found.moves


@pytest.mark.parametrize(
    "given",
    [{"outputs": 3}, {"size": 204 * KIB}, {"size": 720 * KIB}, {"op": "Unpack"}],
    ids=["few", "small", "large", "another op"],
)
def test_a_kernel_that_makes_one_after_the_other_is_told_exactly(given) -> None:
    graph = split(**given)
    found = Simulator(graph, ARENA).memory(everything(graph))
    assert not made_abreast(graph)
    assert (found.peak_bytes, found.moves) == (found.told_peak_bytes, False)


def test_on_a_gpu_no_thread_asks() -> None:
    graph = split()
    found = Simulator(graph, target("gtx-1070")).memory(everything(graph))
    assert (found.peak_bytes, found.moves) == (found.told_peak_bytes, False)


def test_other_orders_ask_for_the_same() -> None:
    graph = split()
    simulator = Simulator(graph, ARENA)
    program = simulator.link(everything(graph))
    others = list(otherwise(program, graph, in_order=False))
    asked = [[each.requests for each in one.rows] for one in (program, *others)]
    assert len({tuple(map(tuple, each)) for each in asked}) > 1
    assert len({tuple(tuple(sorted(row)) for row in each) for each in asked}) == 1
