"""The search: solve the choice, judge it exactly, correct the budget, improve what was found.

    reference order -> problem -> programme --budget--> choice -> lower -> exact simulator
                                      ^                                        |
                                      '------- budget less the excess ---------'

The simulator has the last word, and corrects the programme (corrections.py). Next to the smallest
peak, what is found where memory is minimized counts for a budget, too: a peak that was shown is a
budget that is taken.
"""

import logging
import math
import sys
from dataclasses import replace

from memtrade.graph import StepGraph
from memtrade.strategies.base import kept_for_last
from memtrade.strategies.deadline import CancelledError, Deadline
from memtrade.strategies.optimal.blocks import folded
from memtrade.strategies.optimal.candidates import FAR, MOST_ROWS, leanness
from memtrade.strategies.optimal.choice import MOSTLY
from memtrade.strategies.optimal.corrections import SPARE, Corrections
from memtrade.strategies.optimal.judge import Finished, Verdict
from memtrade.strategies.optimal.options import Options
from memtrade.strategies.optimal.problem import MB
from memtrade.target import Target
from memtrade.units import megabytes

# Padding below this share is not worth to finish a plan for.
LITTLE = 0.001
# For the smallest peak, the order of the plan that came out is taken up so often.
ORDERS = 3
# A step is solved by its blocks where what differs is no more than this share of it, and where so
# many of its programs have more rows than are walked.
WORTH, PROGRAMS = 0.5, 50
DESCENTS = 3  # with a limit that follows the smallest peak
LEANEST = 3  # choices with the smallest peaks that are finished
HOPELESS = 4  # times the smallest peak of a large step's programs: not spilled to a smaller one
# A peak so close to what none is below is lean enough: one that another strategy might miss by a
# few bytes, and where plans may be a little above it anyway.
LEAN, NEARLY_LEAN = 0.0002, 0.005
# Of the programme's smallest peak, which is some percent off, what a limit may lack for a choice to
# fit as it is.
LACKING = 0.02
# Choices for so much more than the budget are spilled to it.
ROOMS = (1.0, 1.1, 1.25, 1.5, 2.0)
# What is found where memory is minimized may be so much above, or below, what is foreseen of it.
PADDED = 0.01
# Up to these shares of the budget, copies of its plan hold memory: the first that holes allow.
COPIES = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9)

log = logging.getLogger(__name__)


@kept_for_last
def _known_smallest(graph: StepGraph, target: Target) -> dict[Options, tuple[Finished, Finished]]:
    """What was found where memory is minimized: all budgets next to the smallest peak ask for
    it."""
    return {}


class Search(Corrections):
    """The best plan of one step for one goal.

    Attributes:
        cancelled: whether the deadline ended the search.
        looks_far: whether the smallest peak is looked for where nothing fits the budget at first.
        left_out: how many blocks have the choices of others that are alike.
    """

    cancelled = False
    left_out = 0
    looks_far = True

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
        return self._within_budget(self.best or self._without_search())

    def programmed_bytes(self) -> float:
        """The programme's own smallest peak, which nothing has corrected."""
        return self._chooser(self.problem, "memory").least_peak_mb() * MB

    # The two goals.

    def _fastest(self, budget: int) -> None:
        everything = self.judge.judge({})
        if self._offer(everything, budget):
            self.least_seconds = self.original_seconds  # nothing is faster than to do no more
            return
        self._solve(budget)
        if not self._good_enough:
            self._consider_rules(budget)
        if self.best is None and self.looks_far:
            self._say(f"no plan found within {megabytes(budget)} MB: looking for the smallest")
            self._find_leanest()
        if self.looks_far and self._is_next_to_smallest(budget):
            self._consider_smallest(budget)
        if not self._good_enough and self.best is not None and self.best.peak_bytes <= budget:
            if self.gap is None or self.gap > FAR:
                self._solve_waiting(budget)
            self._spill_choices(budget)
            self._improve(budget)

    def _is_next_to_smallest(self, budget: int) -> bool:
        """Whether a plan for least memory may fit the budget, and be faster than what does."""
        if self._good_enough or self.best is None:
            return False
        if self.best.peak_bytes > budget:
            needed = (1 + PADDED) * budget, self.best.peak_bytes / (1 + PADDED)
            return self.best.verdict.peak_bytes <= max(needed)
        if self._looks_closely:
            return True
        self.unspilled_bytes = min(self.programmed_bytes(), self.unspilled_bytes)
        return budget <= (1 + PADDED + self.tolerance) * self.unspilled_bytes

    def _consider_smallest(self, budget: int) -> None:
        """What is found where memory is minimized: the fastest plan next to the smallest peak, and
        where that does not fit, the smallest peak's own."""
        for tolerance in sorted({self.tolerance, 0.0}, reverse=True):
            options = replace(self.options, budget="", minimize="memory", tolerance=tolerance)
            both = self._find_smallest(options)
            for found in both:
                self._consider(found, budget)
            self.deadline.check()
            if both[0].peak_bytes <= budget:
                break

    def _find_smallest(self, options: Options) -> tuple[Finished, Finished]:
        """The best and the leanest plan of a search of its own, kept where nothing ended it."""
        known = _known_smallest(self.graph, self.target)
        found = known.get(options)
        if found is None:
            search = Search(self.graph, self.target, options)
            search.deadline = search.judge.deadline = self.deadline
            best = search.run()
            found = (best, search.leanest or best)
            if not search.cancelled:
                known[options] = found
        return found

    def _consider(self, found: Finished, budget: int) -> None:
        """A finished plan of another search, and its choice with other copies beside compute."""
        assert self.best is not None
        best = min(self.best, found, key=lambda one: (max(one.peak_bytes, budget), one.seconds))
        if best is not self.best:
            self._take(best)
        if self.target.copies_in_line or found.verdict.peak_bytes > budget:
            return
        for share in COPIES:
            if self.judge.seconds(found.verdict, share * budget) >= self.best.seconds:
                break
            faster = self.judge.finish(found.verdict, share * budget, budget)
            if faster.peak_bytes <= budget and faster.seconds < self.best.seconds:
                self._take(faster)
                break

    def _smallest(self) -> None:
        if self._smallest_by_blocks():
            return
        self._find_leanest()
        for _ in range(DESCENTS):
            before = self.smallest_bytes
            self._solve_waiting(self._wider)
            if self.smallest_bytes == before or self._is_over:
                break
        self._spill_choices(self._wider)
        if self._is_small:
            self._consider_rules(self._limit)
        self._improve(self._limit)

    @property
    def _wider(self) -> int:
        """Up to so many bytes, a choice may come out as one of the leanest once it is finished."""
        assert self.smallest_bytes is not None
        return max(self._limit, int((1 + PADDED) * self.smallest_bytes))

    def _smallest_by_blocks(self) -> bool:
        """What is found for a step in which each kind of block stands only a few times, taken for
        the whole one: whether it does as well there.

        With room on the host: then no block's choice hangs on how many there are.
        """
        everything = self.graph.bytes_of(self.graph.activations)
        has_room = self.swap and self.host_limit_bytes >= everything
        if not has_room or PROGRAMS * len(self.graph.ops) < MOST_ROWS:
            return False
        small = folded(self.graph)
        if small is None or len(small.graph.ops) > WORTH * len(self.graph.ops):
            return False
        self._say(f"{small.blocks} blocks are as others")
        options = replace(self.options, budget="", minimize="memory", host_memory_limit="")
        search = Search(small.graph, self.target.replace(places=None), options)
        search.deadline = search.judge.deadline = self.deadline
        search.beside_bytes = self.judge.simulator.laid_bytes - search.judge.simulator.laid_bytes
        search.run()
        if search.cancelled or search.leanest is None or search.best is None:
            raise CancelledError
        both = [search.leanest.verdict, search.best.verdict]
        tried = [self.judge.judge(small.unfolded(each.decisions)) for each in both]
        self._finish_leanest([self._spilled(tried[0], 0)])
        assert self.best is not None
        promised = search.leanest.peak_bytes + search.beside_bytes
        if self.best.peak_bytes > (1 + NEARLY_LEAN) * promised:
            return False
        self._copies_bytes = self._limit
        for verdict in filter(self._may_be_faster, tried):
            self._offer_if_faster(self._fitted(verdict, self._limit), self._limit)
        self.left_out = small.blocks
        return True

    def _solve_waiting(self, limit: int) -> None:
        """Next to the smallest peak, there is no room for copies on their way: they are waited for,
        and then put off as far as the limit allows."""
        chooser = self._chooser(self.problem, "time", awaited=True)
        if limit < self.unspilled_bytes < math.inf:  # the rest is done by copies that it lacks
            self._correct_everywhere(chooser, limit - self.unspilled_bytes)
        self._copies_bytes = 0
        choice = self._choose(chooser, limit, rough=MOSTLY)
        if limit < (1 - LACKING) * self.unspilled_bytes < math.inf:
            self._copies_bytes = limit
            return  # no choice fits as it is
        self._approach(choice, limit)
        self._copies_bytes = limit
        if self._is_small:
            self._solve_from(chooser, limit)
        else:
            self._corrected(chooser, limit, rough=True)

    def _spill_choices(self, budget: int) -> None:
        """What was chosen for the budget, or for more, may fit with a few copies more. The fastest
        first: where that fits, the others need not be finished."""
        chooser, least = self._chooser(self.problem, "time", awaited=True), budget
        if budget < self.unspilled_bytes < math.inf:  # the programme has no choice for so little
            self._choose(self._chooser(self.problem, "memory"))
            least = int((1 + 2 * SPARE) * self.unspilled_bytes)
        for room in ROOMS:
            self._choose(chooser, int(room * least), rough=MOSTLY)
        self._offer_spilled([*map(self.judge.judge, self.chosen)], budget)

    def _without_search(self) -> Finished:
        """Of keeping and swapping everything, the better one: there must be some plan."""
        self.judge.deadline = Deadline(math.inf)
        budget = self.budget_bytes or 0
        both = [self.judge.finish(each, 0, budget) for each in self._extremes()]
        self.best = min(both, key=lambda each: (max(each.peak_bytes, budget), each.seconds))
        return self.best

    # Their parts.

    def _find_leanest(self) -> Finished:
        """The smallest peak of a finished plan, which is remembered.

        Solved, then again with the order of the plan that came out; then local search. Small
        tensors, which the programme leaves alone, count where everything else is gone: to swap
        all is tried, too.
        """
        tried = self._extremes()
        problem = self.problem
        for _ in range(ORDERS):
            chooser = self._chooser(problem, "memory")
            # As a rule, swapping all is as lean as can be where copies do not cost much.
            self.unspilled_bytes = min(chooser.least_peak_mb() * MB, self.unspilled_bytes)
            if self._lean_enough(min(verdict.peak_bytes for verdict in tried)):
                break
            choice = self._choose(chooser)
            if choice is None:
                break
            tried.append(self.judge.judge(choice.decisions))
            before = min(verdict.peak_bytes for verdict in tried[:-1])
            if tried[-1].peak_bytes >= before or self._lean_enough(tried[-1].peak_bytes):
                break
            problem = self._problem(choice.decisions)
        tried.sort(key=leanness)
        most_bytes = math.inf if self._is_small else HOPELESS * tried[0].peak_bytes
        tried += [self._spilled(v, 0) for v in tried[:LEANEST] if v.peak_bytes <= most_bytes]
        self._finish_leanest(tried)
        assert self.best is not None
        if not self._lean_enough(self.best.peak_bytes):
            tried += self._by_rules(0)
            tried += map(self._shrink, sorted(tried, key=leanness)[:2])
            if self._is_small:
                tried += self._exact(None)
            self._finish_leanest(tried)
            if self._is_small:
                self._descend(self.best.verdict, self._is_leaner_finished)
        return self.best

    def _finish_leanest(self, tried: list[Verdict]) -> None:
        for verdict in sorted(tried, key=leanness)[:LEANEST]:
            self._finish_if_leaner(verdict)

    def _may_be_leaner(self, verdict: Verdict, best: Finished) -> bool:
        """No plan needs less than its judged program; and one that needs as much as the best, and
        is no faster, has nothing to gain where next to nothing is padded."""
        needs_less = verdict.peak_bytes < best.verdict.peak_bytes
        faster = verdict.least_seconds < best.seconds
        padded = best.peak_bytes > (1 + LITTLE) * best.verdict.peak_bytes
        return verdict.peak_bytes < best.peak_bytes and (needs_less or faster or padded)

    def _finish_if_leaner(self, verdict: Verdict) -> bool:
        most_bytes = sys.maxsize
        if self.best is not None:  # which one that is slower and as lean is not better than
            if not self._may_be_leaner(verdict, self.best):
                return False
            slower = verdict.least_seconds >= self.best.seconds
            most_bytes = self.best.peak_bytes - slower
        finished = self.judge.finish(verdict, 0, most_bytes=most_bytes)
        leaner = self.best is None or leanness(finished) < leanness(self.best)
        if leaner:
            self.leanest = finished
            self._take(finished)
        return leaner

    def _lean_enough(self, peak_bytes: int) -> bool:
        """Whether it is no use to look for a smaller peak."""
        share = max(LEAN, min(self.tolerance / 2, NEARLY_LEAN))
        enough = min((1 + share) * self.unspilled_bytes, self.budget_bytes or math.inf)
        return peak_bytes <= enough and not self._is_small

    def _is_leaner_finished(self, tried: Verdict, _: Verdict) -> bool:
        assert self.best is not None
        if tried.peak_bytes >= self.best.peak_bytes:  # which may be one that is spilled
            tried = self._spilled(tried, 0)
        return self._finish_if_leaner(tried)

    def _solve(self, budget: int) -> None:
        """At first, copies beside compute are as early and as late as they like, and what memory
        they take corrects the programme; then the budget, less what padding takes, holds them."""
        chooser = self._chooser(self.problem, "time")
        first = self._choose(chooser, budget, rough=MOSTLY)
        if first is None:
            return
        # Later ones, with corrections, prove less.
        self.least_seconds = self.original_seconds + first.bound
        fits = self._solve_from(chooser, budget)
        if not fits and not self.target.copies_in_line:
            self._copies_bytes = budget
            self._solve_from(self._chooser(self.problem, "time"), budget)
        if not self._good_enough:
            self._approach(first, budget)
