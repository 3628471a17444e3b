"""The programme's choices, and what corrects it.

Its memory is a sum per interval and leaves a little out: what a recomputation holds while it runs,
the allocator's padding, an order that shifts with the decisions. What the simulator finds over (or
far under) the budget is added to the programme's own figures, and it is solved again.
"""

import logging
import math
from typing import Literal

from memtrade.strategies.optimal.candidates import Candidates
from memtrade.strategies.optimal.choice import MOSTLY, WHOLE, Choice, Chooser
from memtrade.strategies.optimal.judge import Verdict
from memtrade.strategies.optimal.problem import MB, Problem

# The programme is corrected and solved anew at most so many times, with this much to spare.
ROUNDS = 5
SPARE = 0.001
# Of host memory, the programme takes so much; the rest is for what is spilled. Where it took all,
# ResNet-50 at batch 656 needed 7,613 MB with 11 GB of host memory, and 7,548 now.
PROGRAMMED = 0.9
# Of the budget, what is taken off at once for padding.
PADDING = 0.02
# And the least, else it would creep.
LEAST_STEP = 0.005
# A choice is close enough below the budget with so much of it left; else this share of what is left
# is tried, too.
CLOSE = 0.01
CAUTION = 0.7

log = logging.getLogger(__name__)


class Corrections(Candidates):
    """Choices for a budget, each offered as a candidate."""

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
        asked = finished.memory.live_peak_bytes - budget
        padding = finished.peak_bytes - budget
        excess_bytes = asked if asked > 0 else everywhere * min(padding, PADDING * budget)
        excess_bytes = max(excess_bytes, LEAST_STEP * budget)
        self._correct_everywhere(chooser, excess_bytes)
        return excess_bytes

    def _correct_everywhere(self, chooser: Chooser, excess_bytes: float) -> None:
        log.debug("%.1f MB over the budget", excess_bytes / MB)
        self._copies_bytes = max(0.0, self._copies_bytes - excess_bytes)
        chooser.correct(dict.fromkeys(self.problem.place.values(), excess_bytes / MB))
