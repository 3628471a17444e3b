"""Copies beside compute: in as early as memory allows, out no later than the host may run ahead."""

import math

import msgspec
import pytest

from memtrade.devices import load_device
from memtrade.errors import InvalidPlanError
from memtrade.plan import Action, Plan, check_plan
from memtrade.schedule import lower
from memtrade.simulate.overlap import overlap
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import worth_deciding
from tests.graphs import ARENA, chain, on
from tests.simulate import test_timeline as round_device

MIB = 1 << 20
# Copies take about as long as the ops between them.
GPU = msgspec.structs.replace(
    load_device("gtx-1070"),
    dispatch_seconds=0.0,
    device_to_host_bytes_per_s=60e9,
    host_to_device_bytes_per_s=60e9,
)


@pytest.fixture(scope="module")
def graph():
    return chain(12, size=32 * MIB)


@pytest.fixture(scope="module")
def times(graph):
    return TimeSimulator(graph, on(GPU))


@pytest.fixture(scope="module")
def swapped(graph):
    return lower(graph, dict.fromkeys(worth_deciding(graph), "swap"))


def peak(times, actions) -> int:
    memory = times.timeline(actions, limit_bytes=1 << 42).memory
    return memory.live_peak_bytes


def without_waits(actions):
    return tuple(action for action in actions if action.kind != "wait")


def test_a_copy_in_moves_ahead_by_its_duration():
    graph = round_device.chain(8)
    clock = TimeSimulator(graph, on(round_device.device(copy=MIB / 2)))
    late = round_device.swapped(graph)
    moved = without_waits(overlap(clock, late, math.inf))
    assert [a for a in moved if a.kind == "run"] == [a for a in late if a.kind == "run"]
    place = next(i for i, a in enumerate(moved) if a.kind == "swap_in")
    assert place == len(moved) - 1 - 3  # the last op and the two seconds before it
    assert clock.timeline(moved).stall_seconds == pytest.approx(0)


def test_a_copy_in_passes_neither_its_copy_out_nor_a_reader_of_the_version_before():
    graph = round_device.chain(5)
    clock = TimeSimulator(graph, on(round_device.device(copy=MIB / 100)))
    moved = overlap(clock, round_device.swapped(graph), math.inf)
    kinds = [a.kind for a in moved]
    assert kinds.index("swap_in") > kinds.index("swap_out")
    assert kinds.index("swap_in") > next(
        i for i, a in enumerate(moved) if a.kind == "run" and graph.ops[a.id].name == "op2"
    )


def test_without_a_limit_waits_lower_the_peak_and_cost_no_time(times, swapped):
    paced = overlap(times, swapped, math.inf)
    free = without_waits(paced)
    assert paced != free
    assert peak(times, paced) < peak(times, free) - 32 * MIB
    assert times.step_seconds(paced) == pytest.approx(times.step_seconds(free), rel=1e-9)


def test_a_limit_holds_and_less_memory_takes_longer(times, swapped):
    least, most = (
        times.simulator.peak_live_bytes(swapped),
        peak(times, overlap(times, swapped, 1e12)),
    )
    assert least < most - 64 * MIB
    seconds = []
    for limit in (most, (least + most) // 2, least, 0):
        held = overlap(times, swapped, limit)
        assert peak(times, held) <= max(limit, least)
        seconds.append(times.step_seconds(held))
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0]


def test_the_program_can_be_carried_out(graph, times, swapped):
    for limit in (math.inf, 0):
        actions = overlap(times, swapped, limit)
        check_plan(Plan("lms", {}, graph.fingerprint, "pinned", (), actions), graph)
        assert set(without_waits(actions)) == set(swapped)


def test_the_arena_needs_none(graph, swapped):
    assert overlap(TimeSimulator(graph, ARENA), swapped, 0) == swapped


def test_a_wait_without_a_swap_out_is_refused(graph):
    tensor = worth_deciding(graph)[0]
    actions = (*lower(graph, {}), Action("wait", tensor))
    with pytest.raises(InvalidPlanError, match="waits for"):
        check_plan(Plan("mine", {}, graph.fingerprint, "pinned", (), actions), graph)
