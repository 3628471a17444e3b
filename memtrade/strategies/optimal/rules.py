"""What the rules of other strategies choose for a step: they count, where they are better.

A rule may see what the programme does not: small tensors, which it leaves alone, or recomputations
that span more than its windows.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Mapping

from memtrade.errors import InfeasibleBudgetError, UnsupportedGraphError
from memtrade.plan import Decision
from memtrade.schedule import lower
from memtrade.strategies import checkpoints, lms, ome
from memtrade.strategies.base import decisions
from memtrade.strategies.baselines import checkmate, greedy
from memtrade.strategies.optimal.judge import Judge, Verdict

Decisions = Mapping[int, Decision]


def exact_program(judge: Judge, budget_bytes: int | None) -> list[Verdict]:
    """What `checkmate` finds, if anything: exact in a graph so small. Ops may run a third time,
    and what is kept may go before its last reader."""
    budget = "" if budget_bytes is None else f"{budget_bytes}B"
    with contextlib.suppress(UnsupportedGraphError, InfeasibleBudgetError):
        plan = checkmate.plan(judge.graph, checkmate.Options(budget=budget), judge.target)
        program = tuple(action for action in plan.actions if action.kind != "reserve")
        return [judge.judge_program(program, decisions(plan.fates))]
    return []


def early_swaps(judge: Judge) -> Verdict:
    """What `lms` does: all is swapped, and comes back a little early, which other holes suit."""
    options = lms.Options()
    chosen = decisions(lms.fates(judge.graph, options))
    program = lms.start_early(judge.graph, lower(judge.graph, chosen), options)
    return judge.judge_program(program, chosen)


def whatever_budget(judge: Judge, *, swap: bool) -> list[Decisions]:
    """What `checkpoints` and `ome` choose. What a graph has no place for is left out."""
    graph, target = judge.graph, judge.target
    found: list[Decisions] = []
    with contextlib.suppress(UnsupportedGraphError):
        kept = checkpoints.choose(graph, checkpoints.Options(), target)
        found.append(decisions(checkpoints.fates(graph, kept)))
    if swap:
        with contextlib.suppress(UnsupportedGraphError):
            found.append(decisions(ome.fates(graph, ome.Options(), target)))
    return found


def for_budget(judge: Judge, budget_bytes: int) -> Decisions:
    """What `greedy` chooses: as few of its candidates as fit the budget, or all."""
    chosen = greedy.choose(judge.graph, judge.times)

    def fits(count: int) -> bool:
        return judge.judge(decisions(chosen[:count])).peak_bytes <= budget_bytes

    return decisions(chosen[: bisect_left(range(len(chosen)), True, key=fits)])
