"""The predicted peak against the allocator's own, for a tiny model that keeps, swaps, recomputes.

The bound is far below the 1% that is promised for the models of the tables: with a pinned order
every request is known, and what is left is a handful of constants.
"""

import importlib
import json
import os
from pathlib import Path

import pytest

from memtrade.facts import reuse
from memtrade.graph import StepGraph
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from memtrade.plan import Plan, load_plan
from memtrade.simulate.bfc import MIB
from memtrade.simulate.memory import Simulator
from memtrade.target import profile_target
from tests import forks

ARENA = profile_target("arena")
LIMIT_MIB = 1000


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[StepGraph, Plan, list[int]]:
    folder = tmp_path_factory.mktemp("step")
    script = Path(__file__).with_name("drive_step.py")
    # The shipped facts are oneDNN's.
    environment = child_environment(TrialSpec(), os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1"})
    done = forks.ran([str(script), str(folder), str(LIMIT_MIB)], env=environment)
    assert done.returncode == 0, done.stderr
    return (
        StepGraph.from_bytes((folder / "graph").read_bytes()),
        load_plan(folder / "plan.json"),
        json.loads((folder / "peaks.json").read_text()),
    )


def test_the_peak_is_predicted_to_a_thousandth(ran: tuple[StepGraph, Plan, list[int]]):
    graph, plan, peaks = ran
    for steps in (1, len(peaks)):
        result = Simulator(graph, ARENA).memory(plan, limit_bytes=LIMIT_MIB * MIB, steps=steps)
        assert result.peak_bytes == pytest.approx(max(peaks[:steps]), rel=1e-3)


def test_the_test_above_can_fail(
    ran: tuple[StepGraph, Plan, list[int]], monkeypatch: pytest.MonkeyPatch
):
    """Kernels that never reuse a buffer, or the plan left out: the prediction is off."""
    graph, plan, peaks = ran
    original = Simulator(graph, ARENA).memory((), limit_bytes=LIMIT_MIB * MIB)
    assert original.peak_bytes != pytest.approx(max(peaks), rel=1e-3)
    wasteful_reuse = reuse()._replace(tried={})
    facts = importlib.import_module("memtrade.facts.shipped")
    monkeypatch.setattr(facts, "reuse", lambda: wasteful_reuse)
    wasteful = Simulator(graph, ARENA).memory(plan, limit_bytes=LIMIT_MIB * MIB)
    assert wasteful.peak_bytes != pytest.approx(max(peaks), rel=1e-3)
