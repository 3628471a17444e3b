"""What a search has found so far: choices are offered, the best finished plan is remembered, and
plans beside it are tried, a few decisions changed at a time.

Where time is minimized, the fastest plan within the budget is best; where memory is, the fastest
of those whose peaks are next to the smallest that was found (`tolerance`).
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from memtrade.errors import InfeasibleBudgetError
from memtrade.graph import StepGraph
from memtrade.plan import Decision
from memtrade.strategies.base import worth_deciding
from memtrade.strategies.deadline import Deadline
from memtrade.strategies.optimal import rules
from memtrade.strategies.optimal.choice import Choice
from memtrade.strategies.optimal.judge import Finished, Judge, Verdict
from memtrade.strategies.optimal.options import Options
from memtrade.strategies.optimal.problem import (
    Problem,
    make_problem,
    moves,
    reference_order,
    savings,
)
from memtrade.strategies.spill import least_bytes
from memtrade.target import Target
from memtrade.units import megabytes

# A plan proven to be within this share of the best is not searched around, unless the graph is so
# small that the search is exhaustive.
ENOUGH = 0.003
FEW_ITEMS = 20
# In a graph of so many, what `checkmate` finds in a second or two, and the plans for least memory
# count, too, where a plan is far from what may be.
MORE_ITEMS, FAR = 80, 0.05
# Once there is a plan, a search of a graph that is not small ends when so many rows of programs
# have been walked.
MOST_ROWS = 600_000
# How many simulated actions one local search may spend: in a graph that is not small, where few of
# all changes can be tried, on those that look best.
SEARCH_ACTIONS, FEWER_ACTIONS = 150_000, 50_000
# Where there are fewer evaluations than these, one is not finished for less than a share of time.
FEW_EVALUATIONS, GAIN = 8, 0.001
# The same, on the way to the programme's choice, and simulations that it may spend in any case.
APPROACHES, APPROACH_ACTIONS = 16, 40_000
# What misses the budget by less than a share once it is spilled is spilled again, so many times.
NEARLY, SPILLS = 0.05, 4
FASTEST = 3  # of them, these are finished
# To finish a program is so many simulations more.
FINISH_COST = 6

log = logging.getLogger(__name__)


class Candidates:
    """The plans of one step for one goal, as they are found.

    Attributes:
        best: the best so far. holed: the best that finds no place in the target's limit, though it
            takes no more than the budget where there is room.
        least_seconds: what no plan of the programme's kind goes below, if known.
        unspilled_bytes: the same of peaks; least_bytes: what no plan of whole tensors goes below.
        chosen: the decisions of the programme's choices so far.
        smallest_bytes: the smallest peak that was found, where memory is minimized.
        leanest: the plan with it.
        beside_bytes: of another step, of which this one is a part, what lies there beside.
    """

    beside_bytes = 0

    def __init__(self, graph: StepGraph, target: Target, options: Options):
        self.graph, self.target, self.options = graph, target, options
        self.budget_bytes, self.minimize = options.budget_for(graph), options.goal
        self.swap, self.tolerance = options.swap, options.tolerance
        self.host_limit_bytes = options.host_limit_bytes
        self.deadline = Deadline(options.time_limit)
        self.judge = Judge(graph, target, self.deadline)
        self.original_seconds = self.judge.times.step_seconds(())
        self.best: Finished | None = None
        self.holed: Finished | None = None
        self.least_seconds: float | None = None
        self.unspilled_bytes: float = math.inf
        self.least_bytes = least_bytes(self.judge.simulator)
        self.leanest: Finished | None = None
        self.chosen: list[Mapping[int, Decision]] = []
        # Up to so many bytes in use, copies may hold memory.
        self._copies_bytes = math.inf

    @cached_property
    def problem(self) -> Problem:
        return self._problem(None)

    @cached_property
    def _ruled(self) -> list[Mapping[int, Decision]]:
        return rules.whatever_budget(self.judge, swap=self.swap)

    @property
    def smallest_bytes(self) -> int | None:
        return None if self.leanest is None else self.leanest.peak_bytes

    @property
    def gap(self) -> float | None:
        """How much better any plan could be, as a share of the best so far."""
        assert self.best is not None
        if self.minimize == "memory":
            least = self.least_bytes if self.swap else self.unspilled_bytes
            best = self.best.peak_bytes
        else:
            least, best = self.least_seconds, self.best.seconds
        if least is None or math.isinf(least):
            return None
        return max(0.0, 1 - least / best)

    @property
    def _good_enough(self) -> bool:
        if self.best is None or self._is_small or self.minimize == "memory":
            return False
        return self.gap is not None and self.gap <= ENOUGH

    @property
    def _is_small(self) -> bool:
        """Whether a search by trial is exhaustive, or nearly so."""
        return len(self.problem.items) <= FEW_ITEMS

    @property
    def _looks_closely(self) -> bool:
        """Whether more is tried, as it takes a second or two and may pay."""
        far = self.best is None or self.gap is None or self.gap > FAR
        return self._is_small or (far and len(self.problem.items) <= MORE_ITEMS)

    @property
    def _is_over(self) -> bool:
        walked = self.judge.simulator.linker.walked
        return self.best is not None and not self._is_small and walked > MOST_ROWS

    @property
    def _limit(self) -> int:
        """The highest peak of a plan that counts as one of the leanest. None that finds no room on
        the target does, where there is one that does."""
        assert self.smallest_bytes is not None
        whole = self.smallest_bytes + self.beside_bytes
        tolerated = int((1 + self.tolerance) * whole) - self.beside_bytes
        room = self.target.limit_bytes
        return min(tolerated, room) if self.smallest_bytes <= room else tolerated

    def _problem(self, decisions: Mapping[int, Decision] | None) -> Problem:
        judge = self.judge
        made = make_problem(judge.simulator, judge.times, reference_order(self.graph, decisions))
        return made if self.swap else made.without_swaps()

    def _extremes(self) -> list[Verdict]:
        """All is kept; all that can be is swapped, late or early, if there is room for it."""
        found = [self.judge.judge({})]
        if self.swap:
            found.append(self.judge.judge(dict.fromkeys(worth_deciding(self.graph), "swap")))
            found.append(rules.early_swaps(self.judge))
        return [each for each in found if each.host_bytes <= self.host_limit_bytes]

    def _by_rules(self, budget: int) -> list[Verdict]:
        more = [rules.for_budget(self.judge, budget)] if self.swap else []
        verdicts = [self.judge.judge(decisions) for decisions in (*self._ruled, *more)]
        return [each for each in verdicts if each.host_bytes <= self.host_limit_bytes]

    def _consider_rules(self, budget: int) -> None:
        if self._is_over:
            return
        for verdict in [*self._extremes(), *self._by_rules(budget), *self._exact(budget)]:
            self._offer_if_faster(verdict, budget)

    def _exact(self, budget: int | None) -> list[Verdict]:
        """The fastest program without swaps, or the leanest: exact in a graph that is small."""
        return rules.exact_program(self.judge, budget) if self._looks_closely else []

    def _offer(self, verdict: Verdict, budget: int) -> Finished | None:
        """The finished plan if it fits; the fastest that does is remembered."""
        if verdict.peak_bytes > budget or verdict.host_bytes > self.host_limit_bytes:
            return None
        finished = self._finish(verdict, budget)
        if finished.peak_bytes > budget:
            faster = self.holed is None or finished.seconds < self.holed.seconds
            if finished.roomy_bytes <= budget and faster:
                self.holed = finished
            return None
        self._note_peak(finished)
        fits = self.minimize == "time" or finished.peak_bytes <= self._limit
        if fits and (self.best is None or finished.seconds < self.best.seconds):
            self._take(finished)
        return finished

    def _within_budget(self, best: Finished) -> Finished:
        """`best`, or where that breaks the budget what would keep it with its holes filled: whoever
        asked may ask for less. Raises InfeasibleBudgetError where there is none."""
        if self.budget_bytes is None or best.peak_bytes <= self.budget_bytes:
            return best
        if self.holed is None:
            raise InfeasibleBudgetError(best.peak_bytes, self.budget_bytes, best.memory.peak_op)
        self.best = self.holed  # whose gap is told
        return self.best

    def _note_peak(self, finished: Finished) -> None:
        """Where memory is minimized, what was best so far may be too much, now."""
        if self.minimize == "time":
            return
        if self.smallest_bytes is None or finished.peak_bytes < self.smallest_bytes:
            self.leanest = finished
            if self.best is not None and self.best.peak_bytes > self._limit:
                self.best = None

    def _offer_if_faster(self, verdict: Verdict, budget: int) -> bool:
        """Whether it is the best now. To finish it takes long, so that comes last."""
        if verdict.peak_bytes > budget:
            return False
        if not self._may_be_faster(verdict) or (
            self.best is not None
            and self.judge.seconds(verdict, self._copies_bytes) >= self.best.seconds
        ):
            return False
        self._offer(verdict, budget)
        return self.best is not None and self.best.verdict is verdict

    def _may_be_faster(self, verdict: Verdict) -> bool:
        return self.best is None or verdict.least_seconds < self.best.seconds

    def _offer_spilled(self, verdicts: Sequence[Verdict], budget: int) -> None:
        """What is fastest once enough has left for a while: that its holes fit the budget, too."""
        limit, low, high = budget, 0, budget
        for _ in range(SPILLS):
            fitted = [(self._fitted(each, limit), each) for each in verdicts]
            fitting = [pair for pair in fitted if pair[0].peak_bytes <= limit]
            fitting = sorted(fitting, key=lambda pair: pair[0].least_seconds)[:FASTEST]
            if not fitting:  # so much cannot leave
                low, limit = limit, (limit + high) // 2
                continue
            found = [self._offer_if_faster(each, budget) for each, _ in fitting]
            fastest, verdicts = fitting[0][0], [each for _, each in fitting]
            if any(found) or not self._may_be_faster(fastest):
                break
            # Holes are what it takes beside: so much more leaves, and some more.
            over = self._finish(fastest, budget).peak_bytes - budget
            if over <= 0:
                break
            high = fastest.peak_bytes
            limit = high - 3 * over // 2
            limit = limit if limit > low else (low + high) // 2
        # Where all leaves that can, there are fewer holes.
        gone = [self._spilled(each, 0) for each in verdicts if self._may_be_faster(each)]
        for each in sorted(gone, key=lambda verdict: verdict.least_seconds)[:FASTEST]:
            self._offer_if_faster(each, budget)

    def _fitted(self, verdict: Verdict, budget: int) -> Verdict:
        """With what rests gone as far as it takes. What comes back may lie about for a moment: then
        so much more leaves."""
        fitted, limit = verdict, budget
        for _ in range(SPILLS):
            over = fitted.peak_bytes - budget
            if over <= 0 or (fitted is not verdict and over > NEARLY * budget):
                break
            limit -= over if fitted is not verdict else 0
            fitted = self._spilled(verdict, limit)
        return fitted

    def _spilled(self, verdict: Verdict, limit_bytes: int) -> Verdict:
        if not self.swap:
            return verdict
        return self.judge.spill(verdict, limit_bytes, self.host_limit_bytes)

    def _finish(self, verdict: Verdict, budget: int) -> Finished:
        return self.judge.finish(verdict, self._copies_bytes, budget)

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
        return f"{100 * (found.seconds / self.original_seconds - 1):+z.1f}% time"

    # Small changes.

    def _approach(self, choice: Choice | None, budget: int) -> None:
        """From the leanest plan towards the programme's choice, as far as the budget goes.

        The programme's choice for next to no room is, as a rule, a little above the budget in many
        places. So as much of it is taken as is faster and fits: all, or else a half of it, a half
        of that.
        """
        if choice is None or self.best is None:
            return
        start, goal = self.best.verdict, choice.decisions
        effort = APPROACHES + APPROACH_ACTIONS // max(1, len(start.actions))
        parts = [[t for t in goal if start.of(t) != goal[t]]]
        current = start
        while parts and effort > 0 and not self._is_over:
            part = parts.pop(0)
            tried = self.judge.judge({**current.decisions, **{t: goal[t] for t in part}})
            fits = tried.peak_bytes <= budget and tried.host_bytes <= self.host_limit_bytes
            effort -= 1
            if fits:
                finished = self.judge.finish_count
                if self._offer_if_faster(tried, budget):
                    current = tried
                    continue
                effort -= FINISH_COST * (self.judge.finish_count - finished)
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[:middle], part[middle:]]

    def _improve(self, budget: int) -> None:
        """For less time, while the finished plan fits the budget."""
        assert self.best is not None
        few = FEW_EVALUATIONS * len(self.best.verdict.actions) > FEWER_ACTIONS
        gain = GAIN if few and not self._is_small else 0.0

        def faster(tried: Verdict, _: Verdict) -> bool:
            assert self.best is not None
            if not self._may_be_faster(tried):
                return False
            fitted = self._fitted(tried, budget)
            worth = fitted.least_seconds < (1 - gain) * self.best.seconds
            return worth and self._offer_if_faster(fitted, budget)

        self._descend(self.best.verdict, faster, faster=True)

    def _shrink(self, verdict: Verdict) -> Verdict:
        """For a smaller peak, and less time at the same."""
        return self._descend(verdict, lambda tried, current: leanness(tried) < leanness(current))

    def _descend(
        self, current: Verdict, better: Callable[[Verdict, Verdict], bool], *, faster: bool = False
    ) -> Verdict:
        """Changes a few decisions at a time, as long as that is better.

        As many as there is effort for: one in a large graph, any number in a tiny one.

        Args:
            faster: in a large graph, only changes to what takes less time in itself.
        """
        items = self.problem.items
        large = not self._is_small
        evaluations = (FEWER_ACTIONS if large else SEARCH_ACTIONS) // max(1, len(current.actions))
        tries = savings(items, current.of) if large and faster else moves(items, evaluations)
        improved = True
        while improved:
            improved = False
            for move in tries:
                changed = [flip for flip in move if current.of(flip[0]) != flip[1]]
                if len(changed) < len(move):
                    continue
                if evaluations <= 0 or self._is_over:
                    return current
                tried = self.judge.judge({**current.decisions, **dict(changed)})
                finished = self.judge.finish_count
                if tried.host_bytes <= self.host_limit_bytes and better(tried, current):
                    current, improved = tried, True
                evaluations -= 1 if self.judge.finish_count == finished else FINISH_COST
        return current


def leanness(found: Verdict | Finished) -> tuple[int, float]:
    seconds = found.most_seconds if isinstance(found, Verdict) else found.seconds
    return found.peak_bytes, seconds
