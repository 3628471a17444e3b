"""Live bytes without an allocator, against the walk with one that counts what it is asked for."""

import itertools
import random

import pytest

from memtrade.facts import CPU
from memtrade.plan import Action, Decision
from memtrade.schedule import lower
from memtrade.simulate.memory import Simulator
from memtrade.simulate.walk import Walk
from memtrade.strategies.base import worth_deciding
from tests.graphs import ARENA, GivingBack, HandMade
from tests.strategies.brute_force import options, random_step_graph


class Counting:
    """Every request succeeds, and takes what it asks for."""

    def __init__(self) -> None:
        self.bytes_in_use = 0
        self.sizes = [0]

    def allocate(self, num_bytes: int, /) -> int:
        self.bytes_in_use += num_bytes
        self.sizes.append(num_bytes)
        return len(self.sizes) - 1

    def free(self, handle: int, /) -> None:
        self.bytes_in_use -= self.sizes[handle]


def walked(simulator: Simulator, actions: tuple[Action, ...]) -> tuple[list[int], int]:
    """Bytes in use after each row, and the peak of the bytes asked for."""
    walk = Walk(simulator.linker, simulator.link(actions), Counting())
    walk.persist()
    walk.step()
    return walk.series, walk.live_peak


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("facts", [HandMade(CPU), GivingBack(CPU)], ids=["", "giving back"])
def test_counts_what_the_walk_counts(facts: HandMade, seed: int) -> None:
    graph, rng = random_step_graph(seed, 10), random.Random(seed)
    simulator = Simulator(graph, ARENA.replace(facts=facts))
    for _ in range(5):
        decisions: dict[int, Decision] = {
            t: rng.choice(options(graph, t)) for t in worth_deciding(graph)
        }
        actions = list(lower(graph, decisions))
        actions.insert(len(actions) // 2, Action("reserve", 3 << 20))
        series, peak = walked(simulator, tuple(actions))
        linked = [row.action for row in simulator.link(actions).rows]
        in_use = simulator.live_bytes(actions)
        assert [in_use[action] for action in linked] == series
        assert simulator.peak_live_bytes(actions) == peak


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
