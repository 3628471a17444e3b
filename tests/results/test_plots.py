"""Plots for paper: three formats, the same bytes each time, units and sources in the picture."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text
from PIL import Image

from memtrade.commands.reading import picture_format
from memtrade.errors import MemtradeError
from memtrade.measure.records import Record
from memtrade.papers.thesis import figures_beside, max_batches_beside
from memtrade.results.paper import render
from memtrade.results.plots import depth_plot, max_batch_plot, trade_plot
from memtrade.results.series import FORMATS, by_depth, depth_panels, trade_panels
from tests.results.conftest import MODEL_OPTIONS
from tests.results.test_max_batches import make_search
from tests.results.test_series import at

MakeRecord = Callable[..., Record]

MAGIC = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}


@pytest.fixture(scope="module")
def canvases(make_record: MakeRecord) -> dict[str, Canvas]:
    records = [
        at(make_record, layers, strategy)
        for layers, strategy in itertools.product((18, 50), ("original", "lms", "ome"))
    ]
    figures = figures_beside(records)
    chosen = by_depth(figures)
    batches = max_batches_beside([make_search("original", 85), make_search("lms", 200)], [])
    return {
        "peak": depth_plot(depth_panels(chosen, "peak"), "peak", caption="Measured: here."),
        "time": depth_plot(depth_panels(chosen, "time"), "time", caption="Measured: here."),
        "pareto": trade_plot(trade_panels(figures), caption="Measured: here."),
        "max-batch": max_batch_plot(batches, caption="Measured: here."),
    }


def texts(canvas: Canvas) -> Iterator[str]:
    canvas.canvas.draw()  # tick labels are made when they are drawn
    for artist in canvas.findobj(Text):
        assert isinstance(artist, Text)
        yield artist.get_text()


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_plot_is_the_same_file(canvases: dict[str, Canvas], kind: str) -> None:
    for canvas in canvases.values():
        first = render(canvas, kind)
        assert first.startswith(MAGIC[kind])
        assert render(canvas, kind) == first
        assert b"Date" not in first
        assert b"matplotlib v" not in first.lower()


def test_png_is_fine_enough_for_print(canvases: dict[str, Canvas]) -> None:
    image = Image.open(io.BytesIO(render(canvases["peak"], "png")))
    assert image.width == 2160


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("peak", ["peak memory in MB", "layers", "published: thesis", "measured", "out of memory"]),
        ("time", ["step time in s", "layers", "original", "lms", "ome"]),
        ("pareto", ["peak memory in MB", "step time in s", "resnet-50, batch 32"]),
        ("max-batch", ["largest batch", "85", "200", "87", "resnet-50", "published: thesis"]),
    ],
)
def test_plots_say_units_sources_and_names(
    canvases: dict[str, Canvas], name: str, expected: list[str]
) -> None:
    found = set(texts(canvases[name]))
    assert {*expected, "Measured: here."} <= found


def test_lines_can_be_told_apart_without_colour(canvases: dict[str, Canvas]) -> None:
    axes = canvases["peak"].axes[0]
    looks = {(line.get_marker(), str(line.get_linestyle())) for line in axes.get_lines()}
    assert len(looks) == len([line for line in axes.get_lines() if line.get_marker() != "x"]) + 1


def test_peaks_share_an_axis_and_times_of_unlike_devices_do_not(
    canvases: dict[str, Canvas],
) -> None:
    peak, time = canvases["peak"].axes, canvases["time"].axes
    assert peak[0].get_ylim() == peak[1].get_ylim()
    assert time[0].get_ylim() != time[1].get_ylim()
    assert all(axes.get_ylim()[0] == 0 for axes in (*peak, *time))


def test_a_cross_stands_where_memory_ran_out(canvases: dict[str, Canvas]) -> None:
    published = canvases["peak"].axes[0]
    crosses = [line for line in published.get_lines() if line.get_marker() == "x"]
    assert [tuple(line.get_xdata()) for line in crosses] == [(200,)]  # pyright: ignore[reportArgumentType]


def test_published_bars_are_outlines(canvases: dict[str, Canvas]) -> None:
    [axes] = canvases["max-batch"].axes
    faces = {patch.get_height(): to_rgb(patch.get_facecolor()) for patch in axes.patches}  # pyright: ignore[reportAttributeAccessIssue]
    assert faces[87] == (1.0, 1.0, 1.0)
    assert faces[85] != (1.0, 1.0, 1.0)


def test_bars_stand_above_their_names(canvases: dict[str, Canvas]) -> None:
    [axes] = canvases["max-batch"].axes
    middles: dict[int, list[float]] = {}
    for bar in axes.patches:
        middle = bar.get_x() + bar.get_width() / 2  # pyright: ignore[reportAttributeAccessIssue]
        middles.setdefault(round(middle), []).append(middle)
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert {names[i]: len(each) for i, each in middles.items()}["ome"] == 1
    assert all(sum(each) / len(each) == pytest.approx(i) for i, each in middles.items())


def test_numbers_below_narrow_panels_do_not_touch(make_record: MakeRecord) -> None:
    records = [
        make_record(
            strategy,
            peak_mb=peak_mb * share,
            model=f"resnet-{layers}",
            spec={"model_options": MODEL_OPTIONS | {"layers": layers}},
        )
        for layers, peak_mb in ((18, 1588.9), (34, 1885.9), (50, 3416.4), (101, 5918.3))
        for strategy, share in (("original", 1), ("ome", 0.8))
    ]
    canvas = trade_plot(trade_panels(figures_beside(records)))
    canvas.canvas.draw()
    for axis in canvas.axes:
        boxes = [label.get_window_extent() for label in axis.get_xticklabels()]
        left, right = axis.get_window_extent().intervalx
        seen = [box for box in boxes if left <= (box.x0 + box.x1) / 2 <= right]
        assert len(seen) > 1
        assert all(a.x1 + 3 < b.x0 for a, b in itertools.pairwise(seen))


def test_the_suffix_says_the_format(tmp_path: Path) -> None:
    assert picture_format(tmp_path / "figure.PDF") == "pdf"
    with pytest.raises(MemtradeError, match=r"a plot is a file in .pdf, .svg or .png, not 'f.jpg'"):
        picture_format(Path("f.jpg"))
