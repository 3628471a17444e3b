"""The thesis' lists, runs and single figures beside ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from memtrade.measure.records import Record
from memtrade.papers.thesis_rest import figures_sheet, lists_sheet, predicted_rows, runs_sheet

PREDICTED = predicted_rows(Path(__file__).parents[2] / "results" / "predicted" / "thesis.csv")


def test_every_figure_of_the_lists_stands_beside_ours():
    sheet = lists_sheet(PREDICTED, {(50, 32, "ome"): 1_000_000_000}, 3.29)
    rows = {row[0]: row[1:] for row in sheet.rows}
    assert len(rows) == 36
    ome = rows["ome, ResNet-50, batch 32"]
    assert ome[:2] == ("1,230.80", "1,230.80")
    assert ome[-4:] == ("7.15", "3.86", "3.86", "1.00")
    full = rows["original, ResNet-200, batch 32"]
    assert (full[0], full[-1]) == ("-", "-")


def test_a_counter_that_was_not_reset_is_marked():
    rows = {row[0]: row[1:] for row in runs_sheet(PREDICTED).rows}
    assert len(rows) == 28
    assert rows["lms, ResNet-18"][3:5] == ("7,606.4*", "885.4")
    assert rows["ome, ResNet-50"][3:5] == ("1,432.7", "1,252.8")
    assert rows["original, ResNet-200"][:3] == ("out of memory", "out of memory", "2 / 0")


def test_single_figures(make_record: Callable[..., Record]):
    full = make_record("original", peak_mb=None, status="out_of_memory", reason="no room")
    cells = {row[0]: row[1:] for row in figures_sheet([full], 600_000_000).rows}
    assert cells["host memory of an idle process, GB"] == ("3.29", "0.60")
    assert cells["checkpoints of InceptionV4 under OME"] == ("12", "-")
    assert cells["where original of ResNet-200 runs out of memory"][1] == "no room"
