"""What all of the field's planners that take a budget are held to."""

import itertools

import pytest

from memtrade.errors import InfeasibleBudgetError
from memtrade.plan import Plan, check_plan
from memtrade.simulate.memory import ROOMY_BYTES, Simulator
from memtrade.strategies.baselines import checkmate, greedy, rotor
from tests.graphs import ARENA, chain
from tests.strategies.baselines.simulated import peak_bytes, seconds


def plan(planner, graph, **options) -> Plan:
    made = planner.plan(graph, planner.Options(**options), ARENA)
    check_plan(made, graph)
    return made


@pytest.mark.parametrize(
    ("planner", "layers", "shares"),
    [
        (checkmate, 12, (1.0, 0.8, 0.6)),
        (greedy, 40, (1.0, 0.7, 0.5, 0.35)),
        (rotor, 40, (1.0, 0.7, 0.5, 0.35)),
    ],
)
def test_budgets_are_kept_and_less_memory_takes_longer(planner, layers, shares):
    graph = chain(layers)
    original = Simulator(graph, ARENA).memory((), limit_bytes=ROOMY_BYTES).peak_bytes
    times = []
    for share in shares:
        made = plan(planner, graph, budget=f"{int(share * original)}B")
        assert peak_bytes(graph, made) <= share * original
        times.append(seconds(graph, made))
    assert all(a <= b + 1e-12 * (planner is checkmate) for a, b in itertools.pairwise(times))
    assert times[-1] > times[0]
    if planner is rotor:
        ample = plan(planner, graph, budget="1GB")
        assert times[0] == pytest.approx(seconds(graph, ample))


@pytest.mark.parametrize(("planner", "layers"), [(checkmate, 12), (greedy, 30), (rotor, 30)])
def test_a_budget_below_the_floor_says_the_floor(planner, layers):
    graph = chain(layers)
    with pytest.raises(InfeasibleBudgetError) as refused:
        plan(planner, graph, budget="1MB")
    floor = refused.value.needed_bytes
    assert refused.value.op
    assert peak_bytes(graph, plan(planner, graph, budget=f"{floor}B")) <= floor
    if planner is rotor:
        assert peak_bytes(graph, plan(planner, graph)) == floor
