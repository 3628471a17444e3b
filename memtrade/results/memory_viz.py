"""A simulated step as a snapshot for PyTorch's memory viewer (https://pytorch.org/memory_viz).

The viewer reads a pickled dictionary, whose fields PyTorch documents in "Understanding CUDA Memory
Usage": `segments` with their `blocks` as they lie behind the step, and for each device a trace of
`alloc`, `free_requested` and `free_completed`. Each strategy is a device of its own. What lay there
before the step has blocks, but no `alloc`. Frames are the layer, the user's line, and the op. A
segment ends where its last block ever did: what was never touched is left out.
"""

import pickle
from collections.abc import Sequence
from typing import Any

from memtrade.graph import StepGraph
from memtrade.simulate.history import History, MemoryEvent
from memtrade.simulate.regions import round_up

# The viewer reads pickles of protocols 2 to 4.
_PROTOCOL = 4


def to_snapshot(graph: StepGraph, histories: Sequence[History]) -> bytes:
    """The snapshot of all steps, pickled."""
    segments: list[dict[str, Any]] = []
    for device, each in enumerate(histories):
        segments += _segments(graph, each, device)
    traces = [_trace(graph, each) for each in histories]
    return pickle.dumps({"segments": segments, "device_traces": traces}, protocol=_PROTOCOL)


def _trace(graph: StepGraph, history: History) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for event in history.events:
        if event.action < 0:
            continue
        actions = ("free_requested", "free_completed") if event.is_free else ("alloc",)
        entries += [
            {
                "action": action,
                "addr": event.address,
                "size": round_up(event.size_bytes),
                "stream": 0,
                "time_us": round(event.seconds * 1e6),
                "frames": _frames(graph, history, event),
            }
            for action in actions
        ]
    return entries


def _segments(graph: StepGraph, history: History, device: int) -> list[dict[str, Any]]:
    left: dict[int, MemoryEvent] = {}
    ends = [event.address + round_up(event.size_bytes) for event in history.events]
    for event in history.events:
        if event.is_free:
            del left[event.address]
        else:
            left[event.address] = event
    made = []
    for start, size in sorted(history.regions):
        end = max((each for each in ends if start < each <= start + size), default=start)
        if end == start:
            continue
        blocks, at = [], start
        for address in sorted(a for a in left if start <= a < end):
            event = left[address]
            if address > at:
                blocks.append(_block(at, address - at))
            chunk = round_up(event.size_bytes)
            blocks.append(_block(address, chunk, event.size_bytes, _frames(graph, history, event)))
            at = address + chunk
        if at < end:
            blocks.append(_block(at, end - at))
        used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        made.append(
            {
                "device": device,
                "address": start,
                "total_size": end - start,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "allocated_size": used,
                "active_size": used,
                "requested_size": sum(block["requested_size"] for block in blocks),
                "frames": [],
                "blocks": blocks,
            }
        )
    return made


def _block(
    address: int, size: int, requested: int = 0, frames: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": "inactive" if frames is None else "active_allocated",
        "frames": frames or [],
    }


def _frames(graph: StepGraph, history: History, event: MemoryEvent) -> list[dict[str, Any]]:
    """The innermost first, as PyTorch has them."""
    if event.op < 0:
        return [_frame(event.group, 0, event.label)]
    op = graph.ops[event.op]
    frames = [_frame(event.group, 0, f"{op.type} {event.label}")]
    if event.action >= 0 and history.actions[event.action].kind != "run":
        frames.insert(0, _frame("plan", 0, history.actions[event.action].kind.replace("_", " ")))
    if op.layer:
        frames.append(_frame("layer", 0, op.layer))
    if op.source:
        file, _, line = op.source.rpartition(":")
        frames.append(_frame(file, int(line), ""))
    return frames


def _frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}
