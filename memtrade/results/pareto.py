"""Memory against time, as predicted: a point per strategy, a line where it plans for a budget.

The page is plotly's and needs no network; for print, matplotlib draws the same.
"""

import html
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure as Canvas

from memtrade.results.drawings import drawn, packed_plotly
from memtrade.results.paper import PAGE_INK, canvas_of, colour_of, finish, in_style, line_look
from memtrade.results.series import SYMBOLS, style_of
from memtrade.results.sheets import templates
from memtrade.units import megabytes


@dataclass(frozen=True)
class Point:
    """One plan.

    Attributes:
        budget_bytes: that the plan was made for, if any.
        relative_time: to the original step.
        on_front: no other plan here is better in one and no worse in the other.
        bound: what stands before the peak; see `memtrade.bounds.bound_of`.
    """

    strategy: str
    budget_bytes: int | None
    peak_bytes: int
    host_bytes: int
    seconds: float
    relative_time: float
    on_front: bool = False
    bound: str = ""


@dataclass(frozen=True)
class Pareto:
    """All plans of one step on one device, and the command that made them."""

    step: str
    device: str
    points: tuple[Point, ...]
    command: str

    @property
    def title(self) -> str:
        return f"{self.step} on {self.device}: predicted memory and time"

    def by_strategy(self) -> dict[str, list[Point]]:
        grouped: dict[str, list[Point]] = {}
        for point in sorted(self.points, key=lambda p: p.peak_bytes):
            grouped.setdefault(point.strategy, []).append(point)
        return grouped


def to_html(pareto: Pareto) -> str:
    """The whole page."""
    import plotly.graph_objects as go  # slow to import, and only the page needs it

    drawing = go.Figure()
    for strategy, points in pareto.by_strategy().items():
        style = style_of(strategy)
        colour = colour_of(style.colour)
        drawing.add_scatter(
            x=[p.peak_bytes / 1e6 for p in points],
            y=[p.relative_time for p in points],
            name=strategy,
            mode="lines+markers" if len(points) > 1 else "markers",
            line={"color": colour},
            marker={
                "color": colour,
                "symbol": SYMBOLS[style.position % len(SYMBOLS)],
                "size": 10,
                "line": {"width": [2 if p.on_front else 0 for p in points], "color": PAGE_INK},
            },
            text=[_tip(p) for p in points],
            hovertemplate="<b>%{fullData.name}</b><br>%{text}<extra></extra>",
        )
    drawing.update_layout(
        title={
            "text": pareto.title,
            "subtitle": {"text": html.escape(pareto.command, quote=False)},
        },
        xaxis={"title": "peak memory in MB", "rangemode": "tozero"},
        yaxis={"title": "step time, relative to original"},
        template="plotly_white",
        font={"family": "system-ui, sans-serif", "size": 14},
        hoverlabel={"align": "left"},
        margin={"t": 110},
    )
    page, picture = templates().get_template("pareto.html"), drawn(drawing, "pareto")
    return page.render(title=pareto.title, plotly=packed_plotly(), drawing=picture)


def _tip(point: Point) -> str:
    parts = [
        f"peak {megabytes(point.peak_bytes, point.bound)} MB",
        f"host {point.host_bytes / 1e6:,.1f} MB",
        f"{point.seconds:.3g} s a step ({point.relative_time:.3f} × original)",
    ]
    if point.budget_bytes is not None:
        parts.append(f"planned for {point.budget_bytes / 1e6:,.0f} MB")
    if point.on_front:
        parts.append("nothing here is better in both")
    return "<br>".join(parts)


def pareto_plot(pareto: Pareto) -> Canvas:
    """The same for print."""
    with in_style():
        canvas, [axis] = canvas_of(1, height=4.2)
        handles = []
        for strategy, points in pareto.by_strategy().items():
            look: Any = line_look(strategy, {}) | ({} if len(points) > 1 else {"linestyle": ""})
            xs, ys = [p.peak_bytes / 1e6 for p in points], [p.relative_time for p in points]
            handles += axis.plot(xs, ys, label=strategy, **look)
        axis.set_xlim(left=0)
        axis.set(xlabel="peak memory in MB", ylabel="step time, relative to original")
        axis.set_title(pareto.title)
        finish(canvas, handles, pareto.command)
    return canvas
