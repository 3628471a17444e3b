"""A simulated step, as timelines and traces for viewers show it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from memtrade.graph import StepGraph
from memtrade.plan import Action
from memtrade.simulate.by_layer import owners
from memtrade.simulate.timeline import COMPUTE, COPY_IN, COPY_OUT
from memtrade.simulate.usage import GROUPS, Moment, Usage
from memtrade.units import megabytes

CHANNELS = (COMPUTE, COPY_OUT, COPY_IN)
DEVICE_COUNTER, HOST_COUNTER = "device memory in use", "host memory in use"

# A step has thousands of actions and a page about a thousand pixels.
THINNED = 1000

_RUNS = ("run", "recompute")


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


@dataclass(frozen=True)
class SimulatedStep:
    """One strategy's step; `label` names it, `bound` stands before its peak."""

    label: str
    graph: StepGraph
    usage: Usage
    bound: str = ""

    @property
    def step_seconds(self) -> float:
        return self.usage.timeline.step_seconds

    @property
    def peak_text(self) -> str:
        return megabytes(self.usage.peak_bytes, self.bound)

    @property
    def peak(self) -> Moment:
        return self.usage.moments[self.usage.peak]

    @property
    def slices(self) -> Iterator[Slice]:
        """In the order of the program."""
        timeline = self.usage.timeline
        moments = {moment.action: moment for moment in self.usage.moments}
        for i, action in enumerate(self.usage.actions):
            start, end = timeline.start_seconds[i], timeline.end_seconds[i]
            if end <= start:
                continue
            kind = action.kind.replace("_", " ")
            if kind == "run":
                kind = "forward" if action.id in self.graph.forward else "backward"
            notes: dict[str, str | int]
            if action.kind in _RUNS:
                op = self.graph.ops[action.id]
                notes = {"op type": op.type, "layer": op.layer, "source": op.source}
            else:
                notes = {"bytes": self.graph.tensors[action.id].size_bytes}
            if i in moments:
                held = zip(GROUPS, moments[i].by_group, strict=True)
                notes |= {f"{group} bytes": size for group, size in held}
            said = {key: value for key, value in notes.items() if value or key == "bytes"}
            yield Slice(start, end, timeline.channels[i], kind, self._named(action), said)

    @cached_property
    def kept(self) -> list[int]:
        """Of each slice of time the moment with most in use, and with it the peak, to the byte; in
        order."""
        highest: dict[int, int] = {}
        moments = self.usage.moments
        for i, moment in enumerate(moments):
            place = int(THINNED * moment.seconds / self.step_seconds) if self.step_seconds else 0
            best = highest.get(place)
            if best is None or moment.in_use_bytes > moments[best].in_use_bytes:
                highest[place] = i
        return [highest[place] for place in sorted(highest)]

    @cached_property
    def moments(self) -> list[Moment]:
        """Those that are kept."""
        return [self.usage.moments[i] for i in self.kept]

    @property
    def edges(self) -> list[float]:
        """When each of them begins and the last one ends, in seconds."""
        return [moment.seconds for moment in self.moments] + [self.step_seconds]

    @cached_property
    def places(self) -> list[str]:
        """The layer of each op, and its line of the program."""
        both = zip(owners(self.graph), owners(self.graph, "source"), strict=True)
        return [layer + f" ({line})" * (line not in ("", layer)) for layer, line in both]

    def place_of(self, moment: Moment) -> str:
        """The layer and the line of what runs then."""
        action = self.usage.actions[moment.action]
        if action.kind == "reserve":
            return ""
        runs = action.kind in _RUNS
        return self.places[action.id if runs else self.graph.tensors[action.id].op]

    def busy(self, channel: str) -> list[tuple[float, float]]:
        """(start, end) of its work, in seconds; joined where they are too near to be seen apart."""
        timeline = self.usage.timeline
        spans = zip(timeline.start_seconds, timeline.end_seconds, timeline.channels, strict=True)
        joined: list[tuple[float, float]] = []
        for start, end, on in spans:
            if on != channel or end <= start:
                continue
            if joined and start - joined[-1][1] < self.step_seconds / THINNED:
                start, end = joined[-1][0], max(joined.pop()[1], end)
            joined.append((start, end))
        return joined

    def name_of(self, moment: Moment) -> str:
        """What runs then."""
        action = self.usage.actions[moment.action]
        if action.kind == "reserve":
            return "reserve"
        what = self._named(action)
        return what if action.kind == "run" else f"{action.kind.replace('_', ' ')} {what}"

    def _named(self, action: Action) -> str:
        """The op that runs, or the tensor that is copied."""
        runs = action.kind in _RUNS
        return self.graph.ops[action.id].name if runs else self.graph.label(action.id)


# By group: Okabe and Ito's colours, which people with any colour vision tell apart, and greys for
# what every strategy has alike; and what the group is.
_LOOKS = {
    "variables": ("#5A5A5A", "weights, moving averages, optimizer slots"),
    "inputs": ("#A3A3A3", "the batch and constants"),
    "activations": ("#0072B2", "made by the forward part and kept"),
    "recomputed": ("#E69F00", "made by an op that ran again"),
    "swapped in": ("#CC79A7", "copied back from host memory"),
    "gradients": ("#009E73", "made by the backward part"),
    "scratch": ("#F0E442", "a kernel's own, while it runs"),
    "padding": ("#DDDDDD", "given by the allocator beyond what was asked for"),
}
assert tuple(_LOOKS) == GROUPS
COLOURS = {group: colour for group, (colour, _) in _LOOKS.items()}
MEANINGS = {group: meaning for group, (_, meaning) in _LOOKS.items()}
