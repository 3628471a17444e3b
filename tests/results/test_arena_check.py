"""The page that says how far off the arena's predictions are, against the records."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable

from memtrade.measure.records import Record, load_records
from memtrade.papers import arena_check
from memtrade.papers.published import REPOSITORY_ROOT
from tests.results.test_figures import PREDICTED

RESULTS = REPOSITORY_ROOT / "results"
ROWS = arena_check.rows(load_records(RESULTS / "measured"))


def test_the_page_says_what_the_records_say() -> None:
    page = (RESULTS / "predicted" / "arena.md").read_text(encoding="utf-8")
    assert page == arena_check.markdown(ROWS), "an old page: make tables"
    with (RESULTS / "predicted" / "arena.csv").open(encoding="utf-8") as file:
        written = list(csv.reader(file))
    assert written == [list(arena_check.Row._fields), *([str(cell) for cell in r] for r in ROWS)]


def test_step_times_are_predicted_within_the_promised_bounds() -> None:
    assert len(ROWS) >= 27
    errors = [abs(row.time_error) for row in ROWS]
    assert statistics.median(errors) <= 0.10
    assert sum(error > 0.25 for error in errors) <= len(errors) / 10


def test_what_ran_beside_others_is_left_out(make_record: Callable[..., Record]) -> None:
    alone = make_record("ome", predicted=PREDICTED)
    beside = make_record("lms", predicted=PREDICTED, jobs=2)
    assert [row.strategy for row in arena_check.rows([alone, beside])] == ["ome"]
    assert arena_check.rows([make_record("ome")]) == []
