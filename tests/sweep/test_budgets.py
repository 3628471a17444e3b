"""Of trials that differ only in their budget, the one with the smallest comes first."""

import msgspec

from memtrade.measure.protocol import TrialSpec
from memtrade.sweep.grid import Trial
from memtrade.sweep.runner import leaner_first


def trial(budget: str, **changes: object) -> Trial:
    spec = TrialSpec(strategy="optimal", strategy_options={"budget": budget, "swap": True})
    return Trial(spec=msgspec.structs.replace(spec, **changes), timeout_seconds=1.0, id=budget)


def test_budgets_ascend_in_the_places_that_they_have():
    original = trial("", strategy="original", strategy_options={})
    trials = [trial("1GB"), original, trial("600MB"), trial("2GB", steps=9), trial("0.8GB")]
    assert [each.id for each in leaner_first(trials)] == ["600MB", "", "0.8GB", "2GB", "1GB"]


def test_trials_without_budgets_stay_where_they_are():
    trials = [trial("", steps=steps) for steps in (3, 1, 2)]
    assert leaner_first(trials) == trials
