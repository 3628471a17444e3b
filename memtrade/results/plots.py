"""The plots for paper: PDF, SVG and PNG by matplotlib. What they show is decided in `series.py`.

The same records give the same file, byte for byte. Strategies differ in colour (Okabe and Ito's),
marker, line and hatch, so that a plot printed in grey can still be read.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from memtrade.errors import MemtradeError
from memtrade.results.max_batches import MaxBatch
from memtrade.results.series import INK, DepthPanel, Quantity, TradePanel, TradePoint, style_of

FORMATS = ("pdf", "svg", "png")

_INK = "#1A1A1A"
_FRONT = "#9A9A9A"
_MARKERS = "os^DvPX*<>hp"
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "+++", "---", "***")

# Inches: the text of an A4 page or two columns of a paper are about this wide.
_WIDTH = 7.2
_PANELS_ABREAST = 4
_HEADROOM = 1.08  # for the crosses
_CAPTION_CHARACTERS = 132
_LEGEND_ABREAST = 6

_AXES = {
    "peak": ("peak memory in MB", 1e6),
    "time": ("step time in s", 1.0),
}
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "figure.dpi": 100,
    "pdf.fonttype": 42,  # publishers refuse type 3
    "svg.hashsalt": "memtrade",
}
# What a file would say of the time and the program that wrote it.
_METADATA = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


def depth_plot(panels: Sequence[DepthPanel], quantity: Quantity, *, caption: str = "") -> Canvas:
    """Peak memory or step time by depth: a panel per source, a line per strategy.

    Peaks share one axis; step times of unlike devices do not. Where a trial ended without a
    figure, a cross at the top says so.
    """
    label, unit = _AXES[quantity]
    with mpl.rc_context(_STYLE):
        canvas, axes = _canvas(len(panels), height=2.9, share_y=quantity == "peak")
        lines = [line for panel in panels for line in panel.lines]
        depths = sorted({figure.layers or 0 for line in lines for figure in line.figures})
        for axis, panel in zip(axes, panels, strict=True):
            seen: dict[str, int] = {}
            for line in panel.lines:
                look = _line_look(line.strategy, seen)
                xs = [figure.layers or 0 for figure, _ in line.points]
                axis.plot(xs, [value / unit for _, value in line.points], **look)
                for figure in line.failed:
                    _cross(axis, figure.layers or 0, look["color"])
            axis.set(title=panel.title, xlabel="layers")
            axis.set_xticks(depths)
            axis.yaxis.set_major_formatter(_thousands())
        for axis in axes[:1] if quantity == "peak" else axes:  # peaks share their axis
            axis.set_ylim(0, axis.get_ylim()[1] * _HEADROOM)
        axes[0].set_ylabel(label)
        seen = {}
        handles = [
            Line2D([], [], label=variant, **_line_look(strategy, seen))
            for strategy, variant in dict.fromkeys((line.strategy, line.variant) for line in lines)
        ]
        if any(line.failed for line in lines):
            failures = {figure.status for line in lines for figure in line.failed}
            alone = failures == {"out_of_memory"}
            label = "out of memory" if alone else "no figure: out of memory, or failed"
            handles.append(Line2D([], [], color=_INK, marker="x", linestyle="", label=label))
        _finish(canvas, handles, caption)
    return canvas


def trade_plot(panels: Sequence[TradePanel], *, caption: str = "") -> Canvas:
    """Memory against time: a panel per step, a point per strategy, a line through those that
    nothing else beats in both."""
    with mpl.rc_context(_STYLE):
        rows = -(-len(panels) // _PANELS_ABREAST)
        canvas, axes = _canvas(len(panels), height=0.6 + 1.9 * rows)
        looks = _mark_looks(panels)
        for axis, panel in zip(axes, panels, strict=True):
            front = [_coordinates(point) for point in panel.points if point.on_front]
            axis.plot(*zip(*front, strict=True), color=_FRONT, zorder=1, drawstyle="steps-post")
            for point in panel.points:
                axis.plot(*_coordinates(point), zorder=2, **looks[point.figure.variant])
            axis.set_title(panel.title, fontsize=7)
            axis.margins(0.18)
            axis.set_xlim(left=0)
            axis.xaxis.set_major_formatter(_thousands())
            axis.locator_params(axis="x", nbins=4)
        for axis in axes[-_PANELS_ABREAST:]:
            axis.set_xlabel(_AXES["peak"][0])
        for axis in axes[::_PANELS_ABREAST]:
            axis.set_ylabel(_AXES["time"][0])
        handles = [Line2D([], [], label=variant, **look) for variant, look in looks.items()]
        front = Line2D([], [], color=_FRONT, label="Pareto front: nothing is better in both")
        _finish(canvas, [*handles, front], caption)
    return canvas


def max_batch_plot(batches: Sequence[MaxBatch], *, caption: str = "") -> Canvas:
    """The largest batch by strategy: a panel per model, a bar per source and place."""
    with mpl.rc_context(_STYLE):
        models = list(dict.fromkeys(batch.step_name for batch in batches))
        sources = list(dict.fromkeys((batch.source, batch.where) for batch in batches))
        canvas, axes = _canvas(len(models), height=2.9)
        width = 0.8 / len(sources)
        for axis, model in zip(axes, models, strict=True):
            own = [batch for batch in batches if batch.step_name == model]
            ranked = sorted(own, key=lambda batch: style_of(batch.strategy).position)
            variants = list(dict.fromkeys(batch.variant for batch in ranked))
            for batch in own:
                shift = sources.index((batch.source, batch.where)) - (len(sources) - 1) / 2
                place = variants.index(batch.variant) + shift * width
                look = _bar_look(batch.strategy, filled=batch.source == "measured")
                bar = axis.bar(place, batch.batch_size, width * 0.94, **look)
                axis.bar_label(bar, fmt="%d", fontsize=7, padding=2)
            axis.set_xticks(range(len(variants)), [each.replace(" (", "\n(") for each in variants])
            axis.grid(visible=False, axis="x")
            axis.set_title(model)
        axes[0].set_ylabel("largest batch")
        handles = [
            Patch(
                label=f"{source}: {where}" if where else source,
                **_bar_look("", filled=source == "measured"),
            )
            for source, where in sources
        ]
        _finish(canvas, handles, caption)
    return canvas


def render(canvas: Canvas, kind: str, *, dots_per_inch: int = 300) -> bytes:
    """The plot as a file of one of `FORMATS`."""
    stream = io.BytesIO()
    with mpl.rc_context(_STYLE):
        canvas.savefig(stream, format=kind, dpi=dots_per_inch, metadata=_METADATA[kind])
    return stream.getvalue()


def format_of(path: Path) -> str:
    """The format that a file's suffix asks for.

    Raises:
        MemtradeError: none of `FORMATS`.
    """
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise MemtradeError(
            f"a plot is a file in .pdf, .svg or .png, not {path.name!r}: name one with --output"
        )
    return suffix


def _canvas(panels: int, *, height: float, share_y: bool = False) -> tuple[Canvas, list[Axes]]:
    abreast = min(panels, _PANELS_ABREAST)
    canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
    grid = canvas.subplots(-(-panels // abreast), abreast, sharey=share_y, squeeze=False)
    axes = list(grid.flat)
    for axis in axes[panels:]:
        axis.remove()
    return canvas, axes[:panels]


def _finish(canvas: Canvas, handles: Sequence[Any], caption: str) -> None:
    _add_legend(canvas, handles)
    if caption:
        wrapped = textwrap.fill(caption, _CAPTION_CHARACTERS)
        canvas.supxlabel(wrapped, x=0.005, ha="left", fontsize=6.5, color="#555555")
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")  # each further pass would shift it by a hair


def _add_legend(canvas: Canvas, handles: Sequence[Any]) -> None:
    """At the top, with as many entries abreast as fit."""
    for columns in range(min(len(handles), _LEGEND_ABREAST), 0, -1):
        legend = canvas.legend(
            handles=handles, loc="outside upper left", ncols=columns, columnspacing=1.4
        )
        if columns == 1 or legend.get_window_extent().width <= canvas.bbox.width:
            return
        legend.remove()


def _line_look(strategy: str, seen: dict[str, int]) -> dict[str, Any]:
    """The look of the next line of a strategy; `seen` counts those drawn before it.

    Every other one has hollow marks.
    """
    style = style_of(strategy)
    count = seen.setdefault(strategy, 0)
    seen[strategy] += 1
    colour = _colour(style.colour)
    hollow = count % 2 == 1
    return {
        "color": colour,
        "marker": _MARKERS[style.position % len(_MARKERS)],
        # What is drawn later is dashed and smaller, so that what lies below shows through.
        "markersize": max(6.5 - 0.7 * style.position, 3.8),
        "linestyle": _DASHES[(style.position + count) % len(_DASHES)],
        "markerfacecolor": "white" if hollow else colour,
        "markeredgecolor": colour if hollow else "white",
        "markeredgewidth": 1.0 if hollow else 0.6,
    }


def _mark_looks(panels: Sequence[TradePanel]) -> dict[str, dict[str, Any]]:
    """The looks of points that no line joins, by variant, in the order of the legend."""
    figures = [point.figure for panel in panels for point in panel.points]
    ordered = sorted(figures, key=lambda f: (style_of(f.strategy).position, f.variant))
    seen: dict[str, int] = {}
    strategies = {figure.variant: figure.strategy for figure in ordered}
    return {
        variant: _line_look(strategy, seen) | {"linestyle": ""}
        for variant, strategy in strategies.items()
    }


def _bar_look(strategy: str, *, filled: bool) -> dict[str, Any]:
    """A bar in the strategy's colour: filled with its hatch, or an outline."""
    style = style_of(strategy)
    colour = _colour(style.colour)
    if not filled:
        return {"facecolor": "white", "edgecolor": colour, "linewidth": 1.2}
    return {
        "facecolor": colour,
        "edgecolor": "white",
        "hatch": _HATCHES[style.position % len(_HATCHES)] if strategy else "",
    }


def _colour(colour: str) -> str:
    return _INK if colour == INK else colour


def _cross(axis: Axes, depth: float, colour: str) -> None:
    """At the top of the axis, whatever its scale."""
    place = axis.get_xaxis_transform()
    axis.plot(depth, 0.97, "x", color=colour, markersize=7, transform=place, clip_on=False)


def _coordinates(point: TradePoint) -> tuple[float, float]:
    """MB and seconds."""
    return (point.figure.peak_bytes or 0) / 1e6, point.figure.step_seconds or 0.0


def _thousands() -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{value:,g}")
