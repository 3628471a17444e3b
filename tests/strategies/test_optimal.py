"""optimal against brute force on small graphs, against its own programme, and its errors."""

import dataclasses
import functools
import itertools
import logging
import math
import re
import time

import msgspec
import psutil
import pytest

from memtrade.errors import InfeasibleBudgetError, MemtradeError
from memtrade.graph import StepGraph
from memtrade.plan import Action, Decision, check_plan
from memtrade.simulate.defragment import defragment
from memtrade.simulate.memory import ROOMY_BYTES, Simulator
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import find_planned, make_options
from memtrade.strategies.base import clock_of, worth_deciding
from memtrade.strategies.deadline import Deadline
from memtrade.strategies.optimal import choice, strategy
from memtrade.strategies.optimal.choice import Choice, Chooser
from memtrade.strategies.optimal.judge import Judge
from memtrade.strategies.optimal.search import Search
from memtrade.strategies.optimal.strategy import Options, about, near, plan
from memtrade.units import megabytes
from tests.graphs import ARENA, chain, target
from tests.strategies.brute_force import candidates, random_step_graph


class Finished:
    """Every choice there is, as far as needed with the peak of its finished program."""

    def __init__(self, graph: StepGraph):
        self.graph = graph
        self.times = TimeSimulator(graph, ARENA)
        self.simulator = self.times.simulator
        self.made = [
            (self.times.step_seconds(actions), self.simulator.peak_live_bytes(actions), actions)
            for _, actions in candidates(graph, ARENA)
        ]

    def peak(self, actions: tuple[Action, ...]) -> int:
        finished = defragment(self.times, actions)
        return self.simulator.memory(finished, limit_bytes=ROOMY_BYTES).peak_bytes

    def fastest(self, budget: int) -> float | None:
        for seconds, live, actions in sorted(self.made, key=lambda each: each[:2]):
            if live <= budget and self.peak(actions) <= budget:
                return seconds
        return None

    def smallest(self) -> int:
        """Finished, of the programs that ask for the fewest bytes: of padding, MiB in so small a
        graph, no choice knows before it is finished."""
        least = min(live for _, live, _ in self.made)
        return max(self.peak(actions) for _, live, actions in self.made if live == least)

    def seconds(self, actions: tuple[Action, ...]) -> float:
        return self.times.step_seconds(actions)

    def finished_peak(self, actions: tuple[Action, ...]) -> int:
        return self.simulator.memory(actions, limit_bytes=ROOMY_BYTES).peak_bytes


@functools.cache
def finished(seed: int) -> Finished:
    """From 4 to 8 ops; after that, no more of those that take long."""
    return Finished(random_step_graph(seed, 4 + (seed if seed < 5 else seed % 3)))


@pytest.mark.parametrize("seed", range(16))
def test_equals_brute_force(seed):
    every = finished(seed)
    graph = every.graph
    smallest = plan(graph, Options(time_limit=60.0, tolerance=0.0), ARENA)
    floor = every.smallest()
    assert every.finished_peak(smallest.actions) <= floor
    original = every.peak(tuple(every.simulator.actions(())))
    for share in (0.25, 0.6):
        budget = int(floor + (original - floor) * share)
        made = plan(graph, Options(budget=f"{budget}B", time_limit=60.0), ARENA)
        check_plan(made, graph)
        assert every.finished_peak(made.actions) <= budget
        best = every.fastest(budget)
        assert best is not None
        assert every.seconds(made.actions) <= best * (1 + 1e-9)


def test_a_roomy_budget_keeps_everything():
    graph = random_step_graph(3, 8)
    made = plan(graph, Options(budget="4GB"), ARENA)
    assert {fate.decision for fate in made.fates} == {"keep"}
    assert {action.kind for action in made.actions} <= {"run", "reserve"}


def moments(graph: StepGraph) -> set[str]:
    """What a peak may be told to lie at: an op, or a tensor's copy."""
    copies = {f"swap {way} {graph.label(t.id)}" for t in graph.tensors for way in ("out", "in")}
    return copies | {op.name for op in graph.ops}


def test_a_budget_below_the_floor_says_the_floor_and_the_op():
    every = finished(1)
    graph, floor = every.graph, every.smallest()
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan(graph, Options(budget="1MB"), ARENA)
    assert caught.value.needed_bytes <= floor
    assert caught.value.op in moments(graph)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_better_than_the_proven_gap_allows(seed: int) -> None:
    every = finished(seed)
    graph = every.graph
    smallest = plan(graph, Options(time_limit=60.0, tolerance=0.0), ARENA)
    peak = every.finished_peak(smallest.actions)
    assert smallest.gap is not None
    assert 0 <= smallest.gap < 1
    # Even without padding nothing is smaller; the gap is rounded to 4 places.
    assert min(live for _, live, _ in every.made) >= peak * (1 - smallest.gap - 1e-4)
    original = every.peak(tuple(every.simulator.actions(())))
    budget = (peak + original) // 2
    made = plan(graph, Options(budget=f"{budget}B", time_limit=60.0), ARENA)
    best = every.fastest(budget)
    assert best is not None
    assert made.gap is not None
    assert best >= every.seconds(made.actions) * (1 - made.gap - 1e-4)


def test_a_plan_says_what_binds() -> None:
    every = finished(1)
    graph = every.graph
    roomy = plan(graph, Options(budget="4GB"), ARENA)
    assert (roomy.gap, roomy.remarks[1:]) == (
        0.0,
        ("everything fits: nothing is recomputed or swapped",),
    )
    smallest = plan(graph, Options(host_memory_limit="1GB", tolerance=0.0), ARENA)
    assert smallest.remarks[1:] == ("memory was minimized",)
    floor = every.finished_peak(smallest.actions)
    assert f"peak {megabytes(floor)} MB at " in smallest.remarks[0]
    assert smallest.remarks[0].rpartition(" at ")[2] in moments(graph)
    tight = plan(graph, Options(budget=f"{floor}B", host_memory_limit="1GB"), ARENA)
    assert tight.remarks[1:] == (f"the budget of {megabytes(floor)} MB binds",)
    without = plan(graph, Options(host_memory_limit="0B"), ARENA)
    assert without.remarks[-1] == "the host memory limit of 0.0 MB binds: 0.0 MB are swapped"


# Where copies overlap, a longer one is searched otherwise.
@pytest.mark.parametrize(("device", "length"), [("arena", 30), ("gtx-1070", 32)])
def test_least_memory_is_the_fastest_plan_next_to_the_smallest_peak(
    device: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "FEW_ITEMS", 30)
    graph, on = chain(length, size=4 << 20), target(device)
    times = TimeSimulator(graph, on)
    made = [plan(graph, Options(tolerance=tolerance), on) for tolerance in (0.0, 0.01, 0.5)]
    lines = [times.timeline(each, limit_bytes=ROOMY_BYTES) for each in made]
    peaks = [line.peak_bytes or 0 for line in lines]
    seconds = [line.step_seconds for line in lines]
    assert peaks[1] <= 1.01 * peaks[0]
    assert peaks[2] <= 1.5 * peaks[0]
    assert seconds[2] < seconds[0]
    assert made[0].remarks[1] == "memory was minimized"
    assert made[2].remarks[1] == (
        f"memory was minimized: the smallest peak is {megabytes(peaks[0])} MB, and this is the "
        "fastest plan within 50% of it"
    )


def test_the_log_has_the_best_so_far(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="memtrade.strategies"):
        plan(random_step_graph(3, 6), Options(), ARENA)
    assert caplog.messages[0] == "solving"
    best = [line for line in caplog.messages if line.startswith("best so far: ")]
    assert all(re.fullmatch(r"best so far: [+-][\d.]+% time, peak [\d.]+ MB.*", b) for b in best)
    assert best


def test_half_of_a_correction_that_leaves_no_room_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first choice's copies are far over the budget; corrected by that, the programme has no
    solution."""
    graph = chain(12, size=8 << 20)
    budget = Simulator(graph, ARENA).peak_live_bytes(()) * 3 // 4
    choose, correct = Search._choose, Search._correct_everywhere
    turns, corrections = iter(("bound", "late", "none")), []
    swapped: dict[int, Decision] = dict.fromkeys(worth_deciding(graph), "swap")

    def choose_badly(
        self: Search, chooser: Chooser, budget: int | None = None, *, rough: float = 0.0
    ) -> Choice | None:
        turn, choice = next(turns, "best"), choose(self, chooser, budget, rough=rough)
        if turn in ("bound", "best") or choice is None:
            return choice
        return dataclasses.replace(choice, decisions=swapped) if turn == "late" else None

    def note(self: Search, chooser: Chooser, excess_bytes: float) -> None:
        corrections.append(excess_bytes)
        correct(self, chooser, excess_bytes)

    monkeypatch.setattr(Search, "_choose", choose_badly)
    monkeypatch.setattr(Search, "_correct_everywhere", note)
    made = plan(graph, Options(budget=f"{budget}B"), target("gtx-1070"))
    assert corrections[1] == -corrections[0] / 2 < 0
    assert made.gap is not None
    assert next(turns, None) is None


def test_no_host_memory_means_no_swaps():
    graph = random_step_graph(5, 6)
    made = plan(graph, Options(host_memory_limit="0B"), ARENA)
    assert not made.tensors("swap")
    assert plan(graph, Options(swap=False), ARENA).tensors("swap") == []


def test_same_input_same_plan():
    graph = random_step_graph(7, 7)
    assert plan(graph, Options(), ARENA) == plan(graph, Options(), ARENA)


def test_is_in_the_registry():
    options = make_options("optimal", {"budget": "1MB", "swap": "false"})
    assert (options.budget, options.swap) == ("1MB", False)
    assert find_planned("optimal").plan is plan


@pytest.mark.parametrize(
    "given",
    [
        {"budget": "12"},
        {"minimize": "money"},
        {"time_limit": 0.0},
        {"tolerance": 1.0},
        {"device": "arena"},
    ],
)
def test_bad_options_are_refused(given):
    with pytest.raises(MemtradeError):
        make_options("optimal", given)


def test_a_slow_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that takes 50 times as long makes the same plan, byte for byte."""
    graph = chain(24, size=8 << 20)
    budget = Simulator(graph, ARENA).peak_live_bytes(()) * 2 // 3
    made = []
    for tick in (0.001, 0.05):
        clock = itertools.count()
        monkeypatch.setattr(time, "monotonic", lambda clock=clock, tick=tick: tick * next(clock))
        asked = ((Options(), ARENA), (Options(budget=f"{budget}B"), target("gtx-1070")))
        made.append([msgspec.json.encode(plan(graph, *each)) for each in asked])
    assert made[0] == made[1]


@pytest.mark.parametrize("moments", [1, 6])
def test_the_time_limit_cancels_and_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, moments: int
) -> None:
    """Each look at the clock finds it a second later."""
    graph = chain(30, size=8 << 20)
    budget = Simulator(graph, ARENA).peak_live_bytes(()) * 2 // 3
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    made = plan(graph, Options(budget=f"{budget}B", time_limit=moments), ARENA)
    check_plan(made, graph)
    assert Simulator(graph, ARENA).memory(made, limit_bytes=ROOMY_BYTES).peak_bytes <= budget
    assert made.remarks[-1].startswith(f"the time limit of {moments} s ended the search")
    assert "the time limit ended the search" in caplog.messages


def test_what_is_free_on_this_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(24, size=8 << 20)
    before = plan(graph, Options(), target("gtx-1070"))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: pytest.fail("asked what is free"))
    assert before == plan(graph, Options(), target("gtx-1070"))
    assert before.tensors("swap")


def test_a_plan_near_at_hand_is_the_plan() -> None:
    """Or there is none: the smallest peak is not looked for. What it is about is soon told."""
    graph = chain(5)
    smallest = plan(graph, Options(), ARENA)
    peak = Simulator(graph, ARENA).memory(smallest, limit_bytes=ROOMY_BYTES).peak_bytes
    assert about(graph, Options(), ARENA) == pytest.approx(peak, rel=0.3)
    found = []
    for share in (1.0, 1.05, 1.2, 1.5, 2.0):
        options = Options(budget=f"{int(share * peak)}B")
        try:
            found.append(near(graph, options, ARENA))
        except InfeasibleBudgetError:
            continue
        assert found[-1] == plan(graph, options, ARENA)
    assert len(found) >= 3
    with pytest.raises(InfeasibleBudgetError):
        near(graph, Options(budget=f"{int(0.5 * peak)}B"), ARENA)


@pytest.mark.parametrize("seed", range(4))
def test_a_peak_below_the_limit_is_none_where_the_program_does_not_run_there(seed: int) -> None:
    """Holes between what is in use, which there is room for elsewhere."""
    graph = random_step_graph(seed, 8)
    roomy = Judge(graph, ARENA, Deadline(math.inf))
    peak = roomy.finish(roomy.judge({}), 0).peak_bytes
    ran = []
    for limit in range(peak, 2 * peak, peak // 8):
        judge = Judge(graph, ARENA.replace(limit_bytes=limit), Deadline(math.inf))
        found = judge.finish(judge.judge({}), 0)
        runs = judge.simulator.memory(found.actions).out_of_memory is None
        assert (found.peak_bytes <= limit) == runs
        ran.append(runs)
    assert set(ran) == {True, False}


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_faster_plan_next_to_the_smallest_peak_finds_room_on_the_target(share: float) -> None:
    """What is tolerated above the smallest peak ends where the target does."""
    graph = chain(24, size=8 << 20)

    def peak(tolerance: float) -> int:
        made = plan(graph, Options(tolerance=tolerance), ARENA)
        return Simulator(graph, ARENA).memory(made, limit_bytes=ROOMY_BYTES).peak_bytes

    smallest, tolerated = peak(0.0), peak(0.5)
    limit = smallest + int(share * (tolerated - smallest))
    small = ARENA.replace(limit_bytes=limit)
    made = plan(graph, Options(tolerance=0.5), small)
    assert smallest < limit < tolerated
    assert Simulator(graph, small).memory(made).out_of_memory is None


def test_where_the_search_finds_nothing_a_rule_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where only a forward part that is scheduled anew fits; within the same limits."""
    graph = chain(24)
    rules = {
        name: find_planned(name).plan(graph, make_options(name), ARENA)
        for name in ("checkpoints", "ome")
    }
    clock = clock_of(graph, ARENA)
    needed = {name: clock.needed(made).peak_bytes for name, made in rules.items()}

    def nothing(graph, options, target, *, looks_far):
        raise InfeasibleBudgetError(1 << 40, options.budget_bytes, "")

    monkeypatch.setattr(strategy, "_planned", nothing)
    assert needed["ome"] < needed["checkpoints"]
    found = plan(graph, Options(budget=f"{needed['ome']}B"), ARENA)
    assert (found.strategy, found.actions) == ("optimal", rules["ome"].actions)
    assert found.remarks[-1].startswith("as ome plans it")
    found = plan(graph, Options(budget=f"{needed['checkpoints']}B", swap=False), ARENA)
    assert found.actions == rules["checkpoints"].actions
    with pytest.raises(InfeasibleBudgetError) as refused:
        plan(graph, Options(budget=f"{needed['ome'] - 256}B"), ARENA)
    assert refused.value.needed_bytes == needed["ome"]


def test_the_smallest_peak_is_not_above_a_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(24)
    left = find_planned("original").plan(graph, make_options("original"), ARENA)
    ruled = find_planned("ome").plan(graph, make_options("ome"), ARENA)
    monkeypatch.setattr(strategy, "_planned", lambda *_, looks_far: left)
    assert plan(graph, Options(minimize="memory"), ARENA).actions == ruled.actions
    assert plan(graph, Options(budget="1GB"), ARENA) == left
