"""The search: solve the choice, judge it exactly, correct the budget, improve what was found.

    reference order -> problem -> programme --budget--> choice -> lower -> exact simulator
                                      ^                                        |
                                      '------- budget less the excess ---------'

The programme's memory is a sum per interval and leaves a little out: what a recomputation holds
while it runs, the allocator's padding, an order that shifts with the decisions. The simulator has
the last word, and what it finds over (or far under) the budget corrects the programme's.

How far it goes is counted: solutions, nodes, simulated actions. A deadline cancels, at any moment.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Literal

from memtrade.errors import InfeasibleBudgetError
from memtrade.graph import StepGraph
from memtrade.plan import Decision
from memtrade.strategies.base import worth_deciding
from memtrade.strategies.deadline import CancelledError, Deadline
from memtrade.strategies.optimal.choice import Choice, Chooser
from memtrade.strategies.optimal.judge import Finished, Judge, Verdict
from memtrade.strategies.optimal.problem import MB, Problem, make_problem, moves, reference_order
from memtrade.strategies.optimal.rules import Rules
from memtrade.target import Target
from memtrade.units import megabytes

# The programme is corrected and solved anew at most so many times, with this much to spare.
ROUNDS = 5
SPARE = 0.001
# For the smallest peak, the order of the plan that came out is taken up so often.
ORDERS = 3
LEANEST = 3  # choices with the smallest peaks that are finished
# A plan proven to be within this share of the best is not searched around, unless the graph is so
# small that the search is exhaustive.
ENOUGH = 0.005
LEAN = 0.0002  # for the smallest peak, which another strategy might miss by a few bytes
FEW_ITEMS = 20
# A choice is close enough below the budget with so much of it left; else this share of what is left
# is tried, too.
CLOSE = 0.01
CAUTION = 0.7
# How many simulated actions one local search may spend.
SEARCH_ACTIONS = 150_000
# To finish a program is so many simulations more.
FINISH_COST = 13

log = logging.getLogger(__name__)


class Search:
    """The best plan of one step for one goal.

    Attributes:
        best: the best so far.
        least_seconds, least_bytes: what no plan of the programme's kind goes below, if known.
        cancelled: whether the deadline ended the search.
    """

    def __init__(
        self,
        graph: StepGraph,
        target: Target,
        *,
        budget_bytes: int | None,
        minimize: Literal["time", "memory"],
        swap: bool,
        host_limit_bytes: float,
        seconds: float,
    ):
        self.graph, self.target, self.swap = graph, target, swap
        self.budget_bytes, self.minimize = budget_bytes, minimize
        self.host_limit_bytes = host_limit_bytes
        self.deadline = Deadline(seconds)
        self.judge = Judge(graph, target, self.deadline)
        self.rules = Rules(self.judge, swap=swap)
        self.original_seconds = self.judge.times.step_seconds(())
        self.problem = self._problem(None)
        self.best: Finished | None = None
        self.least_seconds: float | None = None
        self.least_bytes: float | None = None
        self.cancelled = False
        # Up to so many bytes in use, copies may hold memory.
        self._copies_bytes = math.inf

    def run(self) -> Finished:
        """The fastest plan within the budget, or the smallest peak and the fastest plan with it.

        Raises InfeasibleBudgetError where no plan was found within the budget.
        """
        try:
            if self.minimize == "time" and self.budget_bytes is not None:
                self._fastest(self.budget_bytes)
            else:
                self._smallest()
        except CancelledError:
            self.cancelled = True
            log.warning("the time limit ended the search")
        found = self.best or self._without_search()
        if self.budget_bytes is not None and found.peak_bytes > self.budget_bytes:
            raise InfeasibleBudgetError(found.peak_bytes, self.budget_bytes, found.peak_op)
        return found

    @property
    def gap(self) -> float | None:
        """How much better any plan could be, as a share of the best so far."""
        assert self.best is not None
        if self.minimize == "memory":
            least, best = self.least_bytes, self.best.peak_bytes
        else:
            least, best = self.least_seconds, self.best.seconds
        if least is None or math.isinf(least):
            return None
        return max(0.0, 1 - least / best)

    # The two goals.

    def _fastest(self, budget: int) -> None:
        everything = self.judge.judge({})
        if self._offer(everything, budget):
            self.least_seconds = self.original_seconds  # nothing is faster than to do no more
            return
        self._solve(budget)
        if not self._good_enough:
            self._consider_rules(budget)
        if self.best is None:
            self._say(f"no plan found within {megabytes(budget)} MB: looking for the smallest")
            self._find_leanest()
        if not self._good_enough and self.best is not None and self.best.peak_bytes <= budget:
            self._improve(budget)

    def _smallest(self) -> None:
        peak_bytes = self._find_leanest().peak_bytes
        self._solve(peak_bytes)
        if not self._lean_enough(peak_bytes):
            self._consider_rules(peak_bytes)
        self._improve(peak_bytes)

    def _without_search(self) -> Finished:
        """Of keeping and swapping everything, the better one: there must be some plan."""
        self.judge.deadline = Deadline(math.inf)
        budget = self.budget_bytes or 0
        both = [self.judge.finish(each, 0, budget) for each in self._extremes()]
        self.best = min(both, key=lambda each: (max(each.peak_bytes, budget), each.seconds))
        return self.best

    # Their parts.

    def _problem(self, decisions: Mapping[int, Decision] | None) -> Problem:
        judge = self.judge
        made = make_problem(judge.simulator, judge.times, reference_order(self.graph, decisions))
        return made if self.swap else made.without_swaps()

    def _chooser(self, problem: Problem, minimize: Literal["time", "memory"]) -> Chooser:
        return Chooser(
            problem,
            self.target.device,
            minimize=minimize,
            host_limit_mb=self.host_limit_bytes / MB,
            deadline=self.deadline,
        )

    def _extremes(self) -> list[Verdict]:
        """All is kept; all that can be is swapped, if there is room for it."""
        both = [self.judge.judge({})]
        if self.swap:
            both.append(self.judge.judge(dict.fromkeys(worth_deciding(self.graph), "swap")))
        return [each for each in both if each.host_bytes <= self.host_limit_bytes]

    def _find_leanest(self) -> Finished:
        """The smallest peak of a finished plan, which is remembered.

        Solved, then again with the order of the plan that came out; then local search. Small
        tensors, which the programme leaves alone, count where everything else is gone: to swap
        all is tried, too.
        """
        tried = self._extremes()
        problem = self.problem
        for _ in range(ORDERS):
            choice = self._choose(self._chooser(problem, "memory"))
            if choice is None:
                break
            self.least_bytes = min(choice.bound * MB, self.least_bytes or math.inf)
            tried.append(self.judge.judge(choice.decisions))
            before = min(verdict.peak_bytes for verdict in tried[:-1])
            if tried[-1].peak_bytes >= before or self._lean_enough(tried[-1].peak_bytes):
                break
            problem = self._problem(choice.decisions)
        self._finish_leanest(tried)
        assert self.best is not None
        if not self._lean_enough(self.best.peak_bytes):
            tried += self._by_rules(0)
            tried += map(self._shrink, sorted(tried, key=_leanness)[:2])
            self._finish_leanest(tried)
            self._descend(self.best.verdict, self._is_leaner_finished)
        return self.best

    def _finish_leanest(self, tried: list[Verdict]) -> None:
        for verdict in sorted(tried, key=_leanness)[:LEANEST]:
            # No plan needs less than its judged program.
            if self.best is None or verdict.peak_bytes < self.best.peak_bytes:
                self._take_if_leaner(self.judge.finish(verdict, 0))

    def _lean_enough(self, peak_bytes: int) -> bool:
        """Whether it is no use to look for a smaller peak."""
        enough = min((1 + LEAN) * (self.least_bytes or 0.0), self.budget_bytes or math.inf)
        return peak_bytes <= enough and len(self.problem.items) > FEW_ITEMS

    def _is_leaner_finished(self, tried: Verdict, _: Verdict) -> bool:
        assert self.best is not None
        leaner = tried.peak_bytes < self.best.peak_bytes
        return leaner and self._take_if_leaner(self.judge.finish(tried, 0))

    def _take_if_leaner(self, finished: Finished) -> bool:
        leaner = self.best is None or _leanness(finished) < _leanness(self.best)
        if leaner:
            self._take(finished)
        return leaner

    def _solve(self, budget: int) -> None:
        """At first, copies beside compute are as early and as late as they like, and what memory
        they take corrects the programme; then the budget, less what padding takes, holds them."""
        self._copies_bytes = math.inf
        chooser = self._chooser(self.problem, "time")
        first = self._choose(chooser, budget)
        if first is None:
            return
        self.least_seconds = self.original_seconds + first.bound
        fits = self._solve_from(first, chooser, budget)
        if not fits and not self.target.copies_in_line:
            self._copies_bytes = budget
            self._solve_from(first, self._chooser(self.problem, "time"), budget)

    def _solve_from(self, first: Choice, chooser: Chooser, budget: int) -> bool:
        """Choices for the budget; what the simulator finds above it corrects the programme.

        Args:
            first: what the programme says without corrections: later ones prove less.

        Returns whether one fits.
        """
        loosened, excess_bytes = False, 0.0
        for turn in range(ROUNDS):
            choice = self._choose(chooser, budget) if turn else first
            if choice is None:
                if not excess_bytes:
                    return False
                excess_bytes /= 2  # the last correction left no room: half of it is taken back
                self._correct_everywhere(chooser, -excess_bytes)
                continue
            verdict = self.judge.judge(choice.decisions)
            finished = self._offer(verdict, budget)
            if finished is not None:
                slack = budget - finished.peak_bytes
                if loosened or slack < CLOSE * budget or choice.seconds <= 0:
                    return True
                self._correct_everywhere(chooser, -CAUTION * slack)
                loosened = True
            elif loosened:
                return True
            else:
                excess_bytes = self._correct(chooser, verdict, budget, weight=turn + 1)
        return loosened

    def _choose(self, chooser: Chooser, budget: int | None = None) -> Choice | None:
        self._say("solving")
        spare = SPARE if self.minimize == "time" else 0.0
        choice = chooser.choose(math.inf if budget is None else (1 - spare) * budget / MB)
        if choice is not None:
            added = 100 * choice.seconds / self.original_seconds
            log.debug("%s: +%.1f%% time, %.0f MB", self.graph.name, added, choice.mb)
        return choice

    def _correct(self, chooser: Chooser, verdict: Verdict, budget: int, weight: int) -> float:
        """Where the judged program takes more than the budget, the programme counts that much more,
        `weight` times: what was not enough at first is more than padding that comes and goes.

        What has no place counts everywhere: padding that is left after reservations, and copies
        beside compute. Returns the bytes that it counts for.
        """
        excess: dict[int, float] = {}
        place = 0
        in_use = self.judge.simulator.live_bytes(verdict.actions)
        for action, size in zip(verdict.actions, in_use, strict=True):
            if action.kind == "run":
                place = self.problem.place[action.id]
            if size > budget:
                excess[place] = max(excess.get(place, 0.0), weight * (size - budget) / MB)
        if excess:
            chooser.correct(excess)
            return 0.0
        excess_bytes = float(weight * (self._finish(verdict, budget).peak_bytes - budget))
        self._correct_everywhere(chooser, excess_bytes)
        return excess_bytes

    def _correct_everywhere(self, chooser: Chooser, excess_bytes: float) -> None:
        log.debug("%.1f MB over the budget", excess_bytes / MB)
        self._copies_bytes = max(0.0, self._copies_bytes - excess_bytes)
        chooser.correct(dict.fromkeys(self.problem.place.values(), excess_bytes / MB))

    def _by_rules(self, budget: int) -> list[Verdict]:
        verdicts = [self.judge.judge(decisions) for decisions in self.rules.choices(budget)]
        return [each for each in verdicts if each.host_bytes <= self.host_limit_bytes]

    def _consider_rules(self, budget: int) -> None:
        for verdict in [*self._extremes(), *self._by_rules(budget)]:
            self._offer_if_faster(verdict, budget)

    def _offer(self, verdict: Verdict, budget: int) -> Finished | None:
        """The finished plan if it fits; the fastest that does is remembered."""
        if verdict.peak_bytes > budget or verdict.host_bytes > self.host_limit_bytes:
            return None
        finished = self._finish(verdict, budget)
        if finished.peak_bytes > budget:
            return None
        if self.best is None or finished.seconds < self.best.seconds:
            self._take(finished)
        return finished

    def _finish(self, verdict: Verdict, budget: int) -> Finished:
        return self.judge.finish(verdict, self._copies_bytes, budget)

    def _offer_if_faster(self, verdict: Verdict, budget: int) -> bool:
        """Whether it is the best now. To finish it takes long, so that comes last."""
        if verdict.peak_bytes > budget:
            return False
        if self.best is not None and (
            verdict.least_seconds >= self.best.seconds
            or self.judge.seconds(verdict, self._copies_bytes) >= self.best.seconds
        ):
            return False
        self._offer(verdict, budget)
        return self.best is not None and self.best.verdict is verdict

    def _take(self, best: Finished) -> None:
        self.best = best
        self._say("best so far")

    def _say(self, what: str) -> None:
        """Progress, for whoever listens to the log: what is done now and the best so far."""
        told = what
        if self.best is not None:
            told += f": {self.added(self.best)}, peak {megabytes(self.best.peak_bytes)} MB"
            if self.gap is not None:
                told += f", gap {100 * self.gap:.1f}%"
        log.info("%s", told)

    def added(self, found: Finished) -> str:
        return f"{100 * (found.seconds / self.original_seconds - 1):+.1f}% time"

    @property
    def _good_enough(self) -> bool:
        if self.best is None or len(self.problem.items) <= FEW_ITEMS:
            return False
        return self.gap is not None and self.gap <= ENOUGH

    def _improve(self, budget: int) -> None:
        """For less time, while the finished plan fits the budget."""
        assert self.best is not None
        self._descend(self.best.verdict, lambda tried, _: self._offer_if_faster(tried, budget))

    def _shrink(self, verdict: Verdict) -> Verdict:
        """For a smaller peak, and less time at the same."""
        return self._descend(verdict, lambda tried, current: _leanness(tried) < _leanness(current))

    def _descend(self, current: Verdict, better: Callable[[Verdict, Verdict], bool]) -> Verdict:
        """Changes a few decisions at a time, as long as that is better.

        As many as there is effort for: one in a large graph, any number in a tiny one.
        """
        evaluations = SEARCH_ACTIONS // max(1, len(current.actions))
        tries = moves(self.problem.items, evaluations)
        improved = True
        while improved:
            improved = False
            for move in tries:
                changed = [flip for flip in move if current.of(flip[0]) != flip[1]]
                if len(changed) < len(move):
                    continue
                if evaluations <= 0:
                    return current
                tried = self.judge.judge({**current.decisions, **dict(changed)})
                finished = self.judge.finish_count
                if tried.host_bytes <= self.host_limit_bytes and better(tried, current):
                    current, improved = tried, True
                evaluations -= 1 if self.judge.finish_count == finished else FINISH_COST
        return current


def _leanness(found: Verdict | Finished) -> tuple[int, float]:
    seconds = found.most_seconds if isinstance(found, Verdict) else found.seconds
    return found.peak_bytes, seconds
