"""What the plots draw: figures as lines by depth, and as points of memory against time.

`plots.py` draws them for paper, `report.py` for the browser; what is drawn is decided here, once.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from memtrade.errors import MemtradeError
from memtrade.results.figures import SOURCES, Figure, Source
from memtrade.results.words import joined, strategy_rank

Quantity = Literal["peak", "time"]

# Files that a plot may be drawn into.
FORMATS = ("pdf", "svg", "png")

# Okabe and Ito's colours, which people with any colour vision tell apart; a marker and a hatch go
# with each, for print in grey. "original" is drawn in the ink of the page.
INK = "ink"
_COLOURS = {
    "original": INK,
    "checkpoints": "#0072B2",
    "lms": "#E69F00",
    "ome": "#009E73",
    "optimal": "#D55E00",
    "sqrt_n": "#56B4E9",
    "greedy": "#CC79A7",
}
_OTHER_COLOUR = "#8C8C8C"
# plotly's names of the marks, by position.
SYMBOLS = (
    "circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star",
    "triangle-left", "triangle-right", "hexagon", "pentagon",
)  # fmt: skip


class Style(NamedTuple):
    """How a strategy looks in every plot: a colour, and a position among markers and hatches."""

    colour: str
    position: int


class Panel(NamedTuple):
    """The figures of one source and place: all depths, or one step."""

    source: Source
    title: str
    figures: tuple[Figure, ...]

    @property
    def lines(self) -> dict[tuple[str, str], list[Figure]]:
        """By strategy and variant, each by depth."""
        variants = {(figure.strategy, figure.variant) for figure in self.figures}
        ranked = sorted(variants, key=lambda pair: (strategy_rank(pair[0]), pair))
        by_depth = sorted(self.figures, key=lambda figure: figure.layers or 0)
        return {pair: [f for f in by_depth if f.variant == pair[1]] for pair in ranked}

    @property
    def front(self) -> list[bool]:
        """Which of the figures, all of which have both, no other beats in memory and time."""
        return front(
            [(figure.peak_bytes or 0, figure.step_seconds or 0.0) for figure in self.figures]
        )


def style_of(strategy: str) -> Style:
    return Style(_COLOURS.get(strategy, _OTHER_COLOUR), strategy_rank(strategy))


def value_of(figure: Figure, quantity: Quantity) -> float | None:
    """Bytes for "peak", seconds for "time"; None where the trial ended before."""
    return (figure.peak_bytes if quantity == "peak" else figure.step_seconds) or None


def by_depth(figures: Sequence[Figure], *, batch_size: int | None = None) -> list[Figure]:
    """The figures of one family at one batch size, under the same conditions: those that were
    measured at most depths, and of equals those of which there are most.

    Raises:
        MemtradeError: no figures of a model that has depths, or none at `batch_size`.
    """
    deep = [figure for figure in figures if figure.layers is not None]
    if not deep:
        raise MemtradeError(
            "there are no records of a model by depth: make some: memtrade run --layers 18"
        )
    sizes = sorted({figure.batch_size for figure in deep if figure.batch_size})
    if batch_size is not None:
        if batch_size not in sizes:
            choices = ", ".join(map(str, sizes))
            raise MemtradeError(
                f"there are no records of batch size {batch_size}: the choices are {choices}"
            )
        deep = [figure for figure in deep if figure.batch_size == batch_size]
    measured = [figure for figure in deep if figure.source == "measured"] or deep
    counts = Counter(_at_one_batch(figure) for figure in measured)
    depths = Counter(key for key, _ in {(_at_one_batch(f), f.layers) for f in measured})
    chosen = max(sorted(counts, key=str), key=lambda key: (depths[key], counts[key]))
    return [figure for figure in deep if _at_one_batch(figure) == chosen]


def _at_one_batch(figure: Figure) -> tuple[str, int | None, str]:
    return figure.family, figure.batch_size, figure.conditions


def depth_panels(
    figures: Sequence[Figure], quantity: Quantity, *, sources: Iterable[Source] = SOURCES
) -> list[Panel]:
    """One per source and place, in that order; what `by_depth` returns goes in."""
    return [
        Panel(source, source_name(source, where), tuple(members))
        for source, where, members in _sources_and_places(figures, sources)
        if any(value_of(figure, quantity) for figure in members)
    ]


def trade_panels(
    figures: Sequence[Figure], *, sources: Iterable[Source] = ("measured",)
) -> list[Panel]:
    """One per step, source and place that has at least two variants to weigh up, by memory."""
    panels = []
    for source, where, members in _sources_and_places(figures, sources):
        ran = [each for each in members if each.peak_bytes and each.step_seconds]
        for step in dict.fromkeys(figure.step for figure in ran):
            own = sorted(
                (figure for figure in ran if figure.step == step),
                key=lambda f: (f.peak_bytes or 0, f.step_seconds or 0.0),
            )
            place = where if source != "published" else ""
            title = joined(own[0].step_name, place, source if len(set(sources)) > 1 else "")
            if len(own) > 1:
                panels.append(Panel(source, title, tuple(own)))
    return panels


def front(points: Sequence[tuple[int, float]]) -> list[bool]:
    """Which of (bytes, seconds) no other one dominates.

    >>> front([(10, 5.0), (20, 4.0), (20, 6.0), (30, 4.0)])
    [True, True, False, False]
    """
    best = float("inf")
    chosen = [False] * len(points)
    for i in sorted(range(len(points)), key=lambda i: points[i]):
        chosen[i] = points[i][1] < best
        best = min(best, points[i][1])
    return chosen


def _sources_and_places(
    figures: Sequence[Figure], sources: Iterable[Source]
) -> list[tuple[Source, str, list[Figure]]]:
    wanted = set(sources)
    groups: dict[tuple[Source, str], list[Figure]] = {}
    for figure in figures:
        if figure.source in wanted:
            groups.setdefault((figure.source, figure.where), []).append(figure)
    ordered = sorted(groups, key=lambda key: (SOURCES.index(key[0]), key[1]))
    return [(source, where, groups[source, where]) for source, where in ordered]


def source_name(source: str, where: str) -> str:
    return f"{source}: {where}" if where else source
