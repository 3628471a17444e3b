"""Snapshots and Chrome traces, read back as their viewers read them."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
import pickletools
from typing import Any

import msgspec
import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from memtrade.graph import StepGraph
from memtrade.results.memory_viz import to_snapshot
from memtrade.results.perfetto import to_chrome
from memtrade.results.simulated import DEVICE_COUNTER, SimulatedStep
from memtrade.results.xplane import to_xspace
from memtrade.simulate.history import history
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import use_of_memory
from memtrade.strategies import PLANNED, make_options
from tests.graphs import ARENA, chain, target

NAMES = ("original", "checkpoints", "lms")


def located(graph: StepGraph) -> StepGraph:
    ops = tuple(
        msgspec.structs.replace(op, layer=f"block/{op.name}", source=f"train.py:{op.id}")
        for op in graph.ops
    )
    return StepGraph(msgspec.structs.replace(graph.data, ops=ops))


GRAPH = located(chain(8, size=4 << 20))

# What the viewer's own reader of pickles knows (torch/utils/viz/MemoryViz.js).
OPCODES = {
    "APPEND", "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "DICT",
    "BINFLOAT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET",
    "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS",
    "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip


@pytest.fixture(scope="module", params=["arena", "gtx-1070"])
def made(request: pytest.FixtureRequest) -> tuple[TimeSimulator, list[SimulatedStep]]:
    clock = TimeSimulator(GRAPH, target(request.param))
    plans = [PLANNED[name].plan(GRAPH, make_options(name), ARENA) for name in NAMES]
    return clock, [
        SimulatedStep(name, GRAPH, use_of_memory(clock, plan))
        for name, plan in zip(NAMES, plans, strict=True)
    ]


@pytest.fixture(scope="module")
def encoded(made: tuple[TimeSimulator, list[SimulatedStep]]) -> bytes:
    clock, steps = made
    return to_snapshot(GRAPH, [history(clock, step.usage) for step in steps])


def check_frames(frames: list[dict[str, Any]]) -> None:
    for frame in frames:
        assert set(frame) == {"filename", "line", "name"}
        assert [type(frame[key]) for key in ("filename", "line", "name")] == [str, int, str]


def test_the_viewers_reader_knows_every_opcode(encoded: bytes) -> None:
    assert {op.name for op, _, _ in pickletools.genops(encoded)} <= OPCODES
    assert encoded[:2] == b"\x80\x04"


def test_segments_have_the_documented_fields_and_no_gaps(encoded: bytes) -> None:
    found = pickle.loads(encoded)
    assert set(found) == {"segments", "device_traces"}
    assert len(found["device_traces"]) == len(NAMES)
    assert {segment["device"] for segment in found["segments"]} == set(range(len(NAMES)))
    for segment in found["segments"]:
        assert segment["segment_type"] in ("small", "large")
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            assert block["state"] in ("active_allocated", "inactive")
            assert 0 <= block["requested_size"] <= block["size"]
            check_frames(block["frames"])
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
        active = [b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert sum(active) == segment["allocated_size"] == segment["active_size"]


def test_the_trace_can_be_walked_back_from_the_blocks(encoded: bytes) -> None:
    """As the viewer does: what is freed is there before, what is allocated was not."""
    found = pickle.loads(encoded)
    for device, trace in enumerate(found["device_traces"]):
        segments = [s for s in found["segments"] if s["device"] == device]
        there = {
            b["address"]: b["size"]
            for s in segments
            for b in s["blocks"]
            if b["state"] == "active_allocated"
        }
        spans = [(s["address"], s["address"] + s["total_size"]) for s in segments]
        for entry in reversed(trace):
            assert entry["action"] in ("alloc", "free_requested", "free_completed")
            assert any(a <= entry["addr"] < entry["addr"] + entry["size"] <= b for a, b in spans)
            check_frames(entry["frames"])
            if entry["action"] == "alloc":
                assert there.pop(entry["addr"]) == entry["size"]
            elif entry["action"] == "free_completed":
                assert entry["addr"] not in there
                there[entry["addr"]] = entry["size"]
            taken = sorted(there.items())
            assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(taken))


def test_the_trace_peaks_where_the_step_does(
    encoded: bytes, made: tuple[TimeSimulator, list[SimulatedStep]]
) -> None:
    found = pickle.loads(encoded)
    for device, step in enumerate(made[1]):
        held = highest = sum(
            block["size"]
            for segment in found["segments"]
            if segment["device"] == device
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        )
        for entry in reversed(found["device_traces"][device]):
            if entry["action"] == "alloc":
                held -= entry["size"]
            elif entry["action"] == "free_completed":
                held += entry["size"]
            highest = max(highest, held)
        # The trace has no padding beyond the allocator's 256 bytes.
        padding = step.usage.moments[step.usage.peak].by_group[-1]
        assert step.usage.peak_bytes - padding <= highest <= step.usage.peak_bytes


def test_frames_say_the_layer_and_the_line(encoded: bytes) -> None:
    [entry] = [
        entry
        for entry in pickle.loads(encoded)["device_traces"][0]
        if entry["action"] == "alloc" and entry["frames"][0]["name"] == "Sin layer1:0"
    ]
    assert [frame["name"] for frame in entry["frames"][1:]] == ["block/layer1", ""]
    assert (entry["frames"][2]["filename"], entry["frames"][2]["line"]) == ("train.py", 1)


def test_a_profile_for_tensorboard_is_read_by_tensorflows_own_classes(
    made: tuple[TimeSimulator, list[SimulatedStep]],
) -> None:
    clock, steps = made
    requests = [history(clock, step.usage) for step in steps]
    space = xplane_pb2.XSpace()
    space.ParseFromString(to_xspace(steps, requests, clock.target.limit_bytes))
    *computed, host = space.planes
    assert [plane.name for plane in computed] == [f"/device:CUSTOM:{name}" for name in NAMES]
    for plane, step in zip(computed, steps, strict=True):
        lasted = sum(each.duration_ps for line in plane.lines for each in line.events) / 1e12
        assert lasted == pytest.approx(sum(step.usage.timeline.busy_seconds.values()))
    assert (host.name, [line.name for line in host.lines]) == ("/host:CPU", list(NAMES))
    names = {key: each.name for key, each in host.stat_metadata.items()}
    for line, step in zip(host.lines, steps, strict=True):
        told = [{names[s.metadata_id]: s for s in event.stats} for event in line.events]
        kinds = [host.event_metadata[event.metadata_id].name for event in line.events]
        assert set(kinds) == {"MemoryAllocation", "MemoryDeallocation"}
        assert {each["allocator_name"].str_value for each in told} == {line.name}
        assert {each["peak_bytes_in_use"].int64_value for each in told} == {step.usage.peak_bytes}
        padding = step.usage.moments[step.usage.peak].by_group[-1]
        highest = max(each["bytes_allocated"].int64_value for each in told)
        assert step.usage.peak_bytes - padding <= highest <= step.usage.peak_bytes


def test_a_chrome_trace_lasts_what_was_simulated(
    made: tuple[TimeSimulator, list[SimulatedStep]],
) -> None:
    _, steps = made
    zipped = to_chrome(steps, compressed=True)
    assert zipped == to_chrome(steps, compressed=True)
    text = to_chrome(steps, compressed=False)
    assert gzip.decompress(zipped) == text
    events = json.loads(text)["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(named.values()) == list(NAMES)
    for pid, step in enumerate(steps, start=1):
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
        lasted = sum(e["dur"] for e in slices) / 1e6
        assert lasted == pytest.approx(sum(step.usage.timeline.busy_seconds.values()))
        counters = [e for e in events if e["name"] == DEVICE_COUNTER and e["pid"] == pid]
        assert max(sum(e["args"].values()) for e in counters) == step.usage.peak_bytes
    assert {e["args"].get("layer", "block/").split("/")[0] for e in events if e["ph"] == "X"} == {
        "block"
    }
