"""Who holds memory when: the sums are the simulator's own, and the groups are what was decided."""

from __future__ import annotations

import msgspec
import pytest

from memtrade.devices import load_device
from memtrade.facts import CPU
from memtrade.plan import Plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import GROUPS, Usage, use_of_memory
from memtrade.strategies import PLANNED, make_options
from tests.graphs import ARENA, GivingBack, chain, on, target

MIB = 1 << 20
GRAPH = chain(8, size=4 * MIB)
DEVICES = ("arena", "gtx-1070")


def plan(strategy: str) -> Plan:
    return PLANNED[strategy].plan(GRAPH, make_options(strategy), ARENA)


def usage(strategy: str, device: str = "arena", *, limit_mib: int = 512) -> Usage:
    clock = TimeSimulator(GRAPH, target(device))
    return use_of_memory(clock, plan(strategy), limit_bytes=limit_mib * MIB)


def groups_at_any_time(found: Usage) -> set[str]:
    return {g for i, g in enumerate(GROUPS) if any(m.by_group[i] for m in found.moments)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", ["original", "checkpoints", "lms", "ome"])
def test_the_moments_are_the_simulators(strategy: str, device: str) -> None:
    found = usage(strategy, device)
    clock = TimeSimulator(GRAPH, target(device))
    memory = clock.timeline(plan(strategy), limit_bytes=512 * MIB, series=True).memory
    assert memory is not None
    assert memory.in_use_bytes is not None
    for moment in found.moments:
        assert moment.in_use_bytes == memory.in_use_bytes[moment.action]
        assert sum(moment.by_group) == moment.in_use_bytes
        assert min(moment.by_group) >= 0
    assert found.fits
    assert found.peak_bytes == memory.peak_bytes
    assert found.moments[found.peak].action == memory.peak_action
    assert max(moment.host_bytes for moment in found.moments) == memory.host_peak_bytes
    assert found.persistent_bytes == memory.persistent_bytes
    times = [moment.seconds for moment in found.moments]
    assert times == sorted(times)


def test_scratch_that_is_given_back_in_between_is_there_when_most_is_in_use() -> None:
    """While a kernel holds it, or when its last output has come, whichever is more."""
    clock = TimeSimulator(GRAPH, ARENA.replace(facts=GivingBack(CPU)))
    found = use_of_memory(clock, plan("ome"), limit_bytes=512 * MIB)
    for row, moment in enumerate(found.moments):
        assert sum(moment.by_group) == moment.in_use_bytes
        assert min(moment.by_group) >= 0
        assert sum(each.size_bytes for each in found.lives.holders(row)) == moment.in_use_bytes
    [scratch] = [each for each in found.holders if each.label.startswith("scratch of")]
    assert scratch.size_bytes in {(2 + i) * 4 * MIB + 257 for i in range(3)}  # both pieces
    assert found.peak_bytes == clock.simulator.memory(plan("ome")).peak_bytes


@pytest.mark.parametrize("device", DEVICES)
def test_the_groups_are_what_the_plan_says(device: str) -> None:
    assert groups_at_any_time(usage("original", device)) >= {"inputs", "activations", "gradients"}
    assert not groups_at_any_time(usage("original", device)) & {"recomputed", "swapped in"}
    assert "recomputed" in groups_at_any_time(usage("checkpoints", device))
    assert "swapped in" not in groups_at_any_time(usage("checkpoints", device))
    assert "swapped in" in groups_at_any_time(usage("lms", device))
    assert "recomputed" not in groups_at_any_time(usage("lms", device))


@pytest.mark.parametrize("strategy", ["original", "checkpoints", "lms", "ome"])
def test_the_holders_add_up_to_the_peak(strategy: str) -> None:
    found = usage(strategy)
    assert sum(held.size_bytes for held in found.holders) == found.peak_bytes
    sizes = [held.size_bytes for held in found.holders]
    assert sizes == sorted(sizes, reverse=True)
    by_group: dict[str, int] = dict.fromkeys(GROUPS, 0)
    for held in found.holders:
        by_group[held.group] += held.size_bytes
    assert tuple(by_group.values()) == found.moments[found.peak].by_group


def test_the_original_holds_every_layer_at_the_turn() -> None:
    found = usage("original")
    labels = [held.label for held in found.holders if held.group == "activations"]
    assert set(labels) >= {f"layer{i}:0" for i in range(1, 8)}
    assert found.turn_seconds is not None
    assert 0 < found.turn_seconds < found.timeline.step_seconds


def test_a_step_that_does_not_fit_is_told_as_if_it_did() -> None:
    tight = usage("original", limit_mib=20)
    assert not tight.fits
    assert tight.moments == usage("original").moments


def test_a_slow_copy_out_holds_memory_longer() -> None:
    """The sum is right although such a tensor is given back in the middle of nowhere."""
    gpu = load_device("gtx-1070")
    lagging, quick = (
        use_of_memory(
            TimeSimulator(GRAPH, on(msgspec.structs.replace(gpu, device_to_host_bytes_per_s=rate))),
            plan("lms"),
            limit_bytes=512 * MIB,
        )
        for rate in (2e8, 1e13)
    )
    assert lagging.peak_bytes > quick.peak_bytes
    for found in (lagging, quick):
        assert all(sum(m.by_group) == m.in_use_bytes for m in found.moments)
        assert all(min(m.by_group) >= 0 for m in found.moments)
