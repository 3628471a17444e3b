"""Simulated steps as a trace: Perfetto's (https://ui.perfetto.dev, which reads it offline, too), or
JSON for chrome://tracing.

One process per strategy, and in it a track each for compute, copy-out and copy-in, and counters of
the bytes in use on the device and on the host. Slices are named after the op or the tensor.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # pyright: ignore[reportMissingImports]
    CounterDescriptor,
    ProcessDescriptor,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from memtrade.results.simulated import CHANNELS, DEVICE_COUNTER, HOST_COUNTER, SimulatedStep
from memtrade.simulate.usage import GROUPS, Usage

# Of whoever writes packets; there is one.
_SEQUENCE = 1
_TRACKS_EACH = 8  # numbers of tracks set aside for each strategy
_NAMES = (*CHANNELS, DEVICE_COUNTER, HOST_COUNTER)


def to_trace(steps: Sequence[SimulatedStep]) -> bytes:
    """The trace of all steps, which all begin at 0."""
    builder = TraceProtoBuilder()
    packets: list[tuple[int, int, TracePacket]] = []  # (nanoseconds, rank, packet)
    for position, step in enumerate(steps):
        process = 1 + position * _TRACKS_EACH
        tracks = {name: process + rank for rank, name in enumerate(_NAMES, start=1)}
        for descriptor in _descriptors(step.label, position + 1, process, tracks):
            _add(builder, TracePacket(track_descriptor=descriptor))
        packets += _slices(step, tracks)
        packets += _counters(step.usage, tracks)
    for _, _, packet in sorted(packets, key=lambda each: each[:2]):
        _add(builder, packet)
    return builder.serialize()


def _add(builder: TraceProtoBuilder, packet: TracePacket) -> None:
    packet.trusted_packet_sequence_id = _SEQUENCE
    builder.add_packet().CopyFrom(packet)


def _descriptors(
    label: str, pid: int, process: int, tracks: Mapping[str, int]
) -> Iterator[TrackDescriptor]:
    """Of one strategy's process, whose track has the number `process`, and of those in it."""
    yield TrackDescriptor(uuid=process, process=ProcessDescriptor(pid=pid, process_name=label))
    for rank, (name, uuid) in enumerate(tracks.items()):
        track = TrackDescriptor(uuid=uuid, parent_uuid=process, name=name)
        if name in CHANNELS:
            track.sibling_order_rank = rank
        else:
            track.counter.unit = CounterDescriptor.UNIT_SIZE_BYTES
        yield track


def _slices(step: SimulatedStep, tracks: Mapping[str, int]) -> list[tuple[int, int, TracePacket]]:
    """Begin and end of each action that takes time; ends go before begins of the same moment."""
    found = []
    for each in step.slices:
        start, end = _ns(each.start_seconds), _ns(each.end_seconds)
        if end <= start:
            continue
        track = tracks[each.channel]
        begin = TrackEvent(type=TrackEvent.TYPE_SLICE_BEGIN, track_uuid=track, name=each.name)
        begin.categories.append(each.kind)
        for name, value in each.notes.items():
            kind = "string_value" if isinstance(value, str) else "int_value"
            begin.debug_annotations.add(name=name, **{kind: value})
        finish = TrackEvent(type=TrackEvent.TYPE_SLICE_END, track_uuid=track)
        found.append((start, 1, TracePacket(timestamp=start, track_event=begin)))
        found.append((end, 0, TracePacket(timestamp=end, track_event=finish)))
    return found


def _counters(usage: Usage, tracks: Mapping[str, int]) -> list[tuple[int, int, TracePacket]]:
    """A value wherever it changes."""
    found = []
    for name, size in ((DEVICE_COUNTER, "in_use_bytes"), (HOST_COUNTER, "host_bytes")):
        for value, moments in groupby(usage.moments, key=attrgetter(size)):
            at = _ns(next(moments).seconds)
            event = TrackEvent(
                type=TrackEvent.TYPE_COUNTER, track_uuid=tracks[name], counter_value=value
            )
            found.append((at, 2, TracePacket(timestamp=at, track_event=event)))
    return found


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def to_chrome(steps: Sequence[SimulatedStep], *, compressed: bool) -> bytes:
    """The same as JSON; gzipped or not."""
    events: list[dict[str, Any]] = []
    for pid, step in enumerate(steps, start=1):
        events.append(_titled("process_name", pid, 0, step.label))
        events += (_titled("thread_name", pid, i, name) for i, name in enumerate(CHANNELS))
        events += _complete(step, pid)
        events += _counts(step.usage, pid)
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()
    return gzip.compress(text, mtime=0) if compressed else text


def _titled(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(step: SimulatedStep, pid: int) -> Iterator[dict[str, Any]]:
    for each in step.slices:
        yield {
            "ph": "X",
            "name": each.name,
            "cat": each.kind,
            "pid": pid,
            "tid": CHANNELS.index(each.channel),
            "ts": each.start_seconds * 1e6,
            "dur": (each.end_seconds - each.start_seconds) * 1e6,
            "args": each.notes,
        }


def _counts(usage: Usage, pid: int) -> Iterator[dict[str, Any]]:
    for moment in usage.moments:
        by_group = dict(zip(GROUPS, moment.by_group, strict=True))
        for name, values in ((DEVICE_COUNTER, by_group), (HOST_COUNTER, {"": moment.host_bytes})):
            yield {"ph": "C", "name": name, "pid": pid, "ts": moment.seconds * 1e6, "args": values}
