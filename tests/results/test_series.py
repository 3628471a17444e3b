"""What plots draw: the right figures in the right panel, and the front."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtrade.errors import MemtradeError
from memtrade.measure.records import Record
from memtrade.papers.thesis import figures_beside
from memtrade.results.figures import Figure
from memtrade.results.series import by_depth, depth_panels, style_of, trade_panels, value_of
from memtrade.strategies import STRATEGIES
from tests.results.conftest import MODEL_OPTIONS

MakeRecord = Callable[..., Record]


def at(make_record: MakeRecord, layers: int, strategy: str = "ome", batch: int = 32) -> Record:
    options = MODEL_OPTIONS | {"layers": layers, "batch_size": batch}
    return make_record(strategy, model=f"resnet-{layers}", spec={"model_options": options})


def figure(peak_bytes: int, seconds: float, variant: str = "ome", **changes: Any) -> Figure:
    base = Figure(
        source="measured",
        where="",
        model="resnet-50",
        family="resnet",
        layers=50,
        batch_size=32,
        strategy="ome",
        variant=variant,
        peak_bytes=peak_bytes,
        step_seconds=seconds,
    )
    return replace(base, **changes)


def test_the_batch_size_measured_at_most_depths_is_plotted(make_record: MakeRecord) -> None:
    records = [at(make_record, 50, batch=128), at(make_record, 101), at(make_record, 18)]
    chosen = by_depth(figures_beside(records))
    assert {f.batch_size for f in chosen} == {32}
    assert {f.batch_size for f in by_depth(figures_beside(records), batch_size=128)} == {128}
    with pytest.raises(MemtradeError, match="no records of batch size 7: the choices are 32, 128"):
        by_depth(figures_beside(records), batch_size=7)


def test_of_batch_sizes_at_as_many_depths_the_one_with_more_figures_is_plotted(
    make_record: MakeRecord,
) -> None:
    records = [at(make_record, 50, batch=128), at(make_record, 18, batch=128)]
    records += [at(make_record, n, name) for n in (50, 18) for name in ("ome", "lms")]
    assert {f.batch_size for f in by_depth(figures_beside(records))} == {32}


def test_without_depths_there_is_nothing_to_plot() -> None:
    with pytest.raises(MemtradeError, match="no records of a model by depth"):
        by_depth([figure(1, 1.0, layers=None)])


def test_a_panel_per_source_in_which_lines_go_by_depth(make_record: MakeRecord) -> None:
    records = [at(make_record, 101), at(make_record, 18), at(make_record, 50, "lms")]
    published, measured = depth_panels(by_depth(figures_beside(records)), "peak")
    assert (published.source, published.title) == ("published", "published: thesis")
    assert list(measured.lines) == [("lms", "lms"), ("ome", "ome")]  # in registry order
    assert [f.layers for f in measured.lines["ome", "ome"]] == [18, 101]
    (strategy, _), original = next(iter(published.lines.items()))
    assert strategy == "original"
    assert [f.layers for f in original if not value_of(f, "peak")] == [200]
    assert [f.layers for f in original if value_of(f, "peak")] == [18, 34, 50, 101, 152]


def test_a_trade_needs_two() -> None:
    alone = figure(1, 1.0, variant="alone", batch_size=77)
    [panel] = trade_panels([alone, figure(3, 1.0, variant="a"), figure(2, 2.0, variant="b")])
    assert panel.title == "resnet-50, batch 32"
    assert [each.variant for each in panel.figures] == ["b", "a"]  # by memory


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=2, max_size=12))
def test_the_front_is_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    figures = [figure(peak, float(s), variant=f"v{i}") for i, (peak, s) in enumerate(points)]
    [panel] = trade_panels(figures)
    found = list(zip(panel.figures, panel.front, strict=True))
    for point, on_front in found:
        own = (point.peak_bytes or 0, point.step_seconds or 0)
        others = [(f.peak_bytes or 0, f.step_seconds or 0) for f in figures]
        dominated = any(peak <= own[0] and s <= own[1] and (peak, s) != own for peak, s in others)
        if on_front:
            assert not dominated
        elif not dominated:  # a twin of one that is on the front
            twins = [on for twin, on in found if twin.peak_bytes == own[0]]
            assert any(twins)


def test_every_strategy_looks_its_own() -> None:
    styles = [style_of(name) for name in STRATEGIES]
    assert len({style.position for style in styles}) == len(STRATEGIES)
    assert style_of("somebody's").colour == style_of("somebody else's").colour
