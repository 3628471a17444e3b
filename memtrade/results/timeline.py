"""One step over time, strategy by strategy, on one axis of time and one of memory.

A page has plotly's areas and the tables of who holds what at the peak; for paper, matplotlib draws
the same strips.
"""

import html
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch

from memtrade.devices import Device
from memtrade.results.drawings import drawn, packed_plotly
from memtrade.results.paper import PAGE_INK, finish, in_style, strips_of
from memtrade.results.predictions import bound_notes
from memtrade.results.sheets import NONE, Sheet, templates
from memtrade.results.simulated import CHANNELS, COLOURS, MEANINGS, SimulatedStep
from memtrade.results.words import seconds
from memtrade.simulate.by_layer import owners
from memtrade.simulate.usage import Life, Moment
from memtrade.units import megabytes

# What the areas stand for: groups of memory, layers, or lines of the program.
Bands = Literal["group", "layer", "source"]

_WORK, _COPY, _LIMIT = "#5A5A5A", COLOURS["swapped in"], "#A33000"

_OUTLINE = "#808080"  # seen on white and on black
# Of a picture by layer or by line: as many of them as there are colours, and the rest.
_HUES = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F3C8D",
)  # fmt: skip
OTHERS, _GREY = "all others", "#BDBDBD"

# Who jumps to a peak sees this share of the step on either side of it.
_NEAR = 0.025

_HOLDERS = 12  # that are listed; the others are added up
# Pixels of a page, and inches of paper.
_PAGE_STRIP, _PAGE_LANES, _PAGE_REST = 260, 70, 130
_STRIP, _LANES, _REST = 1.75, 0.42, 1.0


_MEANINGS = Sheet(
    title="Who holds memory",
    name="groups",
    columns=("group", "what it is"),
    words=2,
    rows=tuple(MEANINGS.items()),
)


@dataclass(frozen=True, kw_only=True)
class Timelines:
    """Several strategies on one step and device."""

    step: str
    device: Device
    limit_bytes: int
    strips: tuple[SimulatedStep, ...]
    by: Bands = "group"
    command: str = ""

    @cached_property
    def bands(self) -> dict[str, str]:
        """What the areas stand for, from below, with their colours. Where they are no groups: who
        holds most at any of the peaks, above what belongs to nobody."""
        if self.by == "group":
            return COLOURS
        most: Counter[str] = Counter()
        for strip in self.strips:
            names, held = owners(strip.graph, self.by), Counter[str]()
            for each in strip.usage.holders:
                if each.op >= 0 and names[each.op]:
                    held[names[each.op]] += each.size_bytes
            most |= held
        below = {group: COLOURS[group] for group in ("variables", "inputs")}
        hues = zip((name for name, _ in most.most_common()), _HUES, strict=False)
        return {**below, **dict(hues), OTHERS: _GREY, "padding": COLOURS["padding"]}

    def stacks(self, strip: SimulatedStep) -> list[tuple[int, ...]]:
        """What each band holds, for each of the step's moments."""
        if self.by == "group":
            return [moment.by_group for moment in strip.usage.moments]
        names, lives = owners(strip.graph, self.by), strip.usage.lives

        def band_of(life: Life) -> str:
            group = lives.group(life)
            if group in self.bands:
                return group
            name = names[lives.op_of(life)]
            return name if name in self.bands else OTHERS

        return list(lives.stacked(tuple(self.bands), band_of))

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
    return f"{strip.label}: peak {strip.peak_text} MB{fits}"


def to_html(timelines: Timelines) -> str:
    """The whole page; it needs no network."""
    sheets = [_totals(timelines), *([_MEANINGS] if timelines.by == "group" else [])]
    sheets += [sheet for strip in timelines.strips for sheet in _at_the_peak(strip, timelines)]
    jumps = []  # to the stretch of the step around its peak, in seconds
    for strip in timelines.strips:
        at, margin = strip.peak.seconds, strip.step_seconds * _NEAR
        jumps.append((strip.label, [max(0.0, at - margin), at + margin]))
    page = templates().get_template("timeline.html")
    picture = drawn(drawing(timelines), "memory")
    return page.render(
        timelines=timelines, jumps=jumps, plotly=packed_plotly(), drawing=picture, sheets=sheets
    )


def drawing(timelines: Timelines) -> Any:
    """Memory over time, with the channels underneath, a strip per strategy: all on the same
    axes."""
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
    """An area per band, stacked, and what runs at each moment; over it the outline of the first."""
    names = [_said(strip, moment) for moment in strip.moments] + [""]
    hollow = {"color": "white", "size": 8, "line": {"color": PAGE_INK, "width": 1.5}}
    stacks = timelines.stacks(strip)
    kept = [stacks[i] for i in (*strip.kept, strip.kept[-1])]
    for position, (band, colour) in enumerate(timelines.bands.items()):
        sizes = [stack[position] / 1e6 for stack in kept]
        name = html.escape(band, quote=False)
        if any(sizes):
            figure.add_scatter(
                x=strip.edges,
                y=sizes,
                name=name,
                legendgroup=name,
                showlegend=name not in {trace.name for trace in figure.data},
                stackgroup=f"memory {row}",
                mode="lines",
                line={"shape": "hv", "width": 0, "color": colour},
                fillcolor=colour,
                hovertemplate="%{y:,.1f} MB",
                row=row,
                col=1,
            )
    about = {"showlegend": False, "row": row, "col": 1}
    figure.add_scatter(
        x=strip.edges, y=_in_use(strip), name="in use", mode="lines",
        line={"shape": "hv", "width": 0}, customdata=names,
        hovertemplate="%{y:,.1f} MB in<br>%{customdata}", **about,
    )  # fmt: skip
    figure.add_scatter(
        x=[strip.peak.seconds], y=[strip.peak.in_use_bytes / 1e6], name="peak", mode="markers",
        marker=hollow, hoverinfo="skip", **about,
    )  # fmt: skip
    if strip is not timelines.strips[0]:
        first = timelines.strips[0]
        figure.add_scatter(
            x=first.edges, y=_in_use(first),
            name=f"{html.escape(first.label, quote=False)}, for comparison", mode="lines",
            line={"shape": "hv", "width": 1, "dash": "dot", "color": _OUTLINE},
            hoverinfo="skip", **about,
        )  # fmt: skip
    if (turn := strip.usage.turn_seconds) is not None:
        dashed = {"line_dash": "dash", "line_width": 1, "line_color": _OUTLINE}
        figure.add_vline(turn, **dashed, row=row, col=1)
    if timelines.shows_limit:
        limit = timelines.limit_bytes / 1e6
        figure.add_hline(limit, line_color=_LIMIT, annotation_text="limit", row=row, col=1)
    figure.update_yaxes(
        title="MB in use", range=[0, 1.05 * timelines.top_bytes / 1e6], row=row, col=1
    )


def _in_use(strip: SimulatedStep) -> list[float]:
    """In MB, at each of the edges."""
    return [moment.in_use_bytes / 1e6 for moment in (*strip.moments, strip.moments[-1])]


def _said(strip: SimulatedStep, moment: Moment) -> str:
    """What runs, and in a line of its own the layer and the user's line."""
    said = filter(None, (strip.name_of(moment), strip.place_of(moment)))
    return "<br>".join(html.escape(each, quote=False) for each in said)


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
            ("peak MB", lambda it: it.peak_text),
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
        notes=bound_notes(strip.bound for strip in timelines.strips),
        name="totals",
        command=timelines.command,
    )


def _at_the_peak(strip: SimulatedStep, timelines: Timelines) -> list[Sheet]:
    """Each band's part of the peak, those that would not read 0.0 MB, and the largest holders."""
    peak, name = strip.usage.peak_bytes, strip.name_of(strip.peak)
    when = f"{strip.label}, at its peak after {seconds(strip.peak.seconds)} s in {name}"
    parts = zip(timelines.bands, timelines.stacks(strip)[strip.usage.peak], strict=True)
    holders = strip.usage.holders
    held = [
        (each.label, each.group, strip.places[each.op] if each.op >= 0 else "", each.size_bytes)
        for each in holders[:_HOLDERS]
    ]
    rest_bytes = sum(each.size_bytes for each in holders[_HOLDERS:])
    rest = [(OTHERS, NONE, NONE, rest_bytes)] if rest_bytes else []
    return [
        Sheet.of(
            [(band, size) for band, size in parts if size >= 50_000],
            [
                ("group" if timelines.by == "group" else "held by", lambda it: it[0]),
                ("MB", lambda it: megabytes(it[1])),
                ("share", lambda it: f"{it[1] / peak:.1%}"),
            ],
            title=when,
            name=f"{strip.label}-groups",
        ),
        Sheet(
            title=f"{strip.label}: who holds most then",
            name=f"{strip.label}-holders",
            columns=("holder", "group", "layer and line", "MB"),
            words=3,
            rows=tuple((*words, megabytes(size)) for *words, size in (*held, *rest)),
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
        stacks = [stack for strip in strips for stack in timelines.stacks(strip)]
        bands = enumerate(timelines.bands.items())
        used = [band for i, band in bands if any(stack[i] for stack in stacks)]
        handles = [Patch(color=colour, label=name) for name, colour in used]
        finish(figure, handles)
    return figure


def _memory(axis: Axes, strip: SimulatedStep, timelines: Timelines) -> None:
    below = [0.0] * len(strip.moments)
    stacks = timelines.stacks(strip)
    for position, colour in enumerate(timelines.bands.values()):
        held = [stacks[i][position] / 1e6 for i in strip.kept]
        above = [low + more for low, more in zip(below, held, strict=True)]
        axis.stairs(above, strip.edges, baseline=below, fill=True, color=colour, linewidth=0)
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
