"""What the areas of a timeline stand for: groups of memory, layers, or lines of the program."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from memtrade.results.simulated import SimulatedStep
from memtrade.simulate.by_layer import owners
from memtrade.simulate.usage import GROUPS, Life

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
