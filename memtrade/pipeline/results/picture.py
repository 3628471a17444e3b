"""Pictures of a partition and of schedules, in the style of `memtrade.results.paper`."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path

from memtrade.graph import StepGraph
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.predict import Timing
from memtrade.pipeline.design.report import PartitionReport
from memtrade.pipeline.design.schedule import Schedule
from memtrade.results.paper import PAGE_INK, WIDTH, finish, in_style, strips_of
from memtrade.units import megabytes

# Okabe and Ito's colours; the hatch tells recomputation apart in grey, too.
_COLOURS = {"forward": "#56B4E9", "recompute": "#F0E442", "backward": "#E69F00"}
_HATCHES = {"forward": "", "recompute": "/////", "backward": ""}
_NAMES = {"forward": "forward", "recompute": "recomputation", "backward": "backward"}
_ARC = "#009E73"
_THICKEST = 4.0  # points, of the arc that carries most
_NUMBERED = 24  # micro-batches; with more, the tasks have no numbers


class ScheduleStrip(NamedTuple):
    """One schedule, with what stands above it."""

    title: str
    schedule: Schedule
    timing: Timing


def draw_partition(graph: StepGraph, partition: Partition, report: PartitionReport) -> Canvas:
    """The stages in a row, as wide as their times; above, what crosses, as arcs."""
    times = report.sequential.times
    both = [1e3 * (f + b) for f, b in zip(times.forward, times.backward, strict=True)]
    edges = [0.0, *itertools.accumulate(both)]
    with in_style(grid=False):
        figure = Canvas(figsize=(WIDTH, 2.7), layout="constrained")
        axis = figure.subplots()
        for stage, (left, right) in enumerate(itertools.pairwise(edges)):
            turn = left + 1e3 * times.forward[stage]
            _bar(axis, "forward", left, turn, 0.0)
            _bar(axis, "backward", turn, right, 0.0)
            weights = sum(graph.capture_bytes[t] for t in partition.stages[stage].trainable)
            label = f"stage {stage + 1}\n{right - left:,.3g} ms\n{megabytes(weights)} MB of weights"
            axis.text((left + right) / 2, -0.15, label, ha="center", va="top", color=PAGE_INK)
        centres = [(left + right) / 2 for left, right in itertools.pairwise(edges)]
        highest = _arcs(axis, partition, centres)
        axis.set_xlim(0, edges[-1])
        axis.set_ylim(-1.15, highest + 0.4)
        axis.axis("off")
        recomputing = ", with recomputation" if report.recomputation else ""
        names = {"forward": "forward", "backward": f"backward{recomputing}"}
        handles = [Patch(facecolor=_COLOURS[kind], label=name) for kind, name in names.items()]
        axis.set_title(
            f"{report.step} in {report.partitions} stages: times predicted for profile "
            f"{report.device_profile}, arcs what crosses"
        )
        finish(figure, handles)
    return figure


def draw_schedules(strips: Sequence[ScheduleStrip]) -> Canvas:
    """When each stage works on what: a strip per schedule, on one axis of time."""
    stages = [strip.schedule.stages for strip in strips]
    with in_style(grid=False):
        height = 0.9 + 0.45 * len(strips) + 0.28 * sum(stages)
        figure, axes = strips_of(stages, height=height)
        for axis, strip in zip(axes, strips, strict=True):
            _strip(axis, strip)
        axes[-1].set_xlabel("ms, predicted")
        axes[-1].set_xlim(0, 1e3 * max(strip.timing.step_seconds for strip in strips))
        used = {task.kind for strip in strips for own in strip.schedule.tasks for task in own}
        kinds = [(kind, name) for kind, name in _NAMES.items() if kind in used]
        handles = [Patch(label=name, **_look(kind)) for kind, name in kinds]
        finish(figure, handles)
    return figure


def _look(kind: str) -> dict[str, Any]:
    return {"facecolor": _COLOURS[kind], "hatch": _HATCHES[kind], "edgecolor": PAGE_INK}


def _bar(axis: Axes, kind: str, start: float, end: float, low: float) -> None:
    axis.add_patch(Rectangle((start, low), end - start, 0.8, linewidth=0.4, **_look(kind)))


def _arcs(axis: Axes, partition: Partition, centres: Sequence[float]) -> float:
    """One arc per pair of connected stages, as thick as what it carries. The highest one's top."""
    moved: dict[tuple[int, int], int] = {}
    for crossing in partition.crossings:
        for target in crossing.targets:
            pair = (crossing.source, target)
            moved[pair] = moved.get(pair, 0) + crossing.size_bytes
    most, highest = max(moved.values(), default=0), 0.8
    for (source, target), size_bytes in sorted(moved.items()):
        top = 0.8 + 0.7 * (target - source)
        start, end = centres[source], centres[target]
        # A quadratic curve comes half as high as its control point.
        points = [(start, 0.8), ((start + end) / 2, 2 * top - 0.8), (end, 0.8)]
        path = Path(points, [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        width = max(0.6, _THICKEST * size_bytes / most) if most else 0.6
        axis.add_patch(PathPatch(path, fill=False, edgecolor=_ARC, linewidth=width, alpha=0.6))
        label = f"{megabytes(size_bytes)} MB"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axis.text((start + end) / 2, top + 0.08, label, ha="center", va="bottom", bbox=box)
        highest = max(highest, top)
    return highest


def _strip(axis: Axes, strip: ScheduleStrip) -> None:
    schedule, timing = strip.schedule, strip.timing
    for stage, tasks in enumerate(schedule.tasks):
        spans = zip(tasks, timing.start_seconds[stage], timing.end_seconds[stage], strict=True)
        for task, start, end in spans:
            _bar(axis, task.kind, 1e3 * start, 1e3 * end, stage)
            if schedule.micro_batches <= _NUMBERED and task.kind != "recompute":
                at, number = (1e3 * (start + end) / 2, stage + 0.42), str(task.micro_batch)
                axis.text(*at, number, ha="center", va="center", fontsize=6)
    axis.set_ylim(schedule.stages, 0)
    numbers = range(schedule.stages)
    axis.set_yticks([i + 0.4 for i in numbers], [f"stage {i + 1}" for i in numbers])
    axis.tick_params(left=False)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.set_title(strip.title, loc="left")
