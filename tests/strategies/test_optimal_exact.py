"""optimal against Checkmate's exact program, on steps of about 20 nodes, without copies.

Both get the bytes that optimal's plan has in use. They do not choose from quite the same plans: the
program may run an op three times and more but keeps to one order of the ops; optimal recomputes an
op at most once and orders the backward part anew. And the program counts what is asked for: where
its schedule, padded, takes more than the budget, it is no plan for it. On so small steps, whose
pieces of memory are few and large, that is often so next to the smallest peak.
"""

import functools

import pytest

from memtrade.order import base_order
from memtrade.plan import Action
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.baselines.dag import solve
from memtrade.strategies.baselines.nodes import NodeGraph, nodes_of_ops
from memtrade.strategies.budget import live_bytes, peak_of
from memtrade.strategies.optimal.strategy import Options, plan
from tests.graphs import ARENA
from tests.strategies.brute_force import random_step_graph

SEEDS = range(7)
SHARES = (0.1, 0.25, 0.5, 0.8)  # of the way from the smallest peak to the original's

# Of a step's time, what may lie between them for these two reasons.
TOLERANCE = 0.03


@functools.cache
def compared(seed: int) -> list[tuple[float, float]]:
    """Seconds of optimal's plan and of the exact schedule, for each budget that has a schedule."""
    graph = random_step_graph(seed, 11)
    clock = TimeSimulator(graph, ARENA)
    nodes = NodeGraph(clock, nodes_of_ops(graph))
    # Small ops that belong to no node's output run once, whatever is decided.
    always_seconds = clock.step_seconds(()) - sum(nodes.dag.costs)
    leanest = plan(graph, Options(swap=False, tolerance=0.0), ARENA)
    floor = peak_of(clock, leanest.actions).peak_bytes
    kept = tuple(Action("run", op_id) for op_id in base_order(graph))
    roof = peak_of(clock, kept).peak_bytes  # of everything kept, in a pinned order
    found: list[tuple[float, float]] = []
    for share in SHARES:
        budget = int(floor + (roof - floor) * share)
        made = plan(graph, Options(budget=f"{budget}B", swap=False, time_limit=60.0), ARENA)
        exact = solve(nodes.dag, live_bytes(clock, made.actions) - nodes.always_bytes)
        if exact is None:
            continue
        assert exact.bound == pytest.approx(exact.cost)
        if peak_of(clock, nodes.program(exact)).peak_bytes <= budget:
            found.append((clock.step_seconds(made.actions), exact.cost + always_seconds))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_no_slower_than_the_exact_schedule(seed):
    assert compared(seed)
    for ours, exact in compared(seed):
        assert ours <= exact * (1 + TOLERANCE)


def test_for_most_budgets_it_is_as_fast_as_the_exact_schedule():
    """And on most steps something has to be recomputed, or that would be no feat."""
    pairs = [pair for seed in SEEDS for pair in compared(seed)]
    equal = sum(ours <= exact * (1 + 1e-6) for ours, exact in pairs)
    clocks = [TimeSimulator(random_step_graph(seed, 11), ARENA) for seed in SEEDS]
    originals = [clock.step_seconds(()) for clock in clocks]
    slower = sum(
        max(ours for ours, _ in compared(seed)) > 1.001 * original
        for seed, original in zip(SEEDS, originals, strict=True)
    )
    assert equal >= 0.5 * len(pairs)
    assert slower >= 0.6 * len(SEEDS)
