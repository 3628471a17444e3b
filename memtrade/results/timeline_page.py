"""`memtrade timeline` as a page: SVG made here, a few lines of script, nothing from the network."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jinja2

from memtrade.results.slices import CHANNELS
from memtrade.results.tables import seconds
from memtrade.results.timeline_view import COLOURS, MEANINGS, Strip, Timelines
from memtrade.simulate.usage import GROUPS
from memtrade.units import megabytes

# Of the drawing, in its own units; the page scales it to its width.
WIDTH, LEFT, RIGHT = 1000, 76, 12
TOP, HEIGHT = 34, 250
LANE, LANE_GAP = 13, 4
AXIS = 36
_LABEL = 120  # about the width of a label

_MOST_TICKS = 7


def to_html(timelines: Timelines) -> str:
    """The whole page."""
    frame = Frame(timelines)
    return _template().render(
        timelines=timelines,
        frame=frame,
        panels=[_panel(strip, frame) for strip in timelines.strips],
        groups=[(group, COLOURS[group], MEANINGS[group]) for group in GROUPS],
        data=_data(timelines),
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("memtrade.results"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["mb"] = megabytes
    environment.filters["seconds"] = seconds
    environment.globals["COLOURS"] = COLOURS
    return environment.get_template("timeline.html")


class Frame:
    """The axes that all strategies share: seconds to the right, bytes upwards."""

    width, left, top, height, lane, lane_gap = WIDTH, LEFT, TOP, HEIGHT, LANE, LANE_GAP
    bottom = TOP + HEIGHT
    right = WIDTH - RIGHT
    lanes = len(CHANNELS)

    def __init__(self, timelines: Timelines):
        self.seconds = timelines.seconds
        self.y_ticks = ticks(timelines.top_bytes, beyond=True)
        self.x_ticks = ticks(timelines.seconds)
        self.top_bytes = self.y_ticks[-1]
        self.total = self.lane_y(self.lanes) + AXIS

    def x(self, second: float) -> float:
        return round(self.left + (self.right - self.left) * second / self.seconds, 2)

    def y(self, size_bytes: float) -> float:
        return round(self.bottom - self.height * size_bytes / self.top_bytes, 2)

    def lane_y(self, position: int) -> int:
        return self.bottom + 10 + position * (self.lane + self.lane_gap)


def ticks(highest: float, *, beyond: bool = False) -> list[float]:
    """Round values from 0 up to `highest`; one more if `beyond`, so that it lies below the last.

    >>> ticks(2880), ticks(2880, beyond=True)[-1]
    ([0, 500, 1000, 1500, 2000, 2500], 3000)
    """
    magnitude = 10 ** math.floor(math.log10(highest / _MOST_TICKS))
    step = next(
        factor * magnitude
        for factor in (1, 2, 2.5, 5, 10)
        if highest / (factor * magnitude) <= _MOST_TICKS
    )
    if magnitude >= 1:
        step = round(step)
    count = math.ceil(highest / step) if beyond else math.floor(highest / step)
    return [i * step for i in range(count + 1)]


def _panel(strip: Strip, frame: Frame) -> dict[str, Any]:
    """What the template draws of one strategy."""
    turn_x = None if strip.turn_seconds is None else frame.x(strip.turn_seconds)
    return {
        "strip": strip,
        "areas": _areas(strip, frame),
        "lanes": [
            {"channel": channel, "y": frame.lane_y(i), "spans": _spans(strip, channel, frame)}
            for i, channel in enumerate(CHANNELS)
        ],
        "busy_seconds": {
            channel: sum(end - start for start, end in strip.busy[channel]) for channel in CHANNELS
        },
        "peak_x": frame.x(strip.peak.seconds),
        "peak_y": frame.y(strip.peak.in_use_bytes),
        "peak_label": _beside(frame.x(strip.peak.seconds), turn_x),
        "turn_x": turn_x,
        "end_x": frame.x(strip.step_seconds),
    }


def _beside(x: float, turn_x: float | None) -> tuple[float, str]:
    """Where the peak's label goes and its text-anchor: clear of the edges and the turn's line."""
    near = turn_x is not None and abs(x - turn_x) < _LABEL / 2
    if x < LEFT + _LABEL / 2 or (near and turn_x is not None and x > turn_x):
        return x + 8, "start"
    if x > WIDTH - RIGHT - _LABEL / 2 or near:
        return x - 8, "end"
    return x, "middle"


def _areas(strip: Strip, frame: Frame) -> list[dict[str, str]]:
    """A closed path per group, stacked in the order of the groups."""
    edges = [frame.x(moment.seconds) for moment in strip.moments] + [frame.x(strip.step_seconds)]
    below = [0] * len(strip.moments)
    areas = []
    for position, group in enumerate(GROUPS):
        sizes = [moment.by_group[position] for moment in strip.moments]
        above = [low + size for low, size in zip(below, sizes, strict=True)]
        if any(sizes):
            path = _stairs(edges, above, frame.y) + _stairs(edges, below, frame.y, back=True)
            areas.append({"group": group, "colour": COLOURS[group], "path": f"M{path[1:]}Z"})
        below = above
    return areas


def _stairs(
    edges: Sequence[float], sizes: Sequence[int], y: Callable[[float], float], *, back: bool = False
) -> str:
    """Steps from edge to edge, or the same from right to left."""
    points: list[tuple[float, float]] = []
    for i, size in enumerate(sizes):
        height = y(size)
        if points and points[-1][1] == height:
            points[-1] = (edges[i + 1], height)
        else:
            points += [(edges[i], height), (edges[i + 1], height)]
    if back:
        points.reverse()
    return "".join(f"L{x:g} {height:g}" for x, height in points)


def _spans(strip: Strip, channel: str, frame: Frame) -> list[tuple[float, float]]:
    """(left edge, width) of each stretch of work; nothing is too short to be seen."""
    spans = []
    for start, end in strip.busy[channel]:
        left = frame.x(start)
        spans.append((left, max(round(frame.x(end) - left, 2), 0.4)))
    return spans


def _data(timelines: Timelines) -> str:
    """What the script shows at the pointer: times, names, bytes by group and on the host."""
    strips = [
        {
            "seconds": [round(moment.seconds, 6) for moment in strip.moments],
            "names": strip.names,
            "bytes": [moment.by_group for moment in strip.moments],
            "host": [moment.host_bytes for moment in strip.moments],
        }
        for strip in timelines.strips
    ]
    # "</" within a script element would end it.
    return json.dumps(strips, separators=(",", ":")).replace("</", "<\\/")
