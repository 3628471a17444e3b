import itertools
import math

import numpy as np
import pytest

from memtrade.errors import MemtradeError
from memtrade.plan import check_plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.baselines import rotor, sqrt_n
from memtrade.strategies.baselines.chain import Chain
from memtrade.strategies.baselines.rotor import Costs, costs_of, distinct, program, solve
from tests.graphs import ARENA, chain
from tests.strategies.baselines.simulated import peak_bytes, seconds
from tests.strategies.brute_force import random_step_graph


def unit_costs(segments: int, slots: int) -> Costs:
    """Griewank and Walther's setting: steps and states of size one, and nothing else."""
    n = segments
    zeros = np.zeros(n, np.int64)
    return Costs(
        walk=np.ones(n),
        rebuild=np.zeros(n),
        backward=zeros,
        stash=np.full(n, slots + 1),  # storing a whole segment is never possible
        gradient=zeros,
        frontier=np.ones((n, n), np.int64),
        forward=np.zeros((n, n), np.int64),
        slots=slots,
    )


def revolve(steps: int, states: int) -> int:
    """Forward steps that reverse `steps` steps with `states` stored states: Griewank and Walther,
    "Algorithm 799: Revolve", ACM TOMS 26(1), 2000, proposition 1."""
    r = next(r for r in itertools.count() if math.comb(states + r, states) >= steps)
    return r * steps - math.comb(states + r, r - 1) if r else 0


@pytest.mark.parametrize("states", [1, 2, 3, 5])
def test_equal_segments_are_reversed_as_by_revolve(states):
    # They count the state before the first step, we the one that is worked on: as many slots.
    table = solve(unit_costs(30, states))
    for steps in range(1, 31):
        assert table[0, steps - 1, states] == revolve(steps, states)


def fastest(costs: Costs, a: int, b: int, memory: int) -> float:
    """Opt as it stands in the docstring, without tables."""
    if a == b:
        return costs.rebuild[a] if memory >= costs.backward[a] else math.inf
    best = math.inf
    needed = max(costs.gradient[b] + costs.forward[a, a + 1], costs.backward[a])
    if memory >= max(needed, costs.stash[a]):
        best = costs.walk[a] + fastest(costs, a + 1, b, memory - int(costs.stash[a]))
    for j in range(a + 1, b + 1):
        needed = max(costs.gradient[b] + costs.forward[a, j], costs.frontier[a, j])
        if memory >= needed:
            later = fastest(costs, j, b, memory - int(costs.frontier[a, j]))
            before = fastest(costs, a, j - 1, memory)
            best = min(best, float(costs.walk[a:j].sum()) + later + before)
    return best


@pytest.mark.parametrize("seed", range(8))
def test_the_table_is_the_recursion(seed):
    rng = np.random.default_rng(seed)
    n, slots = 5, 14
    costs = Costs(
        walk=rng.integers(1, 9, n).astype(float),
        rebuild=rng.integers(0, 5, n).astype(float),
        backward=rng.integers(1, 7, n),
        stash=rng.integers(1, 6, n),
        gradient=rng.integers(0, 3, n),
        frontier=rng.integers(0, 4, (n, n)),
        forward=rng.integers(0, 6, (n, n)),
        slots=slots,
    )
    table = solve(costs)
    for a in range(n):
        for b in range(a, n):
            for m in range(slots + 1):
                assert table[a, b, m] == pytest.approx(fastest(costs, a, b, m))


def plan(graph, **options):
    made = rotor.plan(graph, rotor.Options(**options), ARENA)
    check_plan(made, graph)
    return made


@pytest.mark.parametrize(
    ("graph", "tolerance"),
    [(chain(20), 1e-3), (random_step_graph(3, 24), 0.1)],
    ids=["chain", "branches"],
)
def test_the_time_of_the_table_is_the_simulated_one(graph, tolerance):
    """Where branches join, what one segment recomputed may serve the next, which no table sees."""
    clock = TimeSimulator(graph, ARENA)
    found = Chain(graph, clock, 100)
    costs = costs_of(found)
    table = solve(costs)
    memory = distinct(table)
    assert len(memory) > 5
    base = clock.step_seconds(()) - table[0, -1, memory[-1]]
    for m in memory:
        simulated = clock.step_seconds(program(found, costs, table, m)) - base
        assert simulated == pytest.approx(table[0, -1, m], rel=tolerance)


def test_little_memory_needs_several_recomputations_of_one_op():
    """Which `schedule.lower` cannot do, and where it leaves the sqrt(n) rule behind."""
    graph = chain(60)
    least = plan(graph)
    assert any(fate.reason.endswith("times") for fate in least.fates)
    rule = sqrt_n.plan(graph, sqrt_n.Options(), ARENA)
    assert peak_bytes(graph, least) < 0.8 * peak_bytes(graph, rule)
    equal = plan(graph, budget=f"{peak_bytes(graph, rule)}B")
    assert seconds(graph, equal) <= seconds(graph, rule) * (1 + 1e-9)


def test_stateful_ops_are_not_recomputed():
    graph = chain(30, stateful=7)
    made = plan(graph)
    stateful = next(op for op in graph.ops if op.name == "layer7")
    again = {action.id for action in made.actions if action.kind == "recompute"}
    assert again
    assert stateful.id not in again


def test_bad_input():
    for budget in ("much", "0MB", "-5MB"):
        with pytest.raises(MemtradeError):
            rotor.Options(budget=budget)
