"""A simulated step as slices of time and counters: what the traces for viewers are written from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from memtrade.graph import StepGraph
from memtrade.simulate.timeline import COMPUTE, COPY_IN, COPY_OUT
from memtrade.simulate.usage import GROUPS, Usage

CHANNELS = (COMPUTE, COPY_OUT, COPY_IN)
DEVICE_COUNTER, HOST_COUNTER = "device memory in use", "host memory in use"


class SimulatedStep(NamedTuple):
    """One strategy's simulated step; `label` names its process."""

    label: str
    usage: Usage


class Slice(NamedTuple):
    """An action that takes time.

    Attributes:
        kind: forward, backward, recompute, swap out or swap in.
        name: of the op or the tensor; `notes` say more of it, and what is held meanwhile.
    """

    start_seconds: float
    end_seconds: float
    channel: str
    kind: str
    name: str
    notes: dict[str, str | int]


def slices(graph: StepGraph, usage: Usage) -> Iterator[Slice]:
    """In the order of the program."""
    timeline = usage.timeline
    moments = {moment.action: moment for moment in usage.moments}
    for i, action in enumerate(usage.actions):
        start, end = timeline.start_seconds[i], timeline.end_seconds[i]
        if end <= start:
            continue
        notes: dict[str, str | int]
        if action.kind in ("run", "recompute"):
            op = graph.ops[action.id]
            part = "forward" if op.id in graph.forward else "backward"
            kind, name = "recompute" if action.kind == "recompute" else part, op.name
            notes = {"op type": op.type, "layer": op.layer, "source": op.source}
        else:
            kind, name = action.kind.replace("_", " "), graph.label(action.id)
            notes = {"bytes": graph.tensors[action.id].size_bytes}
        if i in moments:
            held = zip(GROUPS, moments[i].by_group, strict=True)
            notes |= {f"{group} bytes": size for group, size in held}
        said = {key: value for key, value in notes.items() if value or key == "bytes"}
        yield Slice(start, end, timeline.channels[i], kind, name, said)
