"""Which outputs lie in an input's buffer: whole rows that begin at multiples of 64 bytes."""

from __future__ import annotations

import math

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


def part(type_: str, start: int | None, size: int, **masks: int) -> StepGraph:
    """Of a vector of 100 numbers, so many from a place that is known, or not."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[400])
    begin, end, step = (b.op(name, "Const", sizes=[4])[0] for name in ("begin", "end", "step"))
    bounds = [begin, end] if type_ == "Slice" else [begin, end, step]
    (y,) = b.op("y", type_, [x, *bounds], sizes=[4 * size])
    b.ops[-1] = msgspec.structs.replace(b.ops[-1], attrs=masks)
    graph = b.build(inputs=[x], outputs=[y], loss=y)
    values = {step: (1,)} if start is None else {begin: (start,), step: (1,)}
    return StepGraph(msgspec.structs.replace(graph.data, values=values))


@pytest.mark.parametrize(
    ("graph", "place"),
    [
        (part("Slice", 16, 32), 0),
        (part("Slice", 8, 32), None),  # it begins at 32 bytes
        (part("Slice", 16, 40), None),  # it ends between two such places
        (part("Slice", None, 32), None),
        (part("StridedSlice", 16, 32), 0),
        (part("StridedSlice", -84, 32), 0),
        (part("StridedSlice", 5, 32, begin_mask=1), 0),
        (part("StridedSlice", 16, 32, new_axis_mask=1), None),
    ],
)
def test_a_part_of_a_vector_is_cut_without_a_copy(graph: StepGraph, place: int | None) -> None:
    """As flat gradients are: a natural gradient, conjugate ones."""
    assert viewed(graph.ops[-1], graph) == place


def rows(made: tuple[int, ...], *bounds: int, **masks: int) -> StepGraph:
    """A StridedSlice of an 8 x 64 x 1 tensor, with as many bounds, and steps of 1 or the last."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[8 * ROW])
    begin, end, step = (
        b.op(name, "Const", sizes=[4 * len(bounds)])[0] for name in ("begin", "end", "step")
    )
    (y,) = b.op("y", "StridedSlice", [x, begin, end, step], sizes=[4 * math.prod(made)])
    b.ops[-1] = msgspec.structs.replace(b.ops[-1], attrs=masks)
    for t, shape in ((x, (8, 64, 1)), (begin, (len(bounds),)), (y, made)):
        b.tensors[t] = msgspec.structs.replace(b.tensors[t], shape=shape)
    graph = b.build(inputs=[x], outputs=[y], loss=y)
    return StepGraph(msgspec.structs.replace(graph.data, values={step: bounds}))


@pytest.mark.parametrize(
    ("graph", "place"),
    [
        (rows((64, 1), 1, 1, shrink_axis_mask=1), 0),  # x[i, :]
        (rows((64,), 1, 1, 1, shrink_axis_mask=5), 0),  # x[i, :, 0]: of one
        (rows((2, 64, 1, 1), 1, 1, 1, ellipsis_mask=2, new_axis_mask=4), 0),  # x[2:4, ..., None]
        (rows((32, 1), 1, 1, shrink_axis_mask=1), None),  # x[i, :32]
        (rows((2, 1), 1, 1, shrink_axis_mask=2), None),  # x[2:4, 5]
        (rows((4, 64, 1), 2, 1), None),  # x[::2, :]
    ],
)
def test_rows_are_cut_without_a_copy_where_all_of_other_dimensions_is_taken(
    graph: StepGraph, place: int | None
) -> None:
    """A depthwise filter that is read by its first dimension, written out by hand."""
    assert viewed(graph.ops[-1], graph) == place


def test_parts_that_lie_in_what_was_cut_take_nothing() -> None:
    shared, copied = (
        Simulator(cut("Split", (4, 64), axis=axis), profile_target("arena")).memory([])
        for axis in (0, 1)
    )
    assert copied.live_peak_bytes - shared.live_peak_bytes == 2 * ROW
