"""Variables in the memory simulation: read, updated and assigned; where they lie afterwards."""

from typing import Any

import msgspec
import pytest

from memtrade.facts import CPU
from memtrade.graph import StepGraph
from memtrade.simulate.bfc import MIB
from memtrade.simulate.memory import Simulator
from memtrade.simulate.program import Linker
from tests.graphs import ARENA, Builder, HandMade
from tests.simulate.test_memory import BIG, everything, simulate


def with_variable(b: Builder, size: int) -> int:
    """A resource handle; `build_with_variable` says what is behind it."""
    (handle,) = b.op("handle", "Placeholder", sizes=[0])
    b.tensors[handle] = msgspec.structs.replace(b.tensors[handle], dtype="resource", shape=())
    return handle


def build_with_variable(b: Builder, handle: int, size: int, **parts: Any) -> StepGraph:
    data = b.build(**parts).data
    return StepGraph(msgspec.structs.replace(data, captures=(handle,), capture_bytes=(size,)))


@pytest.mark.parametrize(("held", "copies"), [(False, 0), (True, 1)])
def test_an_update_copies_a_variable_whose_value_is_still_held(held: bool, copies: int):
    b = Builder()
    handle = with_variable(b, BIG)
    (x,) = b.op("x", "Placeholder", sizes=[4])
    (value,) = b.op("read", "ReadVariableOp", [handle], sizes=[BIG])
    (small,) = b.op("small", "Dot", [value, x], sizes=[4])
    b.op("update", "ResourceApplyGradientDescent", [handle, small], stateful=True)
    if held:
        b.op("late", "Dot", [value, x], sizes=[4])
    graph = build_with_variable(b, handle, BIG, inputs=[x], outputs=[small], loss=small)
    result = simulate(graph, everything(graph))
    assert result.peak_bytes - result.persistent_bytes == copies * (BIG + 256) + 256
    assert result.peak_op == ("late" if held else "small")
    assert result.moves is held


def test_an_assignment_takes_the_value_over():
    b = Builder()
    handle = with_variable(b, BIG)
    (x,) = b.op("x", "Placeholder", sizes=[4])
    (value,) = b.op("value", "MatMul", [x], sizes=[BIG])
    b.op("assign", "AssignVariableOp", [handle, value], stateful=True)
    graph = build_with_variable(b, handle, BIG, inputs=[x], outputs=[x], loss=x)
    result = simulate(graph, everything(graph), steps=3)
    assert result.peak_bytes == result.persistent_bytes + BIG
    assert simulate(graph, everything(graph), steps=1).peak_bytes == result.peak_bytes


def test_a_value_that_others_read_later_is_the_variables_all_the_same():
    """Nothing is copied: what the variable had goes, and the next step begins where that lay."""
    b = Builder()
    handle = with_variable(b, BIG)
    (x,) = b.op("x", "Placeholder", sizes=[4])
    (old,) = b.op("read", "ReadVariableOp", [handle], sizes=[BIG])
    (small,) = b.op("small", "Dot", [old, x], sizes=[4])
    (value,) = b.op("value", "MatMul", [small], sizes=[BIG])
    b.op("assign", "AssignVariableOp", [handle, value], stateful=True)
    (more,) = b.op("more", "MatMul", [value], sizes=[BIG])
    (late,) = b.op("late", "Dot", [more, value], sizes=[4])
    graph = build_with_variable(b, handle, BIG, inputs=[x], outputs=[late], loss=late)
    result = simulate(graph, everything(graph), steps=1)
    assert result.peak_bytes == result.persistent_bytes + BIG + 256  # the value, then `more`
    assert result.moves


@pytest.mark.parametrize(("held", "more"), [((0,), 1), ((7,), 2)])
def test_what_is_written_in_place_brings_constants_that_the_step_does_not_hold(
    held: tuple[int, ...], more: int
) -> None:
    """Where the slice begins, and its stride; once for all that is assigned."""
    b = Builder()
    handles = [with_variable(b, 1024) for _ in range(2)]
    (x,) = b.op("x", "Placeholder", sizes=[1024])
    (axis,) = b.op("axis", "Const", sizes=[4])
    (loss,) = b.op("loss", "Cumsum", [x, axis], sizes=[1024])
    b.tensors[axis] = msgspec.structs.replace(b.tensors[axis], dtype="int32")
    (size,) = b.op("size", "Const", sizes=[4])
    (zeros,) = b.op("zeros", "Fill", [size], sizes=[BIG])
    (y,) = b.op("y", "MatMul", [zeros, loss], sizes=[1024])
    plain = b.build(inputs=[x], outputs=[y], loss=loss).data
    for handle in handles:
        b.op("assign", "AssignVariableOp", [handle, loss], stateful=True)
    written = b.build(inputs=[x], outputs=[y], loss=loss).data
    for data, beside in ((plain, 0), (written, more)):
        graph = StepGraph(msgspec.structs.replace(data, values={axis: held}))
        constants = Linker(graph, HandMade(CPU)).constants
        assert len(constants.brought) == beside
        assert constants.own_bytes == 256 * (2 + (beside and 2))


def moving() -> StepGraph:
    """A step whose variable takes over its new value's buffer, beside a larger tensor's place."""
    b = Builder()
    handle = with_variable(b, 8 * MIB)
    (x,) = b.op("x", "Placeholder", sizes=[4])
    (read,) = b.op("read", "ReadVariableOp", [handle], sizes=[8 * MIB])
    (loss,) = b.op("loss", "Dot", [x, read], sizes=[4])
    (wide,) = b.op("wide", "MatMul", [x], sizes=[14 * MIB])
    (narrow,) = b.op("narrow", "MatMul", [wide], sizes=[8 * MIB])
    (value,) = b.op("value", "MatMul", [narrow], sizes=[8 * MIB])
    b.op("assign", "AssignVariableOp", [handle, value], stateful=True)
    return build_with_variable(b, handle, 8 * MIB, inputs=[x], outputs=[loss], loss=loss)


def test_a_variable_that_moves_leaves_other_holes_after_each_step():
    """So the third step's peak is higher than those before, and counts."""
    graph = moving()
    actions = everything(graph)
    third = simulate(graph, actions, steps=3).peak_bytes
    assert third > simulate(graph, actions, steps=2).peak_bytes
    assert simulate(graph, actions).peak_bytes == third


def test_a_variable_whose_rows_are_gathered_is_copied_by_reads_and_assigned_to_a_new_buffer():
    def peak(touching: str) -> int:
        b = Builder()
        (x,) = b.op("x", "Placeholder", sizes=[256])
        (handle,) = b.op("v", "Placeholder", sizes=[0])
        (first,) = b.op("rows", touching, [handle, x], sizes=[256])
        (value,) = b.op("read", "ReadVariableOp", [handle], sizes=[BIG])
        (new,) = b.op("new", "MatMul", [value, first], sizes=[BIG])
        b.op("assign", "AssignVariableOp", [handle, new], stateful=True)
        b.tensors[handle] = msgspec.structs.replace(b.tensors[handle], dtype="resource")
        data = b.build(inputs=[x], outputs=[first], loss=first).data
        graph = StepGraph(msgspec.structs.replace(data, captures=(handle,), capture_bytes=(BIG,)))
        result = simulate(graph, everything(graph), steps=2)
        assert Simulator(graph, ARENA).peak_live_bytes(everything(graph)) == result.live_peak_bytes
        return result.live_peak_bytes // BIG

    assert peak("VariableShape") == 2  # the variable, and what becomes the variable
    assert peak("ResourceGather") == 3


def test_an_update_moves_a_variable_whose_rows_are_gathered():
    """TensorFlow copies what is read by copying before it adds to it. Rewritten steps add row by
    row."""

    def moves(touching: str, *, planned: bool) -> bool:
        b = Builder()
        (x,) = b.op("x", "Placeholder", sizes=[BIG])
        (handle,) = b.op("v", "Placeholder", sizes=[0])
        (rows,) = b.op("rows", touching, [handle, x], sizes=[256])
        b.op("update", "AssignAddVariableOp", [handle, x], stateful=True)
        b.tensors[handle] = msgspec.structs.replace(b.tensors[handle], dtype="resource")
        b.tensors[x] = msgspec.structs.replace(b.tensors[x], shape=(BIG // 64, 16))
        data = b.build(inputs=[x], outputs=[rows], loss=rows).data
        graph = StepGraph(msgspec.structs.replace(data, captures=(handle,), capture_bytes=(BIG,)))
        simulator = Simulator(graph, ARENA)
        actions = everything(graph) if planned else simulator.actions([])
        walk = simulator.begin(simulator.link(actions))
        walk.step()
        live_bytes = simulator.peak_live_bytes(actions)
        assert live_bytes == walk.live_peak
        copies = walk.moved * BIG
        assert simulator.memory(actions).peak_bytes >= walk.persistent_bytes + copies
        return walk.moved

    assert moves("ResourceGather", planned=False)
    assert not moves("ResourceGather", planned=True)
    assert not moves("VariableShape", planned=False)


def test_a_call_makes_its_outputs_whatever_it_does_to_variables():
    b = Builder()
    handle = with_variable(b, BIG)
    (x,) = b.op("x", "Placeholder", sizes=[4])
    (y,) = b.op("call", "StatefulPartitionedCall", [x, handle], sizes=[BIG], stateful=True)
    (loss,) = b.op("loss", "Dot", [y], sizes=[4])
    graph = build_with_variable(b, handle, BIG, inputs=[x], outputs=[loss], loss=loss)
    result = simulate(graph, everything(graph))
    assert result.peak_bytes - result.persistent_bytes == BIG + 256


def assigned_in_a_branch() -> tuple[StepGraph, int]:
    """A step, and the handle of its variable."""
    b = Builder()
    handle = with_variable(b, BIG)
    (x,) = b.op("x", "Placeholder", sizes=[4])
    (held,) = b.op("held", "MatMul", [x, x], sizes=[BIG])
    (made,) = b.op("cond", "If", [x, handle], sizes=[4], stateful=True)
    (end,) = b.op("end", "MatMul", [held, made], sizes=[4])
    branch = next(op for op in b.ops if op.type == "If")
    touched = ((1, "AssignVariableOp"),)
    b.ops[branch.id] = msgspec.structs.replace(branch, attrs={"touched": touched})
    graph = build_with_variable(b, handle, BIG, inputs=[x], outputs=[end], loss=end)
    return graph, handle


def test_a_variable_that_a_branch_assigns_moves_behind_what_is_held_then():
    graph, handle = assigned_in_a_branch()
    simulator = Simulator(graph, ARENA)
    walk = simulator.begin(simulator.link(everything(graph)), places=simulator.layouts[0])
    before = walk.handles[walk.variables[handle]]
    walk.step()
    assert walk.moved
    assert walk.handles[walk.variables[handle]] >= before + 2 * BIG
    result = simulate(graph, everything(graph))
    assert simulator.peak_live_bytes(everything(graph)) == result.live_peak_bytes


def test_a_step_is_foreseen_as_the_branch_runs_that_needs_more(monkeypatch: pytest.MonkeyPatch):
    """Averages that overwrite their variables every tenth step: in the others these stay."""
    graph, _ = assigned_in_a_branch()
    simulator = Simulator(graph, ARENA)
    walked: dict[bool, int] = {}

    def walk(*given):
        found = Simulator._walked(simulator, *given)
        walked[found.walk.moved] = found.best.in_use
        return found

    monkeypatch.setattr(simulator, "_walked", walk)
    result = simulator.memory(everything(graph))
    assert set(walked) == {True, False}
    assert result.peak_bytes == max(walked.values())
