"""`memtrade plan` for a strategy that searches: progress, gap, remarks, and what has no plan."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memtrade.commands import profiles, progress
from memtrade.measure.protocol import Event, Progress
from memtrade.plan import Plan, load_plan
from memtrade.simulate.predict import Predictor
from memtrade.units import megabytes
from tests.commands.conftest import SMALL, Run
from tests.graphs import target
from tests.strategies.brute_force import random_step_graph

OPTIMAL = [*SMALL, "--strategy", "optimal"]
GRAPH = random_step_graph(3, 8)


@pytest.fixture(autouse=True)
def _tiny(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    del run  # it has set another step's graph
    monkeypatch.setattr(profiles, "extract_graph", lambda spec, **_: GRAPH)


def smallest(run: Run) -> Plan:
    status, out, _ = run("plan", *OPTIMAL, "--json")
    assert status == 0
    [made] = msgspec.json.decode(out, type=list[Plan])
    return made


def test_the_gap_and_the_remarks_are_in_the_table_and_in_the_saved_plan(run: Run) -> None:
    made = smallest(run)
    status, out, err = run("plan", *OPTIMAL, "--output", "plan.json")
    assert (status, err) == (0, "memtrade: wrote plan.json\n")
    assert load_plan(Path("plan.json")) == made
    assert made.gap is not None
    assert f"proven gap: {100 * made.gap:.1f}% (no plan in the model is better by more)" in out
    assert made.remarks
    for remark in made.remarks:
        assert remark in " ".join(out.split())


def test_a_plan_for_a_device_that_is_not_here_is_judged_for_that_device(run: Run) -> None:
    """It runs nowhere: rates, kernels and allocator are the profile's, as in `predict`."""
    plans = {}
    for device in ("arena", "gtx-1070"):
        status, out, _ = run("plan", *OPTIMAL, "--device", device, "--json")
        assert status == 0
        [plans[device]] = msgspec.json.decode(out, type=list[Plan])
        assert plans[device].target == device
        assert f"predicted on {device}:" in plans[device].remarks[0]
    peaks = {}
    for device, made in plans.items():
        found = Predictor(GRAPH, target(device)).predict(made)
        peaks[device] = f"peak {megabytes(found.peak_bytes)} MB"
        assert peaks[device] in made.remarks[0]
    status, out, _ = run("plan", *OPTIMAL, "--device", "gtx-1070")
    assert "for gtx-1070" in out


def test_a_strategy_that_proves_nothing_says_nothing_of_a_gap(run: Run) -> None:
    status, out, err = run("plan", *SMALL, "--strategy", "lms", "--output", "plan.json")
    assert err.endswith("memtrade: wrote plan.json\n")
    assert status == 0
    assert "gap" not in out
    assert b"gap" not in Path("plan.json").read_bytes()


def test_a_budget_below_the_smallest_is_status_3_with_the_smallest_and_its_op(run: Run) -> None:
    words = smallest(run).remarks[0]
    megabytes, _, op = words.rpartition("peak ")[2].partition(" MB at ")
    status, out, err = run("plan", *OPTIMAL, "--budget", "1MB")
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert "no plan fits a budget of 1.0 MB" in err
    assert f"the smallest peak found is {megabytes} MB, bound by {op}." in err
    assert op in {each.name for each in GRAPH.ops}


class Listener(progress.Reporter):
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.seen: list[Any] = []

    def trial(self, position: int, of: int, label: str, *, phase: str = "start") -> None:
        self.seen.append((position, of, label, phase))

    def event(self, event: Event) -> None:
        assert isinstance(event, Progress)
        self.seen.append(event.phase)


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Listener:
    listener = Listener()

    monkeypatch.setattr(progress, "LiveReporter", lambda live: listener)
    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    return listener


def test_a_terminal_shows_the_best_so_far(run: Run, on_a_terminal: Listener) -> None:
    logger = logging.getLogger("memtrade.strategies")
    before = (logger.level, list(logger.handlers))
    made = smallest(run)
    first, *rest = on_a_terminal.seen
    assert first == (1, 1, "optimal", "plan")
    assert "solving" in rest
    best = [line for line in rest if line.startswith("best so far: ")]
    assert made.gap is not None
    assert best[-1].endswith(f", gap {100 * made.gap:.1f}%")
    assert (logger.level, list(logger.handlers)) == before
