"""Plans that were found for less memory count for more, where they are faster."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from memtrade.errors import InfeasibleBudgetError
from memtrade.graph import StepGraph
from memtrade.plan import Plan, check_plan
from memtrade.schedule import lower
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import find_planned, make_options
from memtrade.strategies.base import Strategy, worth_deciding
from memtrade.strategies.known import plan_sharing, plan_with_known, plans_in
from memtrade.target import Target
from tests.graphs import ARENA, chain, target

MIB = 1 << 20
GRAPH = chain(10, size=MIB)
OPTIMAL = find_planned("optimal")


def slow(graph: StepGraph, options: object, target: Target) -> Plan:
    """Swaps everything, whatever the budget."""
    decisions = dict.fromkeys(worth_deciding(graph), "swap")
    return Plan(
        "optimal",
        dataclasses.asdict(options),  # pyright: ignore[reportArgumentType]
        graph.fingerprint,
        target.order,
        (),
        lower(graph, decisions),  # pyright: ignore[reportArgumentType]
        remarks=("slow",),
        target=target.name,
    )


SLOW = dataclasses.replace(OPTIMAL, plan=slow)


def options(budget: str, **more: str) -> object:
    return make_options("optimal", {"budget": budget, **more})


def seconds(plan: Plan) -> float:
    return TimeSimulator(GRAPH, ARENA).step_seconds(plan)


@pytest.fixture(scope="module")
def for_less() -> Plan:
    return OPTIMAL.plan(GRAPH, options("10MB"), ARENA)


def test_one_for_less_memory_counts_and_the_plan_says_so(for_less: Plan) -> None:
    alone = plan_with_known(SLOW, GRAPH, options("12MB"), ARENA, ())
    made = plan_with_known(SLOW, GRAPH, options("12MB"), ARENA, [for_less])
    check_plan(made, GRAPH)
    assert alone.found_for == ""
    assert seconds(made) < seconds(alone)
    assert (made.actions, made.found_for) == (for_less.actions, "10MB")
    assert made.options["budget"] == "12MB"
    assert made.gap is None
    assert made.remarks[-1] == "found for 10MB, and counts for more"
    again = plan_with_known(SLOW, GRAPH, options("14MB"), ARENA, [made])
    assert again.found_for == "10MB"


def test_a_faster_one_of_its_own_is_kept(for_less: Plan) -> None:
    made = plan_with_known(OPTIMAL, GRAPH, options("20MB"), ARENA, [for_less])
    assert made.found_for == ""
    assert seconds(made) < seconds(for_less)


@pytest.mark.parametrize("case", ["budget", "options", "target", "graph"])
def test_what_does_not_fit_is_not_taken(for_less: Plan, case: str) -> None:
    graph, asked, goal = GRAPH, options("12MB"), ARENA
    if case == "budget":
        asked = options("5MB")
    elif case == "options":
        asked = options("12MB", swap="false")
    elif case == "target":
        goal = target("gtx-1070")
    else:
        graph = chain(11, size=MIB)
    assert plan_with_known(SLOW, graph, asked, goal, [for_less]).found_for == ""


def test_a_strategy_that_finds_nothing_takes_what_is_known(for_less: Plan) -> None:
    def nothing(graph: StepGraph, options: object, target: Target) -> Plan:
        raise InfeasibleBudgetError(99, 1, "op")

    none: Strategy = dataclasses.replace(OPTIMAL, plan=nothing)
    assert plan_with_known(none, GRAPH, options("12MB"), ARENA, [for_less]).found_for == "10MB"
    with pytest.raises(InfeasibleBudgetError):
        plan_with_known(none, GRAPH, options("12MB"), ARENA, ())


def test_processes_share_a_folder(tmp_path: Path) -> None:
    first = plan_sharing(OPTIMAL, GRAPH, options("10MB"), ARENA, str(tmp_path))
    (tmp_path / f"optimal-{GRAPH.fingerprint}-damaged.plan").write_text("{")
    assert plans_in(tmp_path, "optimal", GRAPH) == [first]
    second = plan_sharing(SLOW, GRAPH, options("12MB"), ARENA, str(tmp_path))
    assert second.found_for == "10MB"
    assert plan_sharing(SLOW, GRAPH, options("12MB"), ARENA, None).found_for == ""


def test_a_folder_that_cannot_be_written_to_keeps_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("")
    made = plan_sharing(OPTIMAL, GRAPH, options("10MB"), ARENA, str(folder / "plans"))
    assert msgspec.json.encode(made) == msgspec.json.encode(
        OPTIMAL.plan(GRAPH, options("10MB"), ARENA)
    )
