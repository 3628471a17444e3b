"""Simulated steps as a trace for Perfetto (https://ui.perfetto.dev), which also reads it offline.

One process per strategy, and in it a track each for compute, copy-out and copy-in, and counters of
the bytes in use on the device and on the host. Slices are named after the op or the tensor.
"""

from collections.abc import Iterator, Mapping, Sequence

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # pyright: ignore[reportMissingImports]
    CounterDescriptor,
    ProcessDescriptor,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from memtrade.results.simulated import CHANNELS, DEVICE_COUNTER, HOST_COUNTER, SimulatedStep
from memtrade.simulate.usage import Usage

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
            _note(begin, name, value)
        finish = TrackEvent(type=TrackEvent.TYPE_SLICE_END, track_uuid=track)
        found.append((start, 1, TracePacket(timestamp=start, track_event=begin)))
        found.append((end, 0, TracePacket(timestamp=end, track_event=finish)))
    return found


def _counters(usage: Usage, tracks: Mapping[str, int]) -> list[tuple[int, int, TracePacket]]:
    """A value wherever it changes."""
    found = []
    for track, values in (
        (tracks[DEVICE_COUNTER], [(m.seconds, m.in_use_bytes) for m in usage.moments]),
        (tracks[HOST_COUNTER], [(m.seconds, m.host_bytes) for m in usage.moments]),
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
