"""The trace, read back from its bytes: tracks, slices in a row, counters that peak."""

from __future__ import annotations

from collections import defaultdict

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # pyright: ignore[reportMissingImports]
    Trace,
    TrackEvent,
)

from memtrade.results.perfetto import to_trace
from memtrade.results.simulated import DEVICE_COUNTER, HOST_COUNTER, SimulatedStep
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import Usage, use_of_memory
from memtrade.strategies import PLANNED, make_options
from tests.graphs import ARENA, chain, target

GRAPH = chain(8, size=4 << 20)


def usage(strategy: str, device: str) -> Usage:
    plan = PLANNED[strategy].plan(GRAPH, make_options(strategy), ARENA)
    return use_of_memory(TimeSimulator(GRAPH, target(device)), plan, limit_bytes=1 << 30)


@pytest.fixture(scope="module", params=["arena", "gtx-1070"])
def steps(request: pytest.FixtureRequest) -> list[SimulatedStep]:
    return [SimulatedStep(name, GRAPH, usage(name, request.param)) for name in ("original", "lms")]


@pytest.fixture(scope="module")
def trace(steps: list[SimulatedStep]) -> Trace:
    return Trace.FromString(to_trace(steps))


def tracks(trace: Trace) -> dict[int, tuple[str, str]]:
    """Number of a track -> (process, name)."""
    found = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
    processes = {t.uuid: t.process.process_name for t in found if t.HasField("process")}
    assert len({t.uuid for t in found}) == len(found)
    return {t.uuid: (processes[t.parent_uuid], t.name) for t in found if t.name}


def events(trace: Trace) -> dict[tuple[str, str], list[tuple[int, TrackEvent]]]:
    named = tracks(trace)
    found = defaultdict(list)
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id
        if packet.HasField("track_event"):
            event = packet.track_event
            found[named[event.track_uuid]].append((packet.timestamp, event))
    return found


def test_every_strategy_has_its_tracks(trace: Trace) -> None:
    names = {"compute", "copy-out", "copy-in", DEVICE_COUNTER, HOST_COUNTER}
    assert set(tracks(trace).values()) == {(s, n) for s in ("original", "lms") for n in names}


def test_slices_follow_each_other_and_last_what_was_simulated(
    trace: Trace, steps: list[SimulatedStep]
) -> None:
    for step in steps:
        for channel, busy in step.usage.timeline.busy_seconds.items():
            found = events(trace).get((step.label, channel), [])
            total, open_since = 0, None
            for timestamp, event in found:
                if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                    assert open_since is None
                    assert event.name
                    open_since = timestamp
                else:
                    assert event.type == TrackEvent.TYPE_SLICE_END
                    assert open_since is not None
                    total += timestamp - open_since
                    open_since = None
            assert open_since is None
            assert total / 1e9 == pytest.approx(busy, abs=1e-9 * (len(found) + 1))


def test_copies_are_named_after_their_tensors(trace: Trace) -> None:
    names = [e.name for _, e in events(trace)["lms", "copy-out"] if e.name]
    assert "layer1:0" in names
    assert ("original", "copy-out") not in events(trace)


def test_the_counters_peak_where_the_memory_does(trace: Trace, steps: list[SimulatedStep]) -> None:
    for step in steps:
        device = events(trace)[step.label, DEVICE_COUNTER]
        assert max(e.counter_value for _, e in device) == step.usage.peak_bytes
        host = events(trace)[step.label, HOST_COUNTER]
        peak = max(moment.host_bytes for moment in step.usage.moments)
        assert max(e.counter_value for _, e in host) == peak
        assert (peak > 0) == (step.label == "lms")


def test_time_goes_forward(trace: Trace) -> None:
    stamps = [p.timestamp for p in trace.packet if p.HasField("track_event")]
    assert stamps == sorted(stamps)
    assert 0 <= stamps[0] < 100_000
