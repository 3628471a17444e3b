"""optimal: keep, recompute or swap for every activation, for least time under a memory budget.

options.py     what a user may ask for
problem.py     what a choice is made of: sizes, seconds, when each tensor is needed
choice.py      the choice as a mixed-integer programme
judge.py       what the exact simulator says of a choice
rules.py       what the rules of other strategies choose
candidates.py  what was found so far, which of it is best, and what stands beside it
blocks.py      a step without the blocks that repeat
corrections.py what the programme chooses, corrected by what the simulator says
search.py      solve, judge, correct, improve
strategy.py    the plan
"""

from memtrade.strategies.optimal.strategy import STRATEGY

__all__ = ["STRATEGY"]
