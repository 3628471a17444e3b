"""Simulated steps as a Chrome trace: JSON that chrome://tracing and Perfetto read. One process per
strategy, a thread per channel, a counter of the bytes in use."""

import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any

from memtrade.results.simulated import CHANNELS, DEVICE_COUNTER, HOST_COUNTER, SimulatedStep
from memtrade.simulate.usage import GROUPS, Usage

Entry = dict[str, Any]


def to_chrome(steps: Sequence[SimulatedStep], *, compressed: bool) -> bytes:
    """The trace of all steps, which all begin at 0; gzipped or not."""
    events: list[Entry] = []
    for pid, step in enumerate(steps, start=1):
        events.append(_named("process_name", pid, 0, step.label))
        events += (_named("thread_name", pid, i, name) for i, name in enumerate(CHANNELS))
        events += _slices(step, pid)
        events += _counters(step.usage, pid)
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()
    return gzip.compress(text, mtime=0) if compressed else text


def _named(what: str, pid: int, tid: int, name: str) -> Entry:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slices(step: SimulatedStep, pid: int) -> Iterable[Entry]:
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


def _counters(usage: Usage, pid: int) -> Iterable[Entry]:
    for moment in usage.moments:
        by_group = dict(zip(GROUPS, moment.by_group, strict=True))
        for name, values in ((DEVICE_COUNTER, by_group), (HOST_COUNTER, {"": moment.host_bytes})):
            yield {"ph": "C", "name": name, "pid": pid, "ts": moment.seconds * 1e6, "args": values}
