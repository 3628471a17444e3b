"""One step over time, strategy by strategy: what the page and the plot of `memtrade timeline` draw,
on one axis of time and one of memory."""

from __future__ import annotations

from dataclasses import dataclass

from memtrade.devices import Device
from memtrade.results.simulated import SimulatedStep
from memtrade.simulate.usage import GROUPS
from memtrade.units import megabytes

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


@dataclass(frozen=True, kw_only=True)
class Timelines:
    """Several strategies on one step and device."""

    step: str
    device: Device
    limit_bytes: int
    strips: tuple[SimulatedStep, ...]
    command: str = ""

    @property
    def seconds(self) -> float:
        return max(strip.step_seconds for strip in self.strips)

    @property
    def peak_bytes(self) -> int:
        return max(strip.usage.peak_bytes for strip in self.strips)

    @property
    def shows_limit(self) -> bool:
        """The limit is drawn where it does not squeeze the rest."""
        return self.limit_bytes <= 1.5 * self.peak_bytes

    @property
    def top_bytes(self) -> int:
        """The upper end of the memory axis, before rounding."""
        return max(self.peak_bytes, self.limit_bytes) if self.shows_limit else self.peak_bytes


def title_of(strip: SimulatedStep) -> str:
    fits = "" if strip.usage.fits else ", does not fit"
    return f"{strip.label}: peak {megabytes(strip.usage.peak_bytes)} MB{fits}"
