"""optimal: keep, recompute or swap for every activation, for least time under a memory budget.

problem.py   what a choice is made of: sizes, seconds, when each tensor is needed
choice.py    the choice as a mixed-integer programme
judge.py     what the exact simulator says of a choice
strategy.py  the search: solve, judge, correct, improve
"""

from memtrade.strategies.optimal.strategy import STRATEGY

__all__ = ["STRATEGY"]
