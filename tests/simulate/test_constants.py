"""Constants: which of them lie there, and how often."""

from __future__ import annotations

import msgspec
import pytest

from memtrade.facts import CPU
from memtrade.graph import BOUND, GraphData, StepGraph
from memtrade.simulate.program import Linker
from tests.graphs import Builder, HandMade
from tests.simulate.test_memory import BIG, everything, simulate

WIDE = 12 << 20  # too large to be kept


def zeros_added(size_bytes: int) -> StepGraph:
    b = Builder()
    (size,) = b.op("size", "Const", sizes=[4])
    (zeros,) = b.op("zeros", "Fill", [size], sizes=[size_bytes])
    (x,) = b.op("x", "Placeholder", sizes=[size_bytes])
    (y,) = b.op("y", "AddN", [zeros, x, x], sizes=[size_bytes])  # of two, one would read a zero
    return b.build(inputs=[x], outputs=[y], loss=y)


def zeros_of_sizes(count: int, size_bytes: int) -> tuple[GraphData, list[int], list[int]]:
    """Zeros of one definition, each of its own constant, added up: the constants, and these."""
    b = Builder()
    sizes = [b.op(f"size{i}", "Const", sizes=[4])[0] for i in range(count)]
    (x,) = b.op("x", "Placeholder", sizes=[size_bytes])
    zeros = [b.op(f"zeros{i}", "Fill", [sizes[i]], sizes=[size_bytes])[0] for i in range(count)]
    (y,) = b.op("y", "AddN", [*zeros, x], sizes=[size_bytes])
    b.ops = [msgspec.structs.replace(o, node=0) if o.type == "Fill" else o for o in b.ops]
    return b.build(inputs=[x], outputs=[y], loss=y).data, sizes, zeros


def test_constant_ops_are_read_from_a_copy_that_is_always_there():
    graph = zeros_added(BIG)
    result = simulate(graph, everything(graph))
    assert result.persistent_bytes == 2 * BIG  # x, the folded zeros, but not their size
    # Before the first step, the runtime computes the zeros: twice, with the constant twice more.
    assert result.peak_action == -1
    assert result.peak_bytes == BIG + 2 * BIG + 2 * 256


def test_what_is_too_large_to_be_kept_is_computed_twice_before_the_first_step_and_then_in_each():
    """The gradient of a wide layer's L2 penalty."""
    graph = zeros_added(WIDE)
    assert graph.folded == [True, False, False, False]
    result = simulate(graph, everything(graph))
    assert result.persistent_bytes == WIDE + 256  # x, and the size, which each step reads again
    assert (result.peak_action, result.peak_bytes) == (-1, 3 * WIDE + 2 * 256)


def test_what_leads_to_a_constant_lies_there_while_it_is_computed():
    b = Builder()
    (size,) = b.op("size", "Const", sizes=[4])
    (spread,) = b.op("spread", "Fill", [size], sizes=[WIDE])
    (turned,) = b.op("turned", "Cumsum", [spread], sizes=[WIDE])
    (total,) = b.op("total", "Sum", [turned], sizes=[4])
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (y,) = b.op("y", "Mul", [total, x], sizes=[BIG])
    graph = b.build(inputs=[x], outputs=[y], loss=y)
    assert all(graph.folded[graph.tensors[t].op] for t in (spread, turned, total))
    result = simulate(graph, everything(graph))
    assert result.peak_action == -1
    assert result.peak_bytes == pytest.approx(BIG + 2 * WIDE, abs=2048)


def test_a_constant_that_is_handed_on_is_there_once():
    """As the runtime has it, which takes Identities out before it computes constants: the gradient
    of a mean over pixels goes through several."""
    b = Builder()
    (size,) = b.op("size", "Const", sizes=[4])
    (ones,) = b.op("ones", "Fill", [size], sizes=[BIG])
    (once,) = b.op("once", "Identity", [ones], sizes=[BIG])
    (again,) = b.op("again", "Identity", [once], sizes=[BIG])
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (y,) = b.op("y", "MatMul", [once, x], sizes=[BIG])
    (z,) = b.op("z", "MatMul", [again, y], sizes=[BIG])
    graph = b.build(inputs=[x], outputs=[z], loss=z)
    assert simulate(graph, everything(graph)).persistent_bytes == 2 * BIG


@pytest.mark.parametrize(("spread", "lie"), [("Fill", 1), ("Const", 2)])
def test_constants_of_one_number_are_merged_by_value(spread: str, lie: int):
    """Slices of a constant that holds one number are alike; of another, nobody knows."""
    b = Builder()
    given = [b.op(f"given{i}", "Const", sizes=[4])[0] for i in range(2)]
    (whole,) = b.op("whole", spread, given if spread == "Fill" else [], sizes=[BIG])
    rows = [b.op(f"rows{i}", "Slice", [whole, *given], sizes=[BIG // 2])[0] for i in range(2)]
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (y,) = b.op("y", "MatMul", [rows[0], x], sizes=[BIG])
    (z,) = b.op("z", "MatMul", [rows[1], y], sizes=[BIG])
    graph = b.build(inputs=[x], outputs=[z], loss=z)
    held = simulate(graph, everything(graph)).persistent_bytes - BIG
    assert held == lie * BIG // 2


@pytest.mark.parametrize("spread", ["Unpack", "Split"])
def test_numbers_that_are_taken_out_of_one_all_over_are_that_number(spread: str):
    """The gradient of a sum of many terms: L2 penalties of layers that are alike."""
    b = Builder()
    axis, size = (b.op(f"given{i}", "Const", sizes=[4])[0] for i in range(2))
    (ones,) = b.op("ones", "Fill", [size, axis], sizes=[8])
    parts = b.op("parts", spread, [axis, ones] if spread == "Split" else [ones], sizes=[4, 4])
    tiled = [b.op(f"tiled{t}", "Tile", [t, size], sizes=[BIG])[0] for t in parts]
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (y,) = b.op("y", "AddN", [*tiled, x], sizes=[BIG])
    data = b.build(inputs=[x], outputs=[y], loss=y).data
    graph = StepGraph(msgspec.structs.replace(data, uniform={axis: b"0"}))
    assert simulate(graph, everything(graph)).persistent_bytes == 2 * BIG


def test_constants_that_hold_one_number_all_over_are_merged_by_it():
    """What one of several zeros is repeated to, and what one zero is: forward-mode products."""

    def persistent(second: bytes) -> int:
        b = Builder()
        given = [b.op(f"given{i}", "Const", sizes=[size])[0] for i, size in enumerate((4, 64))]
        (x,) = b.op("x", "Placeholder", sizes=[BIG])
        tiled = [b.op(f"tiled{t}", "Tile", [t, given[0]], sizes=[BIG])[0] for t in given]
        (y,) = b.op("y", "AddN", [*tiled, x], sizes=[BIG])
        data = b.build(inputs=[x], outputs=[y], loss=y).data
        numbers = dict(zip(given, (b"0", second), strict=True))
        graph = StepGraph(msgspec.structs.replace(data, uniform=numbers))
        return simulate(graph, everything(graph)).persistent_bytes

    assert persistent(b"0") == 2 * BIG
    assert persistent(b"1") == 3 * BIG


def test_numbers_that_shapes_are_inferred_with_are_kept_by_graphs_too():
    b = Builder()
    kept = [b.op(name, "Const", sizes=[4])[0] for name in ("dims", "number")]
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (made,) = b.op("made", "Reshape", [x, kept[0]], sizes=[BIG])
    (y,) = b.op("y", "Mul", [made, kept[1]], sizes=[BIG])
    b.tensors = [msgspec.structs.replace(each, dtype="int32") for each in b.tensors]
    graph = b.build(inputs=[x], outputs=[y], loss=y)
    held = simulate(graph, everything(graph)).persistent_bytes - BIG
    assert held == 2 * 256 + 3 * 256  # both by their kernels, the dimensions by three graphs


@pytest.mark.parametrize(("name", "times"), [("kept_bytes", 1), ("looked_at_bytes", 2)])
def test_what_branches_keep_lies_there_in_pieces(name: str, times: int):
    """As one it would take what is free in the first region whole, up to twice as much. Of the
    rewritten step there is no graph of a branch that would keep what shape functions ask for."""

    def persistent_bytes(**kept: tuple[int, ...]) -> int:
        b = Builder()
        (x,) = b.op("x", "Placeholder", sizes=[256])
        (y,) = b.op("cond", "If", [x], sizes=[256])
        b.ops[-1] = msgspec.structs.replace(b.ops[-1], attrs={"scratch_bytes": 0, **kept})
        graph = b.build(inputs=[x], outputs=[y], loss=y)
        return simulate(graph, everything(graph)).persistent_bytes

    pieces = (25_600,) * 23
    taken = persistent_bytes(**{name: pieces}) - persistent_bytes()
    assert taken == times * sum(pieces)


def test_constants_that_hold_the_same_lie_there_once():
    """And what is computed of them: a loop's zeros."""

    def persistent(equal: bool) -> int:
        data, sizes, _ = zeros_of_sizes(2, BIG)
        graph = StepGraph(
            msgspec.structs.replace(data, equal={sizes[1]: sizes[0]} if equal else {})
        )
        return simulate(graph, everything(graph)).persistent_bytes

    assert persistent(equal=False) == 3 * BIG
    assert persistent(equal=True) == 2 * BIG


@pytest.mark.parametrize(("waiting", "on", "copies"), [(0, 1, 1), (1, 1, 2), (2, 1, 1), (1, 3, 1)])
def test_constants_that_hold_the_same_are_apart_where_one_waits_for_other_ops(
    waiting: int, on: int, copies: int
) -> None:
    """The gradient of a squared difference is twice something, as soon as that is there. What is
    made of constants alone (3), nobody waits for in a step."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (y,) = b.op("y", "MatMul", [x, x], sizes=[BIG])
    b.op("mean", "Neg", b.op("number", "Const", sizes=[4]), sizes=[4])
    twos = [
        b.op(f"two{i}", "Const", sizes=[BIG], controls=[on] if i < waiting else [])[0]
        for i in range(2)
    ]
    (loss,) = b.op("loss", "AddN", [y, *twos], sizes=[BIG])
    data = b.build(inputs=[x], outputs=[loss], loss=loss).data
    graph = StepGraph(msgspec.structs.replace(data, equal={twos[1]: twos[0]}))
    held = simulate(graph, everything(graph)).persistent_bytes - BIG
    assert held == copies * BIG


@pytest.mark.parametrize(("body", "copies"), [("l/0/body/", 4), ("l/0/part/", 1)])
def test_constants_that_hold_the_same_are_apart_where_a_loop_makes_one_that_does(
    body: str, copies: int
) -> None:
    """That one waits for the iteration, and is the first: a plan, which knows no loop, has one."""
    some = BIG // 8
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[some])
    (number,) = b.op("number", "Const", sizes=[4])
    names = ["zeros", f"{body}zeros", "zeros_1", "zeros_2"]
    zeros = [b.op(name, "Fill", [number, number], sizes=[some])[0] for name in names]
    (loss,) = b.op("loss", "AddN", [x, *zeros], sizes=[some])
    data = b.build(inputs=[x], outputs=[loss], loss=loss).data
    graph = StepGraph(msgspec.structs.replace(data, equal=dict.fromkeys(zeros[1:], zeros[0])))
    assert simulate(graph, []).persistent_bytes // some - 1 == copies
    assert simulate(graph, everything(graph)).persistent_bytes // some - 1 == 1


@pytest.mark.parametrize(("late", "copies"), [(True, 2), (False, 4)])
def test_where_one_waits_the_others_are_one_if_tensorflow_meets_them_first(
    late: bool, copies: int
) -> None:
    """As TensorFlow has it with three that are free: in use were 2 and 4 of them."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    free = [b.op(f"free{i}", "Const", sizes=[BIG])[0] for i in range(3)]
    (number,) = b.op("number", "Const", sizes=[4])
    (y,) = b.op("y", "Mul", [x, number] if late else [x, x], sizes=[BIG])
    (waiting,) = b.op("waiting", "Const", sizes=[BIG], controls=[len(b.ops) - 1])
    (loss,) = b.op("loss", "AddN", [y, *free, waiting], sizes=[BIG])
    data = b.build(inputs=[x], outputs=[loss], loss=loss).data
    equal = dict.fromkeys((*free[1:], waiting), free[0])
    graph = StepGraph(msgspec.structs.replace(data, equal=equal))
    assert simulate(graph, everything(graph)).persistent_bytes // BIG - 1 == copies


def test_what_is_computed_of_the_same_numbers_lies_there_once_however_they_came():
    """An identity matrix in the step and in the gradient of a Cholesky decomposition, which finds
    its size from a shape."""

    def persistent(known: bool) -> int:
        b = Builder()
        (given,) = b.op("given", "Const", sizes=[4])
        (found,) = b.op("found", "Pack", [given], sizes=[4])
        (x,) = b.op("x", "Placeholder", sizes=[BIG])
        eyes = [b.op(f"eye{t}", "MatrixDiagV3", [t], sizes=[BIG])[0] for t in (given, found)]
        (y,) = b.op("y", "AddN", [*eyes, x], sizes=[BIG])
        made = {"Pack": 1, "MatrixDiagV3": 2}
        b.ops = [msgspec.structs.replace(o, node=made.get(o.type, -1)) for o in b.ops]
        data = b.build(inputs=[x], outputs=[y], loss=y).data
        values = {given: (7,), found: (7,)} if known else {}
        graph = StepGraph(msgspec.structs.replace(data, values=values))
        return simulate(graph, everything(graph)).persistent_bytes

    assert persistent(known=False) == 3 * BIG
    assert persistent(known=True) == 2 * BIG


@pytest.mark.parametrize(("both_wait", "copies"), [(True, 1), (False, 2)])
def test_constants_of_one_number_are_apart_where_they_wait_for_other_ops(
    both_wait: bool, copies: int
) -> None:
    """Slices of zeros whose bounds wait for a gradient, as that of an SVD has them."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (y,) = b.op("y", "MatMul", [x, x], sizes=[BIG])
    given = [b.op(f"given{i}", "Const", sizes=[4])[0] for i in range(2)]
    (zeros,) = b.op("zeros", "Fill", given, sizes=[BIG])
    loss = y
    for name, controls in (("one", [1]), ("two", [1] if both_wait else [])):
        (bound,) = b.op(f"{name}/bound", "Const", sizes=[4], controls=controls)
        (part,) = b.op(name, "Slice", [zeros, bound], sizes=[BIG])
        (loss,) = b.op(f"{name}/sum", "MatMul", [loss, part], sizes=[BIG])
    graph = b.build(inputs=[x], outputs=[loss], loss=loss)
    held = simulate(graph, everything(graph)).persistent_bytes - BIG
    assert held == copies * BIG


def looked_at(b: Builder, y: int, dtype: str = "int32", **given: object) -> list[int]:
    """The sizes of what graphs keep of a step that returns `y` and reads "x"."""
    b.tensors = [
        msgspec.structs.replace(each, dtype=dtype) if each.size_bytes < BIG else each
        for each in b.tensors
    ]
    x = next(op.outputs[0] for op in b.ops if op.name == "x")
    data = b.build(inputs=[x], outputs=[y], loss=y).data
    graph = StepGraph(msgspec.structs.replace(data, **given))
    kept = Linker(graph, HandMade(CPU)).constants.looked_at_last
    return [graph.tensors[t].size_bytes for t in kept]


def test_graphs_keep_what_is_computed_of_constants_for_a_shape_function_and_not_these():
    """The shapes of a `vectorized_map` are put together by a dozen ops."""
    b = Builder()
    one, two = (b.op(name, "Const", sizes=[8])[0] for name in ("one", "two"))
    (both,) = b.op("both", "AddV2", [one, two], sizes=[8])
    (turned,) = b.op("turned", "InvertPermutation", [both], sizes=[12])
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (y,) = b.op("y", "Transpose", [x, turned], sizes=[BIG])
    assert looked_at(b, y) == [12]


def test_of_a_shape_that_is_not_known_graphs_keep_the_parts_that_are():
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (count,) = b.op("count", "Where", [x], sizes=[4])
    known, tail, axis = (b.op(f"{n}", "Const", sizes=[n])[0] for n in (4, 8, 12))
    (head,) = b.op("head", "Pack", [count, known], sizes=[8])
    (whole,) = b.op("whole", "ConcatV2", [head, tail, axis], sizes=[16])
    (y,) = b.op("y", "Reshape", [x, whole], sizes=[BIG])
    assert looked_at(b, y) == [4, 8, 12]  # the last is asked for by ConcatV2


def test_graphs_keep_no_large_values():
    b = Builder()
    dims = [b.op(f"{n}", "Const", sizes=[n])[0] for n in (1024, 1028)]
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (y,) = b.op("y", "Transpose", [x, dims[0]], sizes=[BIG])
    (z,) = b.op("z", "Transpose", [y, dims[1]], sizes=[BIG])
    assert looked_at(b, z) == [1024]


@pytest.mark.parametrize(("known", "kept"), [(True, [8]), (False, [])])
def test_graphs_keep_shapes_that_are_known_before_any_step(known: bool, kept: list[int]):
    """A sum of exponentials in a loop that is unrolled asks for one in each iteration."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (shape,) = b.op("shape", "Shape", [x], sizes=[8])
    (y,) = b.op("y", "Reshape", [x, shape], sizes=[BIG])
    assert looked_at(b, y, sized={} if known else {x: BOUND}) == kept


@pytest.mark.parametrize(("op_type", "kept"), [("Range", [4, 8, 12]), ("Transpose", [])])
def test_of_fractions_graphs_keep_those_of_a_range(op_type: str, kept: list[int]):
    """Positions that are turned into angles, of each of a language model's blocks."""
    b = Builder()
    three = [b.op(f"{n}", "Const", sizes=[n])[0] for n in (4, 8, 12)]
    (x,) = b.op("x", "Placeholder", sizes=[BIG])
    (turned,) = b.op("turned", op_type, three, sizes=[16])
    (y,) = b.op("y", "Mul", [x, turned], sizes=[BIG])
    assert looked_at(b, y, "float32") == kept
