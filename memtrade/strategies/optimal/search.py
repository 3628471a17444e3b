"""The search: solve the choice, judge it exactly, correct the budget, improve what was found.

    reference order -> problem -> programme --budget--> choice -> lower -> exact simulator
                                      ^                                        |
                                      '------- budget less the excess ---------'

The programme's memory is a sum per interval and leaves a little out: what a recomputation holds
while it runs, the allocator's padding, an order that shifts with the decisions. The simulator has
the last word, and what it finds over (or far under) the budget corrects the programme's.

How far it goes is counted: solutions, nodes, simulated actions. A deadline cancels, at any moment.
"""

import logging
import math
import sys
from dataclasses import replace
from typing import Literal

from memtrade.strategies.deadline import CancelledError, Deadline
from memtrade.strategies.optimal.blocks import folded
from memtrade.strategies.optimal.candidates import FAR, MOST_ROWS, Candidates, leanness
from memtrade.strategies.optimal.choice import MOSTLY, WHOLE, Choice, Chooser
from memtrade.strategies.optimal.judge import Finished, Verdict
from memtrade.strategies.optimal.problem import MB, Problem
from memtrade.units import megabytes

# The programme is corrected and solved anew at most so many times, with this much to spare.
ROUNDS = 5
SPARE = 0.001
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
# Of host memory, the programme takes so much; the rest is for what is spilled. Where it took all,
# ResNet-50 at batch 656 needed 7,613 MB with 11 GB of host memory, and 7,548 now.
PROGRAMMED = 0.9
# Choices for so much more than the budget are spilled to it.
ROOMS = (1.0, 1.1, 1.25, 1.5, 2.0)
# Of the budget, what is taken off at once for padding.
PADDING = 0.02
# And the least, else it would creep.
LEAST_STEP = 0.005
# A choice is close enough below the budget with so much of it left; else this share of what is left
# is tried, too.
CLOSE = 0.01
CAUTION = 0.7

log = logging.getLogger(__name__)


class Search(Candidates):
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
        if not self._good_enough and self.best is not None and self.best.peak_bytes <= budget:
            if self.gap is None or self.gap > FAR:
                self._solve_waiting(budget)
            self._spill_choices(budget)
            self._improve(budget)

    def _smallest(self) -> None:
        if self._smallest_by_blocks():
            return
        self._find_leanest()
        for _ in range(DESCENTS):
            before = self.smallest_bytes
            self._solve_waiting(self._limit)
            if self.smallest_bytes == before or self._is_over:
                break
        self._spill_choices(self._limit)
        if self._is_small:
            self._consider_rules(self._limit)
        self._improve(self._limit)

    def _smallest_by_blocks(self) -> bool:
        """What is found for a step in which each kind of block stands only a few times, taken for
        the whole one: whether it does as well there.

        With room on the host: then no block's choice hangs on how many there are.
        """
        everything = sum(self.graph.tensors[t].size_bytes for t in self.graph.activations)
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

    def _chooser(
        self, problem: Problem, minimize: Literal["time", "memory"], *, awaited: bool = False
    ) -> Chooser:
        return Chooser(
            problem,
            self.target.device,
            minimize=minimize,
            host_limit_mb=(1.0 if self._is_small else PROGRAMMED) * self.host_limit_bytes / MB,
            deadline=self.deadline,
            awaited=awaited,
        )

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
            if self.best is None or self._may_be_leaner(verdict, self.best):
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
            slower = verdict.least_seconds >= self.best.seconds
            most_bytes = self.best.peak_bytes - slower
        return self._take_if_leaner(self.judge.finish(verdict, 0, most_bytes=most_bytes))

    def _lean_enough(self, peak_bytes: int) -> bool:
        """Whether it is no use to look for a smaller peak."""
        share = max(LEAN, min(self.tolerance / 2, NEARLY_LEAN))
        enough = min((1 + share) * self.unspilled_bytes, self.budget_bytes or math.inf)
        return peak_bytes <= enough and not self._is_small

    def _is_leaner_finished(self, tried: Verdict, _: Verdict) -> bool:
        assert self.best is not None
        return tried.peak_bytes < self.best.peak_bytes and self._finish_if_leaner(tried)

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

    def _solve_from(self, chooser: Chooser, budget: int) -> bool:
        """Choices for the budget; what the simulator finds above it corrects the programme. Rough
        ones lead to corrections that do, and are good enough now and then.

        Returns whether one fits.
        """
        fits = self._corrected(chooser, budget, rough=True)
        if self._good_enough:
            return fits
        return self._corrected(chooser, budget, rough=False) or fits

    def _corrected(self, chooser: Chooser, budget: int, *, rough: bool) -> bool:
        loosened, excess_bytes, everywhere = False, 0.0, 0
        # Beside compute, copies hold memory that the programme knows nothing of, and corrections
        # for what rounding adds would come on top.
        in_line = self.target.copies_in_line and self.minimize == "time"
        rounding = MOSTLY if in_line else WHOLE
        for turn in range(ROUNDS):
            if self._is_over:
                break
            choice = self._choose(chooser, budget, rough=rounding if rough or loosened else 0.0)
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
                if rough:
                    return True
            elif loosened:
                return True
            else:
                excess_bytes = self._correct(chooser, verdict, budget, turn + 1, everywhere + 1)
                everywhere += excess_bytes > 0
        return loosened

    def _choose(
        self, chooser: Chooser, budget: int | None = None, *, rough: float = 0.0
    ) -> Choice | None:
        self._say("solving")
        spare = SPARE if self.minimize == "time" else 0.0
        choice = chooser.choose(
            math.inf if budget is None else (1 - spare) * budget / MB, rough=rough
        )
        if choice is not None:
            if choice.decisions not in self.chosen:
                self.chosen.append(choice.decisions)
            added = 100 * choice.seconds / self.original_seconds
            log.debug("%s: +%.1f%% time, %.0f MB", self.graph.name, added, choice.mb)
        return choice

    def _correct(
        self, chooser: Chooser, verdict: Verdict, budget: int, weight: int, everywhere: int
    ) -> float:
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
        finished = self._finish(verdict, budget)
        # Where more is asked for than there is, nobody has looked for reservations yet; and what is
        # padded here need not be in the next choice.
        asked, padding = finished.live_bytes - budget, finished.peak_bytes - budget
        excess_bytes = asked if asked > 0 else everywhere * min(padding, PADDING * budget)
        excess_bytes = max(excess_bytes, LEAST_STEP * budget)
        self._correct_everywhere(chooser, excess_bytes)
        return excess_bytes

    def _correct_everywhere(self, chooser: Chooser, excess_bytes: float) -> None:
        log.debug("%.1f MB over the budget", excess_bytes / MB)
        self._copies_bytes = max(0.0, self._copies_bytes - excess_bytes)
        chooser.correct(dict.fromkeys(self.problem.place.values(), excess_bytes / MB))
