"""Options of a strategy that a command fills in where the user has left them as they are."""

from __future__ import annotations

import msgspec

from memtrade.measure.protocol import TrialSpec
from memtrade.models import options_of
from memtrade.strategies import find_strategy


def with_default(spec: TrialSpec, option: str, value: str) -> TrialSpec:
    """The trial with an option of its strategy set, if there is one that was left as it is."""
    for each in options_of(find_strategy(spec.strategy).options):
        if each.name == option and spec.strategy_options[option] == each.default:
            options = spec.strategy_options | {option: value}
            return msgspec.structs.replace(spec, strategy_options=options)
    return spec
