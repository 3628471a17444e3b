"""The plots of records for paper. What they show is decided in `series.py`; bars have a hatch."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from memtrade.results.figures import Figure
from memtrade.results.paper import (
    PAGE_INK,
    PANELS_ABREAST,
    broken,
    canvas_of,
    colour_of,
    finish,
    in_style,
    line_look,
)
from memtrade.results.series import Panel, Quantity, source_name, style_of, value_of

_FRONT = "#9A9A9A"
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "+++", "---", "***")

_HEADROOM = 1.08  # for the crosses

# How many characters of a title or a name there is room for from one edge to the other.
_ABREAST = 96

_AXES = {"peak": ("peak memory in MB", 1e6), "time": ("step time in s", 1.0)}


def depth_plot(panels: Sequence[Panel], quantity: Quantity, *, caption: str = "") -> Canvas:
    """Peak memory or step time by depth: a panel per source, a line per strategy.

    Peaks share one axis; step times of unlike devices do not. Where a trial ended without a
    figure, a cross at the top says so.
    """
    label, unit = _AXES[quantity]
    with in_style():
        canvas, axes = canvas_of(len(panels), height=2.9, share_y=quantity == "peak")
        figures = [figure for panel in panels for figure in panel.figures]
        failed = [figure for figure in figures if not value_of(figure, quantity)]
        depths = sorted({figure.layers or 0 for figure in figures})
        for axis, panel in zip(axes, panels, strict=True):
            seen: dict[str, int] = {}
            for (strategy, _), line in panel.lines.items():
                look = line_look(strategy, seen)
                points = [(f.layers or 0, y / unit) for f in line if (y := value_of(f, quantity))]
                axis.plot([x for x, _ in points], [y for _, y in points], **look)
                for figure in line:
                    if not value_of(figure, quantity):
                        _cross(axis, figure.layers or 0, look["color"])
            axis.set(title=panel.title, xlabel="layers")
            axis.set_xticks(depths)
            axis.yaxis.set_major_formatter(_thousands())
        for axis in axes[:1] if quantity == "peak" else axes:  # peaks share their axis
            axis.set_ylim(0, axis.get_ylim()[1] * _HEADROOM)
        axes[0].set_ylabel(label)
        seen = {}
        handles = [
            Line2D([], [], label=variant, **line_look(strategy, seen))
            for strategy, variant in dict.fromkeys(pair for panel in panels for pair in panel.lines)
        ]
        if failed:
            alone = {figure.status for figure in failed} == {"out_of_memory"}
            label = "out of memory" if alone else "no figure: out of memory, or failed"
            handles.append(Line2D([], [], color=PAGE_INK, marker="x", linestyle="", label=label))
        finish(canvas, handles, caption)
    return canvas


def trade_plot(panels: Sequence[Panel], *, caption: str = "") -> Canvas:
    """Memory against time: a panel per step, a point per strategy, a line through those that
    nothing else beats in both."""
    with in_style():
        rows = -(-len(panels) // PANELS_ABREAST)
        abreast = min(len(panels), PANELS_ABREAST)
        canvas, axes = canvas_of(len(panels), height=0.6 + 1.9 * rows)
        looks = _mark_looks(panels)
        for axis, panel in zip(axes, panels, strict=True):
            front = [
                _coordinates(f) for f, on in zip(panel.figures, panel.front, strict=True) if on
            ]
            axis.plot(*zip(*front, strict=True), color=_FRONT, zorder=1, drawstyle="steps-post")
            for figure in panel.figures:
                axis.plot(*_coordinates(figure), zorder=2, **looks[figure.variant])
            axis.set_title(broken(panel.title, _ABREAST // abreast), fontsize=7)
            axis.margins(0.18)
            axis.set_xlim(left=0)
            axis.xaxis.set_major_formatter(_thousands())
            axis.locator_params(axis="x", nbins=3)  # more run together in a narrow panel
        for axis in axes[-PANELS_ABREAST:]:
            axis.set_xlabel(_AXES["peak"][0])
        for axis in axes[::PANELS_ABREAST]:
            axis.set_ylabel(_AXES["time"][0])
        handles = [Line2D([], [], label=variant, **look) for variant, look in looks.items()]
        front = Line2D([], [], color=_FRONT, label="Pareto front: nothing is better in both")
        finish(canvas, [*handles, front], caption)
    return canvas


def max_batch_plot(batches: Sequence[Figure], *, caption: str = "") -> Canvas:
    """The largest batch by strategy: a panel per model, a bar per source and place."""
    with in_style():
        models = list(dict.fromkeys(batch.step_name for batch in batches))
        sources = list(dict.fromkeys((batch.source, batch.where) for batch in batches))
        canvas, axes = canvas_of(len(models), height=2.9)
        width = 0.8 / len(sources)
        for axis, model in zip(axes, models, strict=True):
            own = [batch for batch in batches if batch.step_name == model]
            ranked = sorted(own, key=lambda batch: style_of(batch.strategy).position)
            variants = list(dict.fromkeys(batch.variant for batch in ranked))
            for batch in own:
                there = {(b.source, b.where) for b in own if b.variant == batch.variant}
                beside = [each for each in sources if each in there]
                shift = beside.index((batch.source, batch.where)) - (len(beside) - 1) / 2
                place = variants.index(batch.variant) + shift * width
                look = _bar_look(batch.strategy, filled=batch.source == "measured")
                bar = axis.bar(place, batch.batch_size or 0, width * 0.94, **look)
                axis.bar_label(bar, fmt="%d", fontsize=7, padding=2)
            slot = _ABREAST // (min(len(models), PANELS_ABREAST) * len(variants))
            names = [each.replace(" (", "\n(") for each in variants]
            axis.set_xticks(range(len(names)), [broken(each, slot) for each in names])
            axis.grid(visible=False, axis="x")
            axis.set_title(model)
        axes[0].set_ylabel("largest batch")
        handles = [
            Patch(label=source_name(source, where), **_bar_look("", filled=source == "measured"))
            for source, where in sources
        ]
        finish(canvas, handles, caption)
    return canvas


def _mark_looks(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """The looks of points that no line joins, by variant, in the order of the legend."""
    figures = [figure for panel in panels for figure in panel.figures]
    ordered = sorted(figures, key=lambda f: (style_of(f.strategy).position, f.variant))
    seen: dict[str, int] = {}
    strategies = {figure.variant: figure.strategy for figure in ordered}
    return {
        variant: line_look(strategy, seen) | {"linestyle": ""}
        for variant, strategy in strategies.items()
    }


def _bar_look(strategy: str, *, filled: bool) -> dict[str, Any]:
    """A bar in the strategy's colour: filled with its hatch, or an outline."""
    style = style_of(strategy)
    colour = colour_of(style.colour)
    if not filled:
        return {"facecolor": "white", "edgecolor": colour, "linewidth": 1.2}
    return {
        "facecolor": colour,
        "edgecolor": "white",
        "hatch": _HATCHES[style.position % len(_HATCHES)] if strategy else "",
    }


def _cross(axis: Axes, depth: float, colour: str) -> None:
    """At the top of the axis, whatever its scale."""
    place = axis.get_xaxis_transform()
    axis.plot(depth, 0.97, "x", color=colour, markersize=7, transform=place, clip_on=False)


def _coordinates(figure: Figure) -> tuple[float, float]:
    """MB and seconds."""
    return (figure.peak_bytes or 0) / 1e6, figure.step_seconds or 0.0


def _thousands() -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{value:,g}")
