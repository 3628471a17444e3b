"""A simulated step, as timelines and traces for viewers show it, and what the areas of a timeline
stand for: groups of memory, layers, or lines of the program."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from memtrade.graph import StepGraph
from memtrade.plan import Action
from memtrade.simulate.by_layer import owners
from memtrade.simulate.timeline import COMPUTE, COPY_IN, COPY_OUT
from memtrade.simulate.usage import GROUPS, Life, Moment, Usage
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


Bands = Literal["group", "layer", "source"]

# By group: Okabe and Ito's colours, which people with any colour vision tell apart, and greys for
# what every strategy has alike.
COLOURS = {
    "variables": "#5A5A5A",
    "inputs": "#A3A3A3",
    "activations": "#0072B2",
    "recomputed": "#E69F00",
    "swapped in": "#CC79A7",
    "gradients": "#009E73",
    "scratch": "#F0E442",
    "padding": "#DDDDDD",
}
MEANINGS = {
    "variables": "weights, moving averages, optimizer slots",
    "inputs": "the batch and constants",
    "activations": "made by the forward part and kept",
    "recomputed": "made by an op that ran again",
    "swapped in": "copied back from host memory",
    "gradients": "made by the backward part",
    "scratch": "a kernel's own, while it runs",
    "padding": "given by the allocator beyond what was asked for",
}
assert tuple(COLOURS) == tuple(MEANINGS) == GROUPS
# Of a picture by layer or by line: as many of them as there are colours, and the rest.
_HUES = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F3C8D",
)  # fmt: skip
OTHERS, _GREY = "all others", "#BDBDBD"


def bands_of(strips: Sequence[SimulatedStep], by: Bands) -> dict[str, str]:
    """From below, with their colours. Where they are no groups: who holds most at any of the peaks,
    above what belongs to nobody."""
    if by == "group":
        return COLOURS
    most: Counter[str] = Counter()
    for strip in strips:
        names, held = owners(strip.graph, by), Counter[str]()
        for each in strip.usage.holders:
            if each.op >= 0 and names[each.op]:
                held[names[each.op]] += each.size_bytes
        most |= held
    below = {group: COLOURS[group] for group in ("variables", "inputs")}
    hues = zip((name for name, _ in most.most_common()), _HUES, strict=False)
    return {**below, **dict(hues), OTHERS: _GREY, "padding": COLOURS["padding"]}


def stacks_of(strip: SimulatedStep, by: Bands, bands: Sequence[str]) -> list[tuple[int, ...]]:
    """What each band holds, for each of a step's moments."""
    if by == "group":
        return [moment.by_group for moment in strip.usage.moments]
    names, lives = owners(strip.graph, by), strip.usage.lives

    def band_of(life: Life) -> str:
        group = lives.group(life)
        if group in bands:
            return group
        name = names[lives.op_of(life)]
        return name if name in bands else OTHERS

    return list(lives.stacked(bands, band_of))
