"""What the plots draw: figures as lines by depth, as points of memory against time, and as bars.

`plots.py` draws them for paper, `report.py` for the browser; what is drawn is decided here, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from memtrade.errors import MemtradeError
from memtrade.results.figures import SOURCES, Figure, Source
from memtrade.results.words import strategy_rank

Quantity = Literal["peak", "time"]

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


@dataclass(frozen=True)
class Style:
    """How a strategy looks in every plot: a colour, and a position among markers and hatches."""

    colour: str
    position: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """One variant of a strategy by depth."""

    strategy: str
    variant: str
    quantity: Quantity
    figures: tuple[Figure, ...]

    @property
    def points(self) -> list[tuple[Figure, float]]:
        """The figures that have the quantity, with it: bytes or seconds."""
        return [(f, value) for f in self.figures if (value := value_of(f, self.quantity))]

    @property
    def failed(self) -> list[Figure]:
        """The figures that do not: the trial ended before."""
        return [figure for figure in self.figures if not value_of(figure, self.quantity)]


@dataclass(frozen=True, kw_only=True)
class DepthPanel:
    """The lines of one source and place."""

    source: Source
    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class TradePoint:
    """A figure that has both memory and time.

    `on_front`: nothing else is better in one of them and no worse in the other.
    """

    figure: Figure
    on_front: bool


@dataclass(frozen=True, kw_only=True)
class TradePanel:
    """The variants on one step, of one source and place."""

    title: str
    points: tuple[TradePoint, ...]


def style_of(strategy: str) -> Style:
    return Style(_COLOURS.get(strategy, _OTHER_COLOUR), strategy_rank(strategy))


def value_of(figure: Figure, quantity: Quantity) -> float | None:
    """Bytes for "peak", seconds for "time"."""
    return figure.peak_bytes if quantity == "peak" else figure.step_seconds


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
) -> list[DepthPanel]:
    """One panel per source and place, in that order; what `by_depth` returns goes in."""
    panels = []
    for source, where, members in _sources_and_places(figures, sources):
        variants = dict.fromkeys((figure.strategy, figure.variant) for figure in members)
        lines = []
        for strategy, variant in sorted(variants, key=lambda pair: (strategy_rank(pair[0]), pair)):
            own = sorted(
                (figure for figure in members if figure.variant == variant),
                key=lambda figure: figure.layers or 0,
            )
            lines.append(
                Line(strategy=strategy, variant=variant, quantity=quantity, figures=tuple(own))
            )
        if any(line.points for line in lines):
            panels.append(
                DepthPanel(source=source, title=_title(source, where), lines=tuple(lines))
            )
    return panels


def trade_panels(
    figures: Sequence[Figure], *, sources: Iterable[Source] = ("measured",)
) -> list[TradePanel]:
    """One panel per step, source and place that has at least two variants to weigh up."""
    panels = []
    for source, where, members in _sources_and_places(figures, sources):
        several_sources = len(set(sources)) > 1
        for step in dict.fromkeys(figure.step for figure in members):
            ran = [f for f in members if f.step == step and f.peak_bytes and f.step_seconds]
            if len(ran) < 2:
                continue
            model, batch_size, conditions = step
            parts = [model, f"batch {batch_size}" if batch_size else "", conditions]
            parts += [where if source != "published" else "", source if several_sources else ""]
            points = _with_front(ran)
            title = ", ".join(part for part in parts if part)
            panels.append(TradePanel(title=title, points=points))
    return panels


def _with_front(figures: Sequence[Figure]) -> tuple[TradePoint, ...]:
    """The points by memory; ties in memory by time."""
    ordered = sorted(figures, key=lambda f: (f.peak_bytes or 0, f.step_seconds or 0.0))
    best = front([(figure.peak_bytes or 0, figure.step_seconds or 0.0) for figure in ordered])
    return tuple(
        TradePoint(figure=figure, on_front=on) for figure, on in zip(ordered, best, strict=True)
    )


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


def _title(source: Source, where: str) -> str:
    return f"{source}: {where}" if where else source
