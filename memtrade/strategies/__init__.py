"""The strategies: what they are called and what can be set.

A new strategy is one file with an `Options` dataclass and a `STRATEGY`, and its entry below.

    >>> make_options("lms", {"n_tensors": "10"}).n_tensors
    10
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memtrade.errors import UnknownNameError
from memtrade.models.options import Value, make_from_words
from memtrade.strategies import checkpoints, lms, ome, original
from memtrade.strategies.base import Strategy

__all__ = ["STRATEGIES", "Strategy", "find_strategy", "make_options"]

STRATEGIES: dict[str, Strategy] = {
    module.STRATEGY.name: module.STRATEGY for module in (original, checkpoints, lms, ome)
}


def find_strategy(name: str) -> Strategy:
    """Raises UnknownNameError with the nearest match."""
    if name not in STRATEGIES:
        raise UnknownNameError("strategy", name, STRATEGIES)
    return STRATEGIES[name]


def make_options(name: str, given: Mapping[str, Value] | None = None) -> Any:
    """A strategy's options from words. Raises UnknownNameError or MemtradeError."""
    return make_from_words(find_strategy(name).options, given, of=name)
