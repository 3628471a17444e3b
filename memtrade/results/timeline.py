"""One step over time, strategy by strategy, on one axis of time and one of memory.

A page has plotly's areas and the tables of who holds what at the peak; for paper, matplotlib draws
the same strips.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch

from memtrade.devices import Device
from memtrade.results.drawings import drawn, packed_plotly
from memtrade.results.paper import PAGE_INK, finish, in_style, strips_of
from memtrade.results.sheets import NONE, Sheet, templates
from memtrade.results.simulated import CHANNELS, SimulatedStep
from memtrade.results.words import seconds
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
_WORK, _COPY, _LIMIT = "#5A5A5A", COLOURS["swapped in"], "#A33000"

_HOLDERS = 12  # that are listed; the others are added up
# Pixels of a page, and inches of paper.
_PAGE_STRIP, _PAGE_LANES, _PAGE_REST = 260, 70, 130
_STRIP, _LANES, _REST = 1.75, 0.42, 1.0


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


def to_html(timelines: Timelines) -> str:
    """The whole page; it needs no network."""
    sheets = [_totals(timelines), _meanings()]
    sheets += [sheet for strip in timelines.strips for sheet in _at_the_peak(strip)]
    return (
        templates()
        .get_template("timeline.html")
        .render(
            timelines=timelines,
            plotly=packed_plotly(),
            drawing=drawn(drawing(timelines), "memory"),
            sheets=sheets,
        )
    )


def drawing(timelines: Timelines) -> Any:
    """Memory over time, with the channels underneath, a strip per strategy: all on the same axes.

    Args:
        timelines: of one step and device.
    """
    from plotly.subplots import make_subplots  # slow to import, and only the page needs it

    strips = timelines.strips
    height = _PAGE_REST + len(strips) * (_PAGE_STRIP + _PAGE_LANES)
    titles = [text for strip in strips for text in (html.escape(title_of(strip), quote=False), "")]
    figure = make_subplots(
        rows=2 * len(strips),
        cols=1,
        shared_xaxes="all",  # pyright: ignore[reportArgumentType]  # plotly's own documentation
        row_heights=[_PAGE_STRIP, _PAGE_LANES] * len(strips),
        vertical_spacing=25 / height,
        subplot_titles=titles,
    )
    for i, strip in enumerate(strips):
        _add_memory(figure, strip, timelines, row=2 * i + 1)
        _add_channels(figure, strip, row=2 * i + 2)
    figure.update_layout(
        template="plotly_white",
        height=height,
        hovermode="x unified",
        barmode="overlay",
        font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "y": 1 + 60 / height, "groupclick": "togglegroup"},
        margin={"t": 90, "l": 80, "r": 20},
    )
    figure.update_xaxes(range=[0, timelines.seconds])
    figure.update_xaxes(title="seconds, predicted", row=2 * len(strips))
    return figure


def _add_memory(figure: Any, strip: SimulatedStep, timelines: Timelines, *, row: int) -> None:
    """An area per group, stacked, and what runs at each moment."""
    moments = [*strip.moments, strip.moments[-1]]
    ends = [moment.seconds for moment in strip.moments] + [strip.step_seconds]
    names = [html.escape(strip.name_of(moment), quote=False) for moment in strip.moments] + [""]
    in_use = [moment.in_use_bytes / 1e6 for moment in moments]
    hollow = {"color": "white", "size": 8, "line": {"color": "#1A1A1A", "width": 1.5}}
    for position, group in enumerate(GROUPS):
        sizes = [moment.by_group[position] / 1e6 for moment in moments]
        if any(sizes):
            figure.add_scatter(
                x=ends,
                y=sizes,
                name=group,
                legendgroup=group,
                showlegend=group not in {trace.name for trace in figure.data},
                stackgroup=f"memory {row}",
                mode="lines",
                line={"shape": "hv", "width": 0, "color": COLOURS[group]},
                fillcolor=COLOURS[group],
                hovertemplate="%{y:,.1f} MB",
                row=row,
                col=1,
            )
    about = {"showlegend": False, "row": row, "col": 1}
    figure.add_scatter(
        x=ends, y=in_use, name="in use", mode="lines", line={"shape": "hv", "width": 0},
        customdata=names, hovertemplate="%{y:,.1f} MB in %{customdata}", **about,
    )  # fmt: skip
    figure.add_scatter(
        x=[strip.peak.seconds], y=[strip.peak.in_use_bytes / 1e6], name="peak", mode="markers",
        marker=hollow, hoverinfo="skip", **about,
    )  # fmt: skip
    if strip.usage.turn_seconds is not None:
        figure.add_vline(strip.usage.turn_seconds, line_dash="dash", line_width=1, row=row, col=1)
    if timelines.shows_limit:
        limit = timelines.limit_bytes / 1e6
        figure.add_hline(limit, line_color=_LIMIT, annotation_text="limit", row=row, col=1)
    figure.update_yaxes(
        title="MB in use", range=[0, 1.05 * timelines.top_bytes / 1e6], row=row, col=1
    )


def _add_channels(figure: Any, strip: SimulatedStep, *, row: int) -> None:
    for channel in CHANNELS:
        spans = strip.busy(channel)
        figure.add_bar(
            orientation="h",
            y=[channel] * len(spans),
            base=[start for start, _ in spans],
            x=[end - start for start, end in spans],
            marker={"color": _WORK if channel == CHANNELS[0] else _COPY, "line": {"width": 0}},
            hoverinfo="skip",
            showlegend=False,
            row=row,
            col=1,
        )
    last = len(CHANNELS) - 0.5
    figure.update_yaxes(
        categoryorder="array", categoryarray=CHANNELS[::-1], range=[-0.5, last], row=row, col=1
    )


def _totals(timelines: Timelines) -> Sheet:
    def busy(strip: SimulatedStep, channel: str) -> str:
        return seconds(sum(end - start for start, end in strip.busy(channel)))

    return Sheet.of(
        timelines.strips,
        [
            ("strategy", lambda it: it.label + ("" if it.usage.fits else " (does not fit)")),
            ("peak MB", lambda it: megabytes(it.usage.peak_bytes)),
            (
                "memory cost MB",
                lambda it: megabytes(it.usage.peak_bytes - it.usage.persistent_bytes),
            ),
            ("host MB", lambda it: megabytes(max(m.host_bytes for m in it.usage.moments))),
            ("step s", lambda it: seconds(it.step_seconds)),
            ("stall s", lambda it: seconds(it.usage.timeline.stall_seconds)),
            ("copy out s", lambda it: busy(it, "copy-out")),
            ("copy in s", lambda it: busy(it, "copy-in")),
        ],
        title="The step under each strategy",
        weak=lambda it: not it.usage.fits,
        name="totals",
        command=timelines.command,
    )


def _meanings() -> Sheet:
    return Sheet(
        title="Who holds memory",
        name="groups",
        columns=("group", "what it is"),
        words=2,
        rows=tuple(MEANINGS.items()),
    )


def _at_the_peak(strip: SimulatedStep) -> list[Sheet]:
    """Each group's part of the peak, those that would not read 0.0 MB, and the largest holders."""
    peak, name = strip.usage.peak_bytes, strip.name_of(strip.peak)
    when = f"{strip.label}, at its peak after {seconds(strip.peak.seconds)} s in {name}"
    groups = zip(GROUPS, strip.peak.by_group, strict=True)
    holders = strip.usage.holders
    held = [(each.label, each.group, megabytes(each.size_bytes)) for each in holders[:_HOLDERS]]
    rest_bytes = sum(each.size_bytes for each in holders[_HOLDERS:])
    rest = [("all others", NONE, megabytes(rest_bytes))] if rest_bytes else []
    return [
        Sheet.of(
            [(group, size) for group, size in groups if size >= 50_000],
            [
                ("group", lambda it: it[0]),
                ("MB", lambda it: megabytes(it[1])),
                ("share", lambda it: f"{it[1] / peak:.1%}"),
            ],
            title=when,
            name=f"{strip.label}-groups",
        ),
        Sheet(
            title=f"{strip.label}: who holds most then",
            name=f"{strip.label}-holders",
            columns=("holder", "group", "MB"),
            words=2,
            rows=(*held, *rest),
        ),
    ]


def timeline_plot(timelines: Timelines) -> Canvas:
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
        axis.axhline(timelines.limit_bytes / 1e6, color=_LIMIT, linewidth=1)
    axis.set_ylim(0, timelines.top_bytes / 1e6 * 1.05)
    axis.set_ylabel("MB in use")
    axis.tick_params(axis="x", labelbottom=False)


def _channels(axis: Axes, strip: SimulatedStep) -> None:
    for position, channel in enumerate(CHANNELS):
        spans = [(start, end - start) for start, end in strip.busy(channel)]
        colour = _WORK if channel == CHANNELS[0] else _COPY
        axis.broken_barh(spans, (-position - 0.4, 0.8), color=colour, linewidth=0)
    axis.set_yticks([-i for i in range(len(CHANNELS))], CHANNELS, fontsize=6)
    axis.set_ylim(0.6 - len(CHANNELS), 0.6)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
