"""The strategies: what they are called and what can be set.

A planned strategy makes a plan for a graph; a new one is one file with an `Options` dataclass and
a `STRATEGY`, and its entry below. A native one is something that TensorFlow can do by itself.

    >>> make_options("lms", {"n_tensors": "10"}).n_tensors
    10
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memtrade.errors import InvalidPlanError, MemtradeError, UnknownNameError
from memtrade.options import Value, make_from_words
from memtrade.plan import Plan, load_plan
from memtrade.strategies import checkpoints, lms, ome, optimal, original
from memtrade.strategies.base import Strategy
from memtrade.strategies.baselines import checkmate, greedy, rotor, sqrt_n
from memtrade.strategies.native import NATIVE_STRATEGIES, NativeOptions, NativeStrategy

__all__ = [
    "NATIVE", "PLANNED", "STRATEGIES", "NativeOptions", "NativeStrategy", "Strategy",
    "find_planned", "find_strategy", "make_options", "read_plan",
]  # fmt: skip

PLANNED: dict[str, Strategy] = {
    module.STRATEGY.name: module.STRATEGY
    for module in (original, checkpoints, lms, ome, optimal, sqrt_n, greedy, rotor, checkmate)
}

NATIVE: dict[str, NativeStrategy] = {strategy.name: strategy for strategy in NATIVE_STRATEGIES}
STRATEGIES: dict[str, Strategy | NativeStrategy] = {**PLANNED, **NATIVE}


def find_strategy(name: str) -> Strategy | NativeStrategy:
    """Raises UnknownNameError with the nearest match."""
    if not isinstance(name, str) or name not in STRATEGIES:
        raise UnknownNameError("strategy", name, STRATEGIES)
    return STRATEGIES[name]


def find_planned(name: str) -> Strategy:
    """A strategy that makes plans. Raises UnknownNameError, or MemtradeError for a native one."""
    strategy = find_strategy(name)
    if isinstance(strategy, NativeStrategy):
        raise MemtradeError(
            f"{name} has no plan: TensorFlow itself does it. `memtrade run --strategy {name}` "
            f"measures it, plans make {', '.join(PLANNED)}"
        )
    return strategy


def make_options(name: str, given: Mapping[str, Value] | None = None) -> Any:
    """A strategy's options from words. Raises UnknownNameError or MemtradeError."""
    return make_from_words(find_strategy(name).options, given, of=name)


def read_plan(path: Path) -> Plan:
    """A saved plan. Raises InvalidPlanError where it is none, or not by a strategy of these."""
    plan = load_plan(path)
    try:
        make_options(find_planned(plan.strategy).name, plan.options)
    except MemtradeError as error:
        raise InvalidPlanError(f"cannot read a plan from {str(path)!r}: {error}") from error
    return plan
