"""Trials of one step for several budgets: the smallest first, so that the others know its plan."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memtrade.sweep.grid import Trial
from memtrade.units import parse_bytes


def leaner_first(trials: Sequence[Trial]) -> list[Trial]:
    """The trials in their order, but those that differ only in their budget ascend in it, in the
    places that they have."""
    places: dict[bytes, list[int]] = {}
    for i, trial in enumerate(trials):
        if trial.spec.strategy_options.get("budget"):
            options = {**trial.spec.strategy_options, "budget": ""}
            spec = msgspec.structs.replace(trial.spec, strategy_options=options)
            places.setdefault(msgspec.json.encode(spec, order="sorted"), []).append(i)
    ordered = list(trials)
    for group in places.values():
        ascending = sorted(
            (trials[i] for i in group),
            key=lambda trial: parse_bytes(trial.spec.strategy_options["budget"]),
        )
        for i, trial in zip(group, ascending, strict=True):
            ordered[i] = trial
    return ordered
