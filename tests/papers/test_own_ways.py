"""memtrade/papers/keras_own_ways.py: who is compared with whom, and what is said of it."""

from __future__ import annotations

import pandas as pd
import pytest

from memtrade.comparison import Difference, Verified
from memtrade.measure.trial import Outcome
from memtrade.papers.keras_own_ways import answer, best_own, key_of, sheet, small, verdict, ways
from tests.results.conftest import MakeRecord

EQUAL = {"verdict": "equal", "max_difference": "0", "tolerance": "0"}
DIFFERS = {"verdict": "differs", "max_difference": "0.25", "differing": "3", "variables": "9"}


def checked(records: list, **verdicts: dict[str, str]) -> pd.DataFrame:
    keys = {record.spec.strategy: key_of(record.spec) for record in records}
    return ways(records, {keys[name]: found for name, found in verdicts.items()})


def test_only_what_computes_the_same_counts_as_the_best(make_record: MakeRecord) -> None:
    records = [
        make_record("accumulate", peak_mb=500.0, step_seconds=8.0),
        make_record("recompute_grad", peak_mb=1800.0, step_seconds=9.0),
        make_record("xla", peak_mb=None, status="timeout", reason="it took more than 240 s"),
        make_record("original", peak_mb=2000.0, step_seconds=5.0),
        make_record("ome", peak_mb=1000.0, step_seconds=6.5),
    ]
    found = checked(records, accumulate=DIFFERS, recompute_grad=EQUAL, ome=EQUAL)
    assert list(found["strategy"])[:2] == ["original", "ome"]
    best = best_own(found, same=True)
    assert best is not None
    assert best["label"] == "recompute_grad"
    said = answer(found)
    assert "50% of the original's peak (at most 60%: yes)" in said
    assert "1.30 times its time (at most 1.40: yes)" in said
    assert "the same, recompute_grad, peaks at 1,800.0 MB (ome is below: yes)" in said
    assert "whatever it computes, accumulate, peaks at 500.0 MB (ome is below: no)" in said


@pytest.mark.parametrize(
    ("peak_mb", "seconds", "words"),
    [(1300.0, 6.5, "60%: no"), (1000.0, 8.0, "1.40: no"), (1000.0, 6.5, "ome is below: no")],
)
def test_what_is_not_reached_is_said(
    make_record: MakeRecord, peak_mb: float, seconds: float, words: str
) -> None:
    records = [
        make_record("original", peak_mb=2000.0, step_seconds=5.0),
        make_record("ome", peak_mb=peak_mb, step_seconds=seconds),
        make_record("recompute_grad", peak_mb=900.0, step_seconds=9.0),
    ]
    assert words in answer(checked(records, recompute_grad=EQUAL, ome=EQUAL))


def test_the_table_shows_what_failed_and_what_differs(make_record: MakeRecord) -> None:
    records = [
        make_record("original", peak_mb=2000.0, step_seconds=5.0),
        make_record("accumulate", peak_mb=500.0, step_seconds=8.0),
        make_record("xla", peak_mb=None, status="timeout", reason="it took more than 240 s"),
    ]
    made = sheet(checked(records, accumulate=DIFFERS))
    rows = {row[0]: row for row in made.rows}
    assert rows["accumulate"][1:6] == (
        "500.0", "0.25", "8.00", "1.60", "no: 3 of 9 variables differ, by up to 0.25"
    )  # fmt: skip
    assert rows["xla"][1:] == ("-", "-", "-", "-", "-", "timeout: it took more than 240 s")
    assert [made.rows[i][0] for i in made.weak] == ["xla"]
    assert made.notes == ("ome has no figures here",)


def test_a_budget_of_the_larger_step_is_not_one_of_the_smaller(make_record: MakeRecord) -> None:
    spec = make_record(
        "optimal", spec={"strategy_options": {"budget": "800MB", "device": "arena"}}
    ).spec
    made = small(spec)
    assert made.strategy_options == {"budget": "", "minimize": "memory"}
    assert made.task == "verify"
    assert made.model_options["image_size"] < spec.model_options["image_size"]
    assert key_of(spec) == ("resnet-50", "optimal", "")


def test_verdicts() -> None:
    found = Verified(
        equal=False,
        tolerance=0.0,
        max_difference=0.25,
        steps=2,
        variables=9,
        differing=(Difference("w", 0.25),),
    )
    assert verdict(Outcome(status="ok", verified=found)) == ("differs", "0.25", "0", "1", "9", "")
    assert verdict(Outcome(status="timeout", reason="it took\nlong")) == (
        "timeout",
        *[""] * 4,
        "it took long",
    )
