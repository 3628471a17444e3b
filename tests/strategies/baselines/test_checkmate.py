import numpy as np
import pytest

from memtrade.plan import check_plan
from memtrade.simulate.memory import Simulator
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.baselines import checkmate, rotor, sqrt_n
from memtrade.strategies.baselines.chain import Chain
from memtrade.strategies.baselines.dag import schedule_of, solve
from memtrade.strategies.baselines.nodes import NodeGraph, nodes_of_chain, nodes_of_ops
from memtrade.strategies.budget import live_bytes
from tests.graphs import ARENA, chain
from tests.strategies.baselines.simulated import peak_bytes, seconds
from tests.strategies.brute_force import random_step_graph

GRAPHS = [chain(10), *(random_step_graph(seed, 12) for seed in range(4))]
IDS = ["chain", *(f"random {seed}" for seed in range(4))]


def views(graph) -> list[NodeGraph]:
    """The step's nodes, op by op and by segments of its chain."""
    times = TimeSimulator(graph, ARENA)
    by_ops, by_chain = nodes_of_ops(graph), nodes_of_chain(Chain(graph, times, 6))
    return [NodeGraph(times, by_ops), NodeGraph(times, by_chain)]


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
def test_every_op_runs_in_one_node_and_edges_lead_forward(graph):
    for nodes in views(graph):
        ops = [op_id for node in nodes.nodes for op_id in node.ops]
        assert sorted(ops) == list(range(len(graph.ops)))
        assert all(u < v for v, parents in enumerate(nodes.dag.parents) for u in parents)


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
def test_with_everything_held_cost_and_peak_are_the_original_s(graph):
    clock = TimeSimulator(graph, ARENA)
    for nodes in views(graph):
        count = len(nodes.dag)
        schedule = schedule_of(nodes.dag, np.ones((count, count), bool))
        actions = nodes.program(schedule)
        assert {action.kind for action in actions} == {"run"}
        assert schedule.cost == pytest.approx(clock.step_seconds(()), rel=0.02)
        counted = schedule.peak + nodes.always_bytes
        assert counted == pytest.approx(live_bytes(clock, actions), rel=0.02)


@pytest.mark.parametrize("graph", GRAPHS, ids=IDS)
def test_cost_and_peak_of_schedules_are_close_to_the_simulated(graph):
    clock = TimeSimulator(graph, ARENA)
    for nodes in views(graph):
        count = len(nodes.dag)
        most = schedule_of(nodes.dag, np.ones((count, count), bool)).peak
        for share in (0.9, 0.8, 0.7):
            schedule = solve(nodes.dag, share * most, node_limit=20)
            if schedule is None:
                continue
            actions = nodes.program(schedule)
            assert clock.step_seconds(actions) == pytest.approx(schedule.cost, rel=0.05)
            counted = schedule.peak + nodes.always_bytes
            assert live_bytes(clock, actions) <= 1.15 * counted


def plan(graph, **options):
    made = checkmate.plan(graph, checkmate.Options(**options), ARENA)
    check_plan(made, graph)
    return made


def at_the_peak_of_sqrt_n(graph) -> tuple[float, float, float]:
    """Seconds by the integer program, by sqrt_n, and by rotor, all within sqrt_n's peak."""
    rule = sqrt_n.plan(graph, sqrt_n.Options(), ARENA)
    budget = peak_bytes(graph, rule)
    made = plan(graph, budget=f"{budget}B")
    assert peak_bytes(graph, made) <= budget
    by_chain = rotor.plan(graph, rotor.Options(budget=f"{budget}B"), ARENA)
    return seconds(graph, made), seconds(graph, rule), seconds(graph, by_chain)


def test_on_a_short_chain_no_slower_than_the_rule():
    ours, rule, by_chain = at_the_peak_of_sqrt_n(chain(16))
    assert ours <= rule
    assert ours <= 1.06 * by_chain


def test_on_a_long_chain_of_equal_layers_the_rounding_is_not_far_off():
    """Where all layers are alike the relaxation spreads each over many stages: its worst case."""
    ours, rule, _ = at_the_peak_of_sqrt_n(chain(60))
    assert ours <= 1.4 * rule


def test_a_large_step_is_planned_by_segments(monkeypatch):
    graph = chain(24)
    clock = TimeSimulator(graph, ARENA)
    fine = checkmate.choose_nodes(graph, clock)
    monkeypatch.setattr(checkmate, "OP_NODES", 20)
    monkeypatch.setattr(checkmate, "CHAIN_NODES", 40)
    monkeypatch.setattr(checkmate, "EXACT_NODES", 20)
    coarse = checkmate.choose_nodes(graph, clock)
    assert len(coarse.nodes) <= 40 < len(fine.nodes)
    most = Simulator(graph, ARENA).memory((), limit_bytes=1 << 42).peak_bytes * 6 // 10
    assert peak_bytes(graph, plan(graph, budget=f"{most}B")) <= most
