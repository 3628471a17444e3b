"""Some of the planted cases, as `python -m tests.planted` tries them all."""

from __future__ import annotations

import pytest

from tests.planted.cases import CASES
from tests.planted.limits import LIMITS
from tests.planted.trials import TRIALS, cures, tried


def test_there_are_twenty_of_six_causes() -> None:
    assert set(CASES) == set(LIMITS)
    assert len(TRIALS) == 20
    assert len({trial.kind for trial in TRIALS.values()}) == 6


@pytest.mark.parametrize(
    "name",
    ["outputs in a list", "a table of variables", "small tensors between large ones"],
)
def test_the_cause_is_named_and_what_is_offered_runs(name: str) -> None:
    [row] = tried(name)
    assert row["told"] == row["planted"]
    assert (row["cure"], row["ran"]) == ("habit", "yes")


def test_the_batch_is_found_and_the_plan_that_is_offered_runs_with_it() -> None:
    plan, smaller = tried("a batch of 16000 rows")
    assert plan["told"] == plan["planted"] == "batch"
    assert "memtrade.keras.optimize(model, batch_size=16000, strategy=" in plan["offered"]
    assert plan["asked"].startswith("hidden_")
    assert (plan["ran"], smaller["ran"]) == ("yes", "yes")


def test_what_a_page_offers_is_read_as_it_is_typed() -> None:
    page = """What fits
- checkpoints: 111.5 MB, 1.23 times the step's time; predicted
    train_step = memtrade.apply(train_step, batch, strategy="checkpoints")
- a batch of about 17,366
- keeping numbers in place of tensors: float(loss), not loss, in lists and logs
"""
    line = 'train_step = memtrade.apply(train_step, batch, strategy="checkpoints")'
    assert list(cures(page)) == [
        ("plan: checkpoints", {"line": line}),
        ("smaller batch", {"batch": 17_366}),
        ("habit", {"habit": True}),
    ]
    assert list(cures("What fits\n- no plan: the smallest peak found is 9.9 MB, by x")) == []
