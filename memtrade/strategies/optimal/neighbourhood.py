"""Plans beside one that was found: a few decisions changed at a time, judged by the simulator."""

from __future__ import annotations

from collections.abc import Callable

from memtrade.strategies.optimal.candidates import Candidates, leanness
from memtrade.strategies.optimal.choice import Choice
from memtrade.strategies.optimal.judge import Verdict
from memtrade.strategies.optimal.problem import moves, savings

# How many simulated actions one local search may spend: in a graph that is not small, where few of
# all changes can be tried, on those that look best.
SEARCH_ACTIONS, FEWER_ACTIONS = 150_000, 50_000
# Where there are fewer evaluations than these, one is not finished for less than a share of time.
FEW_EVALUATIONS, GAIN = 8, 0.001
# The same, on the way to the programme's choice, and simulations that it may spend in any case.
APPROACHES, APPROACH_ACTIONS = 16, 40_000
# To finish a program is so many simulations more.
FINISH_COST = 6


class Neighbourhood(Candidates):
    """How far one gets from a plan by small changes."""

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
        self,
        current: Verdict,
        better: Callable[[Verdict, Verdict], bool],
        *,
        faster: bool = False,
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
