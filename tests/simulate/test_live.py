"""Live bytes without an allocator, against what the walk with one was asked for."""

import itertools
import random

import pytest

from memtrade.facts import CPU
from memtrade.plan import Action, Decision
from memtrade.schedule import lower
from memtrade.simulate.memory import ROOMY_BYTES, Simulator
from memtrade.strategies.base import worth_deciding
from tests.graphs import ARENA, GivingBack, HandMade
from tests.strategies.brute_force import options, random_step_graph


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("facts", [HandMade(CPU), GivingBack(CPU)], ids=["", "giving back"])
def test_the_peak_is_what_the_arena_is_asked_for(facts: HandMade, seed: int) -> None:
    graph, rng = random_step_graph(seed, 10), random.Random(seed)
    simulator = Simulator(graph, ARENA.replace(facts=facts))
    for _ in range(5):
        decisions: dict[int, Decision] = {
            t: rng.choice(options(graph, t)) for t in worth_deciding(graph)
        }
        actions = list(lower(graph, decisions))
        actions.insert(len(actions) // 2, Action("reserve", 3 << 20))
        asked = simulator.memory(actions, limit_bytes=ROOMY_BYTES).live_peak_bytes
        assert simulator.peak_live_bytes(actions) == max(simulator.live_bytes(actions)) == asked


def test_programs_do_not_disturb_each_other() -> None:
    """What lies there before a step is laid down once, and each program begins there anew."""
    graph = random_step_graph(1, 8)
    programs = [
        lower(graph, dict.fromkeys(worth_deciding(graph), decision))
        for decision in ("keep", "swap", "recompute")
    ]
    alone = [Simulator(graph, ARENA).memory(program) for program in programs]
    together = Simulator(graph, ARENA)
    for order in itertools.permutations(range(3)):
        assert [together.memory(programs[i]) for i in order] == [alone[i] for i in order]
