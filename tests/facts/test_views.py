"""Which outputs lie in an input's buffer: whole rows that begin at multiples of 64 bytes."""

from __future__ import annotations

import msgspec
import pytest

from memtrade.facts.views import viewed
from memtrade.graph import StepGraph
from memtrade.simulate.memory import Simulator
from memtrade.target import profile_target
from tests.graphs import Builder

ROW = 256  # bytes, or 64 floats


def cut(type_: str, shape: tuple[int, ...], *, axis: int = 0) -> StepGraph:
    """`shape` is cut in two along an axis; both parts are read."""
    b = Builder()
    size = 4
    for n in shape:
        size *= n
    (x,) = b.op("x", "Placeholder", sizes=[size])
    (along,) = b.op("axis", "Const", sizes=[4])
    inputs = [along, x] if type_ == "Split" else [x]
    parts = b.op("parts", type_, inputs, sizes=[size // 2, size // 2])
    (y,) = b.op("y", "AddN", parts, sizes=[size // 2])
    b.tensors[x] = msgspec.structs.replace(b.tensors[x], shape=shape)
    b.ops[2] = msgspec.structs.replace(b.ops[2], attrs={"axis": axis})
    graph = b.build(inputs=[x], outputs=[y], loss=y)
    return StepGraph(msgspec.structs.replace(graph.data, values={along: (axis,)}))


@pytest.mark.parametrize(
    ("graph", "place"),
    [
        (cut("Split", (4, 64)), 1),
        (cut("Split", (4, 64), axis=1), None),  # columns lie apart
        (cut("Split", (4, 63)), None),  # the second row begins at 252
        (cut("Unpack", (2, 64), axis=0), 0),
        (cut("Unpack", (2, 64), axis=1), None),
    ],
)
def test_rows_are_cut_without_a_copy(graph: StepGraph, place: int | None) -> None:
    assert viewed(graph.ops[2], graph) == place


def test_parts_that_lie_in_what_was_cut_take_nothing() -> None:
    shared, copied = (
        Simulator(cut("Split", (4, 64), axis=axis), profile_target("arena")).memory([])
        for axis in (0, 1)
    )
    assert copied.live_peak_bytes - shared.live_peak_bytes == 2 * ROW
