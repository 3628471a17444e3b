"""Simulated steps as a trace for Perfetto (https://ui.perfetto.dev), which also reads it offline.

One process per strategy, and in it a track each for compute, copy-out and copy-in, and counters of
the bytes in use on the device and on the host. Slices are named after the op or the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # pyright: ignore[reportMissingImports]
    CounterDescriptor,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from memtrade.graph import StepGraph
from memtrade.simulate.timeline import COMPUTE, COPY_IN, COPY_OUT
from memtrade.simulate.usage import GROUPS, Usage

CHANNELS = (COMPUTE, COPY_OUT, COPY_IN)
DEVICE_COUNTER, HOST_COUNTER = "device memory in use", "host memory in use"

# Of whoever writes packets; there is one.
_SEQUENCE = 1
_TRACKS_EACH = 8  # numbers of tracks set aside for each strategy


class Step(NamedTuple):
    """One strategy's simulated step; `label` names its process."""

    label: str
    usage: Usage


def to_trace(graph: StepGraph, steps: Sequence[Step]) -> bytes:
    """The trace of all steps, which all begin at 0."""
    builder = TraceProtoBuilder()
    packets: list[tuple[int, int, TracePacket]] = []  # (nanoseconds, rank, packet)
    for position, step in enumerate(steps):
        tracks = _Tracks(position)
        for packet in tracks.descriptors(step.label):
            _add(builder, packet)
        packets += _slices(graph, step.usage, tracks)
        packets += _counters(step.usage, tracks)
    for _, _, packet in sorted(packets, key=lambda each: each[:2]):
        _add(builder, packet)
    return builder.serialize()


def _add(builder: TraceProtoBuilder, packet: TracePacket) -> None:
    packet.trusted_packet_sequence_id = _SEQUENCE
    builder.add_packet().CopyFrom(packet)


class _Tracks:
    """The numbers of one strategy's tracks."""

    def __init__(self, position: int):
        self.pid = position + 1
        self.process = 1 + position * _TRACKS_EACH
        self.channel = {name: self.process + 1 + i for i, name in enumerate(CHANNELS)}
        self.device = self.process + 1 + len(CHANNELS)
        self.host = self.device + 1

    def descriptors(self, label: str) -> list[TracePacket]:
        packets = [TracePacket(track_descriptor=TrackDescriptor(uuid=self.process))]
        process = packets[0].track_descriptor.process
        process.pid, process.process_name = self.pid, label
        for rank, (name, uuid) in enumerate(self.channel.items()):
            track = TrackDescriptor(uuid=uuid, parent_uuid=self.process, name=name)
            track.sibling_order_rank = rank
            packets.append(TracePacket(track_descriptor=track))
        for name, uuid in ((DEVICE_COUNTER, self.device), (HOST_COUNTER, self.host)):
            counter = CounterDescriptor(unit=CounterDescriptor.UNIT_SIZE_BYTES)
            track = TrackDescriptor(uuid=uuid, parent_uuid=self.process, name=name, counter=counter)
            packets.append(TracePacket(track_descriptor=track))
        return packets


def _slices(graph: StepGraph, usage: Usage, tracks: _Tracks) -> list[tuple[int, int, TracePacket]]:
    """Begin and end of each action that takes time; ends go before begins of the same moment."""
    found = []
    timeline = usage.timeline
    moments = {moment.action: moment for moment in usage.moments}
    for i, action in enumerate(usage.actions):
        start, end = _ns(timeline.start_seconds[i]), _ns(timeline.end_seconds[i])
        if end <= start:
            continue
        track = tracks.channel[timeline.channels[i]]
        begin = TrackEvent(type=TrackEvent.TYPE_SLICE_BEGIN, track_uuid=track)
        if action.kind in ("run", "recompute"):
            op = graph.ops[action.id]
            begin.name = op.name
            part = "forward" if op.id in graph.forward else "backward"
            begin.categories.append("recompute" if action.kind == "recompute" else part)
            _note(begin, "op type", op.type)
            for name, value in (("layer", op.layer), ("source", op.source)):
                if value:
                    _note(begin, name, value)
        else:
            begin.name = graph.label(action.id)
            begin.categories.append(action.kind.replace("_", " "))
            _note(begin, "bytes", graph.tensors[action.id].size_bytes)
        if i in moments:
            for group, held in zip(GROUPS, moments[i].by_group, strict=True):
                if held:
                    _note(begin, f"{group} bytes", held)
        finish = TrackEvent(type=TrackEvent.TYPE_SLICE_END, track_uuid=track)
        found.append((start, 1, TracePacket(timestamp=start, track_event=begin)))
        found.append((end, 0, TracePacket(timestamp=end, track_event=finish)))
    return found


def _counters(usage: Usage, tracks: _Tracks) -> list[tuple[int, int, TracePacket]]:
    """A value wherever it changes."""
    found = []
    for track, values in (
        (tracks.device, [(m.seconds, m.in_use_bytes) for m in usage.moments]),
        (tracks.host, [(m.seconds, m.host_bytes) for m in usage.moments]),
    ):
        last = None
        for seconds, value in values:
            if value == last:
                continue
            last = value
            event = TrackEvent(type=TrackEvent.TYPE_COUNTER, track_uuid=track, counter_value=value)
            found.append((_ns(seconds), 2, TracePacket(timestamp=_ns(seconds), track_event=event)))
    return found


def _note(event: TrackEvent, name: str, value: str | int) -> None:
    note = event.debug_annotations.add()
    note.name = name
    if isinstance(value, str):
        note.string_value = value
    else:
        note.int_value = value


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
