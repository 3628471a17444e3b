"""Reservations against padding: programs run in what they ask for, or next to it."""

import math
import random

import pytest

from memtrade.graph import StepGraph
from memtrade.schedule import lower
from memtrade.simulate.defragment import _Trial, defragment
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import worth_deciding
from memtrade.strategies.spill import spilled
from tests.graphs import ARENA, Builder
from tests.simulate.test_memory import everything
from tests.simulate.test_memory_of_variables import moving

MIB = 1 << 20


def uneven(layers: int, seed: int) -> StepGraph:
    """A chain whose tensors have sizes that do not go into one another."""
    draw = random.Random(seed)
    sizes = [draw.choice((24, 25, 33, 48, 51, 64, 96, 102)) * MIB // 8 for _ in range(layers + 1)]
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[sizes[0]])
    made = [x]
    for i in range(1, layers + 1):
        made += b.op(f"layer{i}", "Sin", [made[-1]], sizes=[sizes[i]])
    (loss,) = b.op("loss", "Sum", [made[-1]], sizes=[4])
    (gradient,) = b.op("seed", "Mul", [loss, made[-1]], sizes=[sizes[-1]])
    updates = []
    for i in range(layers, 0, -1):
        read = [gradient, made[i], made[i - 1]]
        (gradient,) = b.op(f"grad{i}", "SinGrad", read, sizes=[sizes[i - 1]])
        b.op(f"update{i}", "AssignAddVariableOp", [gradient], stateful=True)
        updates.append(len(b.ops) - 1)
    return b.build(inputs=[x], outputs=[loss], loss=loss, control_outputs=updates)


@pytest.mark.parametrize("seed", range(8))
def test_a_lean_program_runs_in_what_it_asks_for(seed: int) -> None:
    graph = uneven(40, seed)
    clock = TimeSimulator(graph, ARENA)
    program = lower(graph, dict.fromkeys(worth_deciding(graph), "swap"))
    program = spilled(clock, program, 0)
    asked = clock.simulator.peak_live_bytes(program)
    made = defragment(clock, program)
    before = clock.simulator.memory(program, limit_bytes=ROOMY_BYTES).peak_bytes
    after = clock.simulator.memory(made, limit_bytes=ROOMY_BYTES).peak_bytes
    assert asked <= after <= before
    assert after <= 1.02 * asked
    assert [action for action in made if action.kind != "reserve"] == list(program)


def test_most_programs_are_padded_without() -> None:
    """Or the test above would prove nothing."""
    padded = 0
    for seed in range(8):
        graph = uneven(40, seed)
        clock = TimeSimulator(graph, ARENA)
        program = lower(graph, dict.fromkeys(worth_deciding(graph), "swap"))
        program = spilled(clock, program, 0)
        asked = clock.simulator.peak_live_bytes(program)
        peak = clock.simulator.memory(program, limit_bytes=ROOMY_BYTES).peak_bytes
        padded += peak > 1.02 * asked
    assert padded >= 4


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_with_most_of_the_limit_in_live_bytes_runs_in_it(seed: int) -> None:
    graph = uneven(24, seed)
    roomy = TimeSimulator(graph, ARENA)
    program = lower(graph, {})
    asked = roomy.simulator.peak_live_bytes(program)
    limit = int(asked / 0.97)
    clock = TimeSimulator(graph, ARENA.replace(limit_bytes=limit))
    made = defragment(clock, program)
    assert clock.simulator.memory(made, limit_bytes=limit).out_of_memory is None


def test_peaks_are_the_same_whether_a_step_is_walked_or_replayed() -> None:
    different = 0
    for seed in range(4):
        graph = uneven(24, seed)
        clock = TimeSimulator(graph, ARENA)
        program = spilled(clock, lower(graph, dict.fromkeys(worth_deciding(graph), "swap")), 0)
        trial = _Trial(clock, program)
        asked = clock.simulator.peak_live_bytes(program)
        everywhere = {row: [7 * MIB] for row in range(0, len(program), 3)}
        found = [{}, *trial.reservations(ROOMY_BYTES, asked, ROOMY_BYTES), everywhere]
        replayed = [trial.peak_bytes(ROOMY_BYTES, each) for each in found]
        assert trial.peak_bytes(asked // 2, {}) == math.inf
        trial._walk.moved = True  # as if variables lay elsewhere after each step
        assert replayed == [trial.peak_bytes(ROOMY_BYTES, each) for each in found]
        different += len(set(replayed)) > 1
    assert different >= 2


def test_variables_that_move_lie_elsewhere_when_the_step_is_planned() -> None:
    """A variable that takes over its new value's buffer is given back in each step from where it
    lay after the one before."""
    graph = moving()
    clock = TimeSimulator(graph, ARENA)
    program = tuple(everything(graph))
    before, after = (
        clock.simulator.memory(each, limit_bytes=ROOMY_BYTES).peak_bytes
        for each in (program, defragment(clock, program))
    )
    assert after <= before


def test_what_asks_for_more_than_enough_stays_as_it_came() -> None:
    graph = uneven(12, 1)
    clock = TimeSimulator(graph, ARENA)
    program = lower(graph, {})
    asked = clock.simulator.peak_live_bytes(program)
    assert defragment(clock, program, enough_bytes=asked - 1) == program
