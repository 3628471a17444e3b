"""One step over time, strategy by strategy: what the page and the plot of `memtrade timeline` draw.

A step has thousands of actions and a page about a thousand pixels, so the moments are thinned out:
of each slice of time the one with most memory in use stays, and with it the peak, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memtrade.devices import Device
from memtrade.graph import StepGraph
from memtrade.results.slices import CHANNELS
from memtrade.simulate.usage import GROUPS, Held, Moment, Usage

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

SLICES = 1000
HOLDERS = 12


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One strategy's step.

    Attributes:
        moments: thinned out; `names` says what runs at each.
        busy: channel -> (start, end) of its work, in seconds, joined where it goes on.
        holders: the largest at the peak; `rest_bytes` is what all others hold.
    """

    label: str
    fits: bool
    step_seconds: float
    stall_seconds: float
    turn_seconds: float | None
    peak: Moment
    peak_name: str
    host_peak_bytes: int
    persistent_bytes: int
    moments: tuple[Moment, ...]
    names: tuple[str, ...]
    busy: dict[str, tuple[tuple[float, float], ...]]
    holders: tuple[Held, ...]
    rest_bytes: int

    @property
    def groups(self) -> list[tuple[str, int]]:
        """What each group holds at the peak, those that would not read 0.0 MB."""
        by_group = zip(GROUPS, self.peak.by_group, strict=True)
        return [(group, size) for group, size in by_group if size >= 50_000]


@dataclass(frozen=True, kw_only=True)
class Timelines:
    """Several strategies on one step and device: one time axis and one memory axis for all."""

    step: str
    device: Device
    limit_bytes: int
    strips: tuple[Strip, ...]
    command: str = ""

    @property
    def seconds(self) -> float:
        return max(strip.step_seconds for strip in self.strips)

    @property
    def peak_bytes(self) -> int:
        return max(strip.peak.in_use_bytes for strip in self.strips)

    @property
    def shows_limit(self) -> bool:
        """The limit is drawn where it does not squeeze the rest."""
        return self.limit_bytes <= 1.5 * self.peak_bytes

    @property
    def top_bytes(self) -> int:
        """The upper end of the memory axis, before rounding."""
        return max(self.peak_bytes, self.limit_bytes) if self.shows_limit else self.peak_bytes


def make_strip(label: str, graph: StepGraph, usage: Usage) -> Strip:
    """What is drawn of one simulated step."""
    timeline = usage.timeline
    kept = _thin(usage.moments, timeline.step_seconds)
    return Strip(
        label=label,
        fits=usage.fits,
        step_seconds=timeline.step_seconds,
        stall_seconds=timeline.stall_seconds,
        turn_seconds=usage.turn_seconds,
        peak=usage.moments[usage.peak],
        peak_name=_name(graph, usage, usage.moments[usage.peak]),
        host_peak_bytes=max(moment.host_bytes for moment in usage.moments),
        persistent_bytes=usage.persistent_bytes,
        moments=tuple(kept),
        names=tuple(_name(graph, usage, moment) for moment in kept),
        busy={
            channel: tuple(
                _joined(
                    [
                        (start, end)
                        for start, end, on in zip(
                            timeline.start_seconds,
                            timeline.end_seconds,
                            timeline.channels,
                            strict=True,
                        )
                        if on == channel and end > start
                    ],
                    gap=timeline.step_seconds / SLICES,
                )
            )
            for channel in CHANNELS
        },
        holders=tuple(usage.holders[:HOLDERS]),
        rest_bytes=sum(held.size_bytes for held in usage.holders[HOLDERS:]),
    )


def _thin(moments: Sequence[Moment], step_seconds: float) -> list[Moment]:
    """Of each of `SLICES` slices of time the moment with most in use, in order."""
    highest: dict[int, Moment] = {}
    for moment in moments:
        place = int(SLICES * moment.seconds / step_seconds) if step_seconds else 0
        best = highest.get(place)
        if best is None or moment.in_use_bytes > best.in_use_bytes:
            highest[place] = moment
    return [highest[place] for place in sorted(highest)]


def _joined(spans: Sequence[tuple[float, float]], *, gap: float) -> list[tuple[float, float]]:
    """Spans in order, with those joined that are less than `gap` apart: too near to be seen."""
    joined: list[tuple[float, float]] = []
    for start, end in spans:
        if joined and start - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _name(graph: StepGraph, usage: Usage, moment: Moment) -> str:
    action = usage.actions[moment.action]
    if action.kind == "run":
        return graph.ops[action.id].name
    if action.kind == "reserve":
        return "reserve"
    what = graph.ops[action.id].name if action.kind == "recompute" else graph.label(action.id)
    return f"{action.kind.replace('_', ' ')} {what}"
