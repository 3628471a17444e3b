"""How far predictions were off, against the records."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from memtrade.measure.protocol import Runtime
from memtrade.measure.records import Record, load_records
from memtrade.results.accuracy import accuracy, summary, to_frame, to_sheet
from memtrade.strategies import make_options
from tests.results.test_figures import PREDICTED

RESULTS = Path(__file__).resolve().parents[2] / "results"
RUNTIME = Runtime(
    tensorflow_version="2.21.0", device="arena", limit_bytes=1 << 30, onednn=True,
    intra_op_threads=2, inter_op_threads=1,
)  # fmt: skip
COMMAND = "memtrade accuracy results/measured --format markdown"
ROWS = accuracy(load_records(RESULTS / "measured"))


def test_the_page_says_what_the_records_say() -> None:
    page = (RESULTS / "predicted" / "arena.md").read_text(encoding="utf-8")
    assert page == to_sheet(ROWS, command=COMMAND).to_markdown(), "an old page: make tables"
    table = (RESULTS / "predicted" / "arena.csv").read_text(encoding="utf-8")
    assert table == to_frame(ROWS).to_csv(index=False, lineterminator="\n")


def test_step_times_are_predicted_within_the_promised_bounds() -> None:
    assert len(ROWS) >= 27
    errors = [abs(row.time_error) for row in ROWS if row.time_error is not None]
    assert statistics.median(errors) <= 0.10
    assert sum(error > 0.25 for error in errors) <= len(errors) / 10


def test_times_of_what_ran_beside_others_are_left_out(make_record: Callable[..., Record]) -> None:
    alone = make_record("ome", predicted=PREDICTED)
    beside = make_record("lms", predicted=PREDICTED, jobs=2)
    rows = accuracy([alone, beside])
    assert [row.strategy for row in rows if row.time_error is not None] == ["ome"]
    assert len(rows) == 2
    assert to_sheet(rows).notes[-1].startswith("† ran beside")
    assert accuracy([make_record("ome")]) == []


def test_a_record_that_does_not_know_of_onednn_stands_before_one_that_does(
    make_record: Callable[..., Record],
) -> None:
    older = make_record("ome", predicted=PREDICTED)
    newer = make_record("ome", predicted=PREDICTED, runtime=RUNTIME)
    rows = accuracy([newer, older, newer])
    assert [row.onednn for row in rows] == [None, True, True]


def test_a_budget_that_was_exceeded_is_counted(make_record: Callable[..., Record]) -> None:
    def record(budget: str) -> Record:
        options = dataclasses.asdict(make_options("optimal", {"budget": budget}))
        spec = {"strategy_options": options}
        return make_record("optimal", peak_mb=500.0, predicted=PREDICTED, spec=spec)

    rows = accuracy([record("499MB"), record("501MB")])
    assert sorted(row.over for row in rows) == [False, True]
    assert summary(rows)[-1] == "Budgets: 2, of which 1 were exceeded."
    assert rows[0].peak_error == pytest.approx(PREDICTED.peak_bytes / 500e6 - 1)
