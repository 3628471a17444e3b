"""`wait`: the host is held where a copy out has ended, and the peak with it."""

import msgspec
import pytest

from memtrade.errors import InvalidPlanError
from memtrade.plan import Action, Plan, check_plan
from memtrade.schedule import lower
from memtrade.simulate.devices import load_device
from memtrade.simulate.timeline import TimeSimulator, pace, prefetch
from memtrade.strategies.base import worth_deciding
from tests.graphs import ARENA, chain, on

MIB = 1 << 20
# Copies take about as long as the ops between them.
GPU = on(
    msgspec.structs.replace(
        load_device("gtx-1070"),
        dispatch_seconds=0.0,
        device_to_host_bytes_per_s=60e9,
        host_to_device_bytes_per_s=60e9,
    )
)


@pytest.fixture(scope="module")
def graph():
    return chain(12, size=32 * MIB)


@pytest.fixture(scope="module")
def swapped(graph):
    return prefetch(graph, lower(graph, dict.fromkeys(worth_deciding(graph), "swap")), GPU)


def test_waits_lower_the_peak_and_cost_no_time(graph, swapped):
    times = TimeSimulator(graph, GPU)
    paced = pace(graph, swapped, GPU)
    assert any(action.kind == "wait" for action in paced)
    free, held = times.timeline(swapped), times.timeline(paced)
    assert held.peak_bytes is not None
    assert free.peak_bytes is not None
    assert held.peak_bytes < free.peak_bytes - 32 * MIB
    assert held.step_seconds == pytest.approx(free.step_seconds, rel=1e-9)


def test_only_waits_are_added_each_behind_its_swap_out(graph, swapped):
    paced = pace(graph, swapped, GPU)
    assert tuple(action for action in paced if action.kind != "wait") == swapped
    check_plan(Plan("lms", {}, graph.fingerprint, "pinned", (), paced), graph)


def test_the_arena_needs_none(graph, swapped):
    assert pace(graph, swapped, ARENA) == swapped


def test_a_wait_without_a_swap_out_is_refused(graph):
    tensor = worth_deciding(graph)[0]
    actions = (*lower(graph, {}), Action("wait", tensor))
    with pytest.raises(InvalidPlanError, match="waits for"):
        check_plan(Plan("mine", {}, graph.fingerprint, "pinned", (), actions), graph)
