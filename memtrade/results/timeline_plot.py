"""`memtrade timeline` as a plot for paper, by matplotlib: the same strips with the same axes."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from memtrade.results.paper import PAGE_INK, finish, in_style, strips_of
from memtrade.results.simulated import CHANNELS, SimulatedStep
from memtrade.results.timeline_view import COLOURS, Timelines, title_of
from memtrade.simulate.usage import GROUPS

# Inches.
_STRIP, _LANES, _REST = 1.75, 0.42, 1.0
_INK, _COPY = "#5A5A5A", COLOURS["swapped in"]


def timeline_plot(timelines: Timelines) -> Figure:
    """Memory over time, with the channels underneath, a strip per strategy."""
    strips = timelines.strips
    with in_style(grid=False):
        height = _REST + len(strips) * (_STRIP + _LANES)
        figure, axes = strips_of([_STRIP, _LANES] * len(strips), height=height)
        for i, strip in enumerate(strips):
            _memory(axes[2 * i], strip, timelines)
            _channels(axes[2 * i + 1], strip)
        axes[-1].set_xlabel(
            f"seconds, predicted for profile {timelines.device.name}: {timelines.step}"
        )
        axes[-1].set_xlim(0, timelines.seconds)
        moments = [moment for strip in strips for moment in strip.moments]
        used = [g for i, g in enumerate(GROUPS) if any(m.by_group[i] for m in moments)]
        handles = [Patch(color=COLOURS[group], label=group) for group in used]
        finish(figure, handles)
    return figure


def _memory(axis: Axes, strip: SimulatedStep, timelines: Timelines) -> None:
    edges = [moment.seconds for moment in strip.moments] + [strip.step_seconds]
    below = [0.0] * len(strip.moments)
    for position, group in enumerate(GROUPS):
        above = [
            low + moment.by_group[position] / 1e6
            for low, moment in zip(below, strip.moments, strict=True)
        ]
        axis.stairs(above, edges, baseline=below, fill=True, color=COLOURS[group], linewidth=0)
        below = above
    axis.set_title(title_of(strip), loc="right")
    axis.plot(
        strip.peak.seconds, strip.peak.in_use_bytes / 1e6, "o", color=PAGE_INK, mfc="white", ms=4
    )
    if (turn := strip.usage.turn_seconds) is not None:
        axis.axvline(turn, color=PAGE_INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axis.annotate(
            "turn",
            (turn, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
        )
    if timelines.shows_limit:
        axis.axhline(timelines.limit_bytes / 1e6, color="#A33000", linewidth=1)
    axis.set_ylim(0, timelines.top_bytes / 1e6 * 1.05)
    axis.set_ylabel("MB in use")
    axis.tick_params(axis="x", labelbottom=False)


def _channels(axis: Axes, strip: SimulatedStep) -> None:
    for position, channel in enumerate(CHANNELS):
        spans = [(start, end - start) for start, end in strip.busy(channel)]
        colour = _INK if channel == CHANNELS[0] else _COPY
        axis.broken_barh(spans, (-position - 0.4, 0.8), color=colour, linewidth=0)
    axis.set_yticks([-i for i in range(len(CHANNELS))], CHANNELS, fontsize=6)
    axis.set_ylim(0.6 - len(CHANNELS), 0.6)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
