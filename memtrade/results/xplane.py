"""Simulated steps as a profile for TensorBoard's profile plugin (xprof), which reads .xplane.pb.

    XSpace ─► XPlane "/device:CUSTOM:original" ─► XLine per channel ─► XEvent per action
           └► XPlane "/host:CPU" ─► XLine per strategy ─► MemoryAllocation, MemoryDeallocation

The trace viewer shows the first, the memory profile the second, an allocator for each strategy.
Messages and fields are those of tsl/profiler/protobuf/xplane.proto. They are few, so they are
written here as protocol buffers lay them down: the parent process never imports TensorFlow, which
brings the classes.
"""

from __future__ import annotations

import itertools
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from memtrade.results.simulated import CHANNELS, SimulatedStep
from memtrade.simulate.history import History
from memtrade.simulate.regions import round_up

Stat = int | float | str


def to_xspace(
    steps: Sequence[SimulatedStep], histories: Sequence[History], limit_bytes: int
) -> bytes:
    """The profile of all steps, which all begin at 0.

    Args:
        histories: the steps' requests, in the same order.
        limit_bytes: of the device.
    """
    planes = [_compute(step) for step in steps]
    memory = _Plane("/host:CPU")
    for step, history in zip(steps, histories, strict=True):
        memory.line(step.label, _requests(memory, step, history, limit_bytes))
    return b"".join(_message(1, plane.encoded(i)) for i, plane in enumerate([*planes, memory]))


def _compute(step: SimulatedStep) -> _Plane:
    plane = _Plane(f"/device:CUSTOM:{step.label}")
    found = list(step.slices)
    for channel in CHANNELS:
        events = [
            plane.event(each.name, each.start_seconds, each.end_seconds, each.notes)
            for each in found
            if each.channel == channel
        ]
        plane.line(channel, events)
    return plane


def _requests(
    plane: _Plane, step: SimulatedStep, history: History, limit_bytes: int
) -> Iterator[bytes]:
    """What is there before the step is asked for at its beginning."""
    in_use = 0
    for event in history.events:
        chunk = round_up(event.size_bytes)
        in_use += -chunk if event.is_free else chunk
        notes: dict[str, Stat] = {
            "allocator_name": step.label,
            "bytes_allocated": in_use,
            "bytes_available": max(0, limit_bytes - in_use),
            "bytes_reserved": 0,
            "fragmentation": 0.0,
            "peak_bytes_in_use": step.usage.peak_bytes,
            "requested_bytes": event.size_bytes,
            "allocation_bytes": chunk,
            "addr": event.address,
            "tf_op": event.label,
            "region_type": event.group,
            "group_id": 1,  # the plugin tells steps apart by it
        }
        name = "MemoryDeallocation" if event.is_free else "MemoryAllocation"
        yield plane.event(name, event.seconds, event.seconds, notes)


class _Plane:
    """An XPlane in the making: names of events and of their stats are written once each."""

    def __init__(self, name: str):
        self.name = name
        self._lines: list[bytes] = []
        # Numbered from 1, in the order in which they come.
        self._events = defaultdict[str, int](itertools.count(1).__next__)
        self._stats = defaultdict[str, int](itertools.count(1).__next__)

    def line(self, name: str, events: Iterable[bytes]) -> None:
        body = b"".join(_message(4, each) for each in events)
        self._lines.append(_number(1, len(self._lines) + 1) + _message(2, name.encode()) + body)

    def event(
        self, name: str, start_seconds: float, end_seconds: float, notes: Mapping[str, Stat]
    ) -> bytes:
        """An XEvent."""
        start, end = (round(each * 1e12) for each in (start_seconds, end_seconds))
        stats = [_number(1, self._stats[key]) + _stat(note) for key, note in notes.items()]
        head = _number(1, self._events[name]) + _number(2, start) + _number(3, end - start)
        return head + b"".join(_message(4, each) for each in stats)

    def encoded(self, position: int) -> bytes:
        names = b"".join(
            _message(field, _number(1, i) + _message(2, _number(1, i) + _message(2, name.encode())))
            for field, known in ((4, self._events), (5, self._stats))
            for name, i in known.items()
        )
        lines = b"".join(_message(3, each) for each in self._lines)
        return _number(1, position + 1) + _message(2, self.name.encode()) + lines + names


def _stat(value: Stat) -> bytes:
    if isinstance(value, str):
        return _message(5, value.encode())
    if isinstance(value, float):
        return _varint(2 << 3 | 1) + struct.pack("<d", value)
    return _number(4, value)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, data: bytes) -> bytes:
    """A message, or text."""
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
