"""What rests where memory is tightest leaves for a while, and comes back before it is read."""

import dataclasses
import math

import msgspec
import pytest

from memtrade.graph import StepGraph
from memtrade.measure.protocol import PlanSummary
from memtrade.plan import Action, Fate, check_plan
from memtrade.schedule import lower
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import find_planned, make_options
from memtrade.strategies.base import worth_deciding
from memtrade.strategies.spill import least_bytes, spilled
from tests.graphs import ARENA, Builder, chain
from tests.strategies.brute_force import random_step_graph

MIB = 1 << 20


def check(graph: StepGraph, actions: tuple[Action, ...]) -> None:
    """Raises where `actions` cannot be carried out."""
    original = find_planned("original").plan(graph, make_options("original"), ARENA)
    check_plan(msgspec.structs.replace(original, actions=actions), graph)


@pytest.mark.parametrize("seed", range(12))
def test_spilled_programs_fit_and_are_in_order(seed: int) -> None:
    graph = random_step_graph(seed, 6 + seed % 5)
    clock = TimeSimulator(graph, ARENA)
    kept = lower(graph, {})
    most, least = clock.simulator.peak_live_bytes(kept), least_bytes(clock.simulator)
    for limit in range(least, most + 1, max(1, (most - least) // 3)):
        made = spilled(clock, kept, limit)
        check(graph, made)
        lowest = clock.simulator.peak_live_bytes(spilled(clock, kept, 0))
        # Beside the tensors, each that is away leaves a string behind.
        slack = 1024 * sum(action.kind == "swap_out" for action in made)
        assert least <= clock.simulator.peak_live_bytes(made) <= max(limit, lowest) + slack


def test_nothing_leaves_where_the_limit_holds() -> None:
    graph = chain(5)
    clock = TimeSimulator(graph, ARENA)
    kept = lower(graph, {})
    assert spilled(clock, kept, clock.simulator.peak_live_bytes(kept)) == kept


def between_two_readers(*, stateful: bool) -> tuple[StepGraph, int]:
    """A tensor with two backward readers, between which the step needs most."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (y,) = b.op("y", "Sin", [x], sizes=[MIB], stateful=stateful)
    (loss,) = b.op("loss", "Sum", [y], sizes=[4])
    (first,) = b.op("first", "Mul", [loss, y], sizes=[MIB])
    (wide,) = b.op("wide", "Tile", [first], sizes=[8 * MIB])
    (narrow,) = b.op("narrow", "Sum", [wide], sizes=[MIB])
    b.op("update", "AssignAddVariableOp", b.op("last", "Mul", [narrow, y], sizes=[MIB]))
    updates = [len(b.ops) - 1]
    return b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=updates), y


def test_what_is_on_the_host_already_only_comes_back_again() -> None:
    graph, y = between_two_readers(stateful=True)
    clock = TimeSimulator(graph, ARENA)
    program = lower(graph, {y: "swap"})
    made = spilled(clock, program, 0)
    copies = [action for action in made if action.id == y and action.kind.startswith("swap")]
    assert [action.kind for action in copies] == ["swap_out", "swap_in", "swap_in"]
    lower_by = clock.simulator.peak_live_bytes(program) - clock.simulator.peak_live_bytes(made)
    assert lower_by > 0.99 * MIB  # of strings and such, a few bytes


def test_what_is_sooner_made_again_than_copied_is() -> None:
    graph, y = between_two_readers(stateful=False)
    clock = TimeSimulator(graph, ARENA)
    made = spilled(clock, lower(graph, {}), 0)
    check(graph, made)
    assert Action("recompute", graph.tensors[y].op) in made
    assert all(not action.kind.startswith("swap") for action in made)


def test_views_that_are_there_are_made_again_and_later_ones_are_not() -> None:
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (y,) = b.op("y", "Sin", [x], sizes=[MIB], stateful=True)
    (early,) = b.op("early", "Reshape", [y], sizes=[MIB])
    (loss,) = b.op("loss", "Sum", [early], sizes=[4])
    (wide,) = b.op("wide", "Tile", [loss], sizes=[8 * MIB])
    (wider,) = b.op("wider", "Tile", [wide], sizes=[9 * MIB])
    (narrow,) = b.op("narrow", "Mul", [wider, early], sizes=[MIB])
    (late,) = b.op("late", "Reshape", [y], sizes=[MIB])
    b.op("update", "AssignAddVariableOp", b.op("last", "Mul", [narrow, late], sizes=[MIB]))
    graph = b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=[len(b.ops) - 1])
    clock = TimeSimulator(graph, ARENA)
    made = spilled(clock, lower(graph, {}), 0)
    check(graph, made)
    names = {op.id: op.name for op in graph.ops}
    again = [names[action.id] for action in made if action.kind == "recompute"]
    assert again == ["early"]


def test_without_host_memory_nothing_leaves_for_it() -> None:
    graph, _ = between_two_readers(stateful=True)
    clock = TimeSimulator(graph, ARENA)
    kept = lower(graph, {})
    assert spilled(clock, kept, 0, host_bytes=0) == kept
    assert spilled(clock, kept, 0, host_bytes=math.inf) != kept


def test_the_least_is_what_one_op_needs() -> None:
    graph = chain(9)
    swapped = lower(graph, dict.fromkeys(worth_deciding(graph), "swap"))
    clock = TimeSimulator(graph, ARENA)
    least = least_bytes(clock.simulator)
    lowest = clock.simulator.peak_live_bytes(spilled(clock, swapped, 0))
    assert least <= lowest <= least + 64 * 1024


@pytest.mark.parametrize("minimize", ["time", "memory"])
def test_the_host_memory_limit_holds(minimize: str) -> None:
    graph = random_step_graph(5, 9)
    options = make_options("optimal", {"host_memory_limit": "9MB", "minimize": minimize})
    plan = find_planned("optimal").plan(graph, options, ARENA)
    sent = {action.id for action in plan.actions if action.kind == "swap_out"}
    assert sum(graph.tensors[t].size_bytes for t in sent) <= 9e6
    assert dataclasses.asdict(options)["host_memory_limit"] == "9MB"


def test_what_waits_on_the_host_is_counted_apart_from_activations() -> None:
    graph, y = between_two_readers(stateful=True)
    clock = TimeSimulator(graph, ARENA)
    original = find_planned("original").plan(graph, make_options("original"), ARENA)
    made = msgspec.structs.replace(original, actions=spilled(clock, lower(graph, {}), 0))
    assert PlanSummary.of(made, graph).decided_text == "1 / 0 / 0 + 1"
    fates = (Fate(tensor=y, decision="swap", reason=""),)
    made = msgspec.structs.replace(made, fates=fates)
    assert PlanSummary.of(made, graph).decided_text == "0 / 0 / 1"
