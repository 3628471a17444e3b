"""The timeline: thinned out without losing the peak, to scale, and whole without a network."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from itertools import pairwise

import msgspec
import pytest

from memtrade.graph import StepGraph
from memtrade.results.paper import render
from memtrade.results.simulated import CHANNELS, COLOURS, THINNED, SimulatedStep
from memtrade.results.timeline import Bands, Timelines, drawing, timeline_plot, title_of, to_html
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import Usage, use_of_memory
from memtrade.strategies import PLANNED, make_options
from memtrade.units import megabytes
from tests.graphs import ARENA, chain, target


def located(graph: StepGraph) -> StepGraph:
    """Its ops lie in layers of two, each of which was made in a line of its own."""
    ops = tuple(
        msgspec.structs.replace(op, layer=f"block{op.id // 2}", source=f"train.py:{op.id // 2}")
        for op in graph.ops
    )
    return StepGraph(msgspec.structs.replace(graph.data, ops=ops))


LONG = chain(600, size=1 << 16)
SHORT = located(chain(8, size=4 << 20))


def usage(graph: StepGraph = SHORT, strategy: str = "original") -> Usage:
    plan = PLANNED[strategy].plan(graph, make_options(strategy), ARENA)
    clock = TimeSimulator(graph, target("gtx-1070"))
    return use_of_memory(clock, plan, limit_bytes=1 << 30)


def timelines(
    *strategies: str,
    limit_bytes: int = 1 << 30,
    label: str = "",
    graph: StepGraph = SHORT,
    by: Bands = "group",
) -> Timelines:
    strips = [SimulatedStep(label or name, graph, usage(graph, name)) for name in strategies]
    return Timelines(
        step="chain, batch 1",
        device=target("gtx-1070").device,
        limit_bytes=limit_bytes,
        strips=tuple(strips),
        by=by,
        command="memtrade timeline",
    )


def test_thinning_keeps_the_peak_and_the_order() -> None:
    found = usage(LONG)
    strip = SimulatedStep("original", LONG, found)
    assert len(strip.moments) <= THINNED + 1 < len(found.moments)
    assert max(moment.in_use_bytes for moment in strip.moments) == found.peak_bytes
    assert strip.peak in strip.moments
    times = [moment.seconds for moment in strip.moments]
    assert times == sorted(times)


def test_a_title_and_the_totals_say_how_the_peak_may_differ() -> None:
    told = timelines("lms")
    strip = dataclasses.replace(told.strips[0], bound="≈")
    page = to_html(dataclasses.replace(told, strips=(strip,)))
    peak = f"≈ {megabytes(strip.usage.peak_bytes)}"
    assert title_of(strip) == f"lms: peak {peak} MB"
    assert f">{peak}<" in page
    assert "≈: about; TensorFlow" in page


def test_busy_stretches_cover_what_the_channels_do() -> None:
    found = usage(strategy="lms")
    strip = SimulatedStep("lms", SHORT, found)
    for channel in CHANNELS:
        spans = strip.busy(channel)
        drawn = sum(end - start for start, end in spans)
        slack = len(spans) * found.timeline.step_seconds / THINNED
        assert drawn == pytest.approx(found.timeline.busy_seconds[channel], abs=10 * slack + 1e-9)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert strip.busy("copy-out")


def test_what_is_not_listed_is_in_the_rest() -> None:
    text = to_html(timelines("original", graph=LONG))
    [holders] = re.findall(r"who holds most then</fig.*?</figure>", text, flags=re.DOTALL)
    sizes = [float(size.replace(",", "")) for size in re.findall(r"<td>([\d.,]+)</td>", holders)]
    assert "all others" in holders
    assert sum(sizes) == pytest.approx(usage(LONG).peak_bytes / 1e6, abs=0.05 * len(sizes))


class Page(HTMLParser):
    """Counts elements and notes whatever would be loaded from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [v for k, v in attrs if k in ("src", "href") and v and v[0] != "#"]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network() -> None:
    text = to_html(timelines("original", "lms"))
    page = Page(text)
    assert page.open == []
    assert page.loaded == []
    assert text == to_html(timelines("original", "lms"))
    assert "url(" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    for strategy in ("original", "lms"):
        assert f"{strategy}: peak {megabytes(usage(strategy=strategy).peak_bytes)} MB" in text
        assert f"{strategy}, at its peak after" in text


def test_all_panels_have_one_scale() -> None:
    drawn = timelines("original", "lms")
    layout = drawing(drawn).to_dict()["layout"]
    ranges = [layout[f"yaxis{number}"]["range"] for number in ("", "3")]
    assert ranges[0] == ranges[1]
    assert ranges[0][1] >= drawn.peak_bytes / 1e6
    times = [layout[f"xaxis{number}"]["range"] for number in ("", "2", "3", "4")]
    assert times == [[0, max(strip.step_seconds for strip in drawn.strips)]] * 4


def test_areas_reach_up_to_the_peak() -> None:
    traces = drawing(timelines("original")).to_dict()["data"]
    areas = [list(trace["y"]) for trace in traces if trace.get("stackgroup")]
    heights = [sum(sizes) for sizes in zip(*areas, strict=True)]
    [in_use] = [trace for trace in traces if trace.get("name") == "in use"]
    assert heights == pytest.approx(list(in_use["y"]))
    assert max(heights) == pytest.approx(usage().peak_bytes / 1e6)
    assert len(in_use["customdata"]) == len(in_use["x"]) == len(heights)


@pytest.mark.parametrize("by", ["layer", "source"])
def test_areas_of_layers_and_of_lines_add_up(by: Bands) -> None:
    drawn = timelines("original", "lms", by=by)
    named = [band for band in drawn.bands if band.startswith(("block", "train.py:"))]
    assert 4 < len(named) <= 8
    assert all(band.startswith("block" if by == "layer" else "train.py:") for band in named)
    for strip in drawn.strips:
        sums = [sum(stack) for stack in drawn.stacks(strip)]
        assert sums == [moment.in_use_bytes for moment in strip.usage.moments]
    first = drawn.strips[0]
    held = dict(zip(drawn.bands, drawn.stacks(first)[first.usage.peak], strict=True))
    kept = dict(zip(COLOURS, first.peak.by_group, strict=True))
    assert held["inputs"] == kept["inputs"]
    assert sum(held[band] for band in named) > 0.9 * kept["activations"]


def test_what_runs_says_its_layer_and_its_line() -> None:
    traces = drawing(timelines("original")).to_dict()["data"]
    [in_use] = [trace for trace in traces if trace.get("name") == "in use"]
    assert any(name.endswith("<br>block1 (train.py:1)") for name in in_use["customdata"])
    assert "block1 (train.py:1)" in to_html(timelines("original")).rpartition("holders")[2]


def test_the_first_strategy_is_drawn_over_the_others() -> None:
    traces = drawing(timelines("original", "lms")).to_dict()["data"]
    [outline] = [trace for trace in traces if trace.get("name") == "original, for comparison"]
    [first, _] = [trace for trace in traces if trace.get("name") == "in use"]
    assert list(outline["y"]) == list(first["y"])
    assert (outline["xaxis"], first["xaxis"]) == ("x3", "x")


def test_labels_are_no_markup() -> None:
    text = to_html(timelines("original", label="</script><b>original"))
    assert "<b>original" not in text
    assert "&lt;b&gt;original" in text


def test_the_limit_is_drawn_only_where_it_squeezes_nothing() -> None:
    peak = usage().peak_bytes

    def limits(limit_bytes: int) -> list[float]:
        shapes = drawing(timelines("original", limit_bytes=limit_bytes)).layout.shapes
        return [shape.y0 for shape in shapes if shape.y0 == shape.y1]

    assert limits(round(1.2 * peak)) == [pytest.approx(1.2 * peak / 1e6)]
    assert limits(10 * peak) == []


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_plot_is_the_same_file_each_time(kind: str) -> None:
    drawn = timelines("original", "lms")
    first = render(timeline_plot(drawn), kind)
    assert len(first) > 5000
    assert first == render(timeline_plot(drawn), kind)


def test_every_group_has_a_colour_of_its_own() -> None:
    assert len(set(COLOURS.values())) == len(COLOURS)
