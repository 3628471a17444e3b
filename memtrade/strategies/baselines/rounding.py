"""Schedules from the linear relaxation of `dag.py`: round, repair, fill.

    round     Checkmate's two phases: hold what the relaxation holds by more than a threshold,
              and run the least that this asks for
    repair    while a stage needs more than the budget: drop what the relaxation holds least of
              there, from where it was made to where it is made again
    fill      what runs again, the dearest first: hold it instead, if the budget allows

The first is the paper's; it overshoots small budgets and leaves room in large ones, which is what
the other two are for. A change holds or drops one output between two stages that touch it (run its
node, or read it): those two stages are worked out anew, and between them only the peaks move.
"""

import numpy as np

from memtrade.strategies.baselines.dag import (
    Bits,
    Dag,
    Recomputation,
    Relaxed,
    least_runs,
    schedule_of,
    stage_peak,
    stage_runs,
)
from memtrade.strategies.milp import Floats

THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
# Rounds of `fill`, and drops of `repair`; neither is reached but by odd graphs.
ROUNDS = 4
DROPS = 1000


def round_schedule(dag: Dag, relaxed: Relaxed, budget: float) -> Recomputation | None:
    """The cheapest schedule within the budget that the thresholds lead to, or None."""
    bound = relaxed.bound if relaxed.budget >= budget else -np.inf
    found: list[Recomputation] = []
    for threshold in THRESHOLDS:
        draft = _Draft(dag, relaxed.held, threshold, budget)
        if draft.repair():
            draft.fill()
            found.append(schedule_of(dag, draft.held, bound=bound))
    fitting = [each for each in found if each.peak <= budget and _is_legal(dag, each)]
    return min(fitting, key=lambda each: (each.cost, each.peak), default=None)


def _is_legal(dag: Dag, schedule: Recomputation) -> bool:
    """Whether nothing runs again that must not."""
    again = schedule.runs.sum(axis=0) > 1
    return not (again & dag.once).any()


class _Draft:
    """A schedule that is being changed: `held`, with what runs and the peak of each stage."""

    def __init__(self, dag: Dag, wish: Floats, threshold: float, budget: float):
        self.dag, self.wish, self.budget = dag, wish, budget
        self.readers = dag.readers
        self.held: Bits = schedule_of(dag, wish > threshold).held.copy()
        self.runs = least_runs(dag, self.held)
        self.peaks = np.array(
            [stage_peak(dag, self.held, t, self.runs[t]) for t in range(len(dag))], float
        )

    def repair(self) -> bool:
        """Whether all stages came to fit."""
        for _ in range(DROPS):
            worst = int(self.peaks.argmax())
            if self.peaks[worst] <= self.budget:
                return True
            # What is held into the stage, or what is held from it on.
            if not any(self._drop_one(t) for t in (worst, worst + 1) if t < len(self.dag)):
                return False
        return False

    def _drop_one(self, t: int) -> bool:
        """Drops something that is held into stage `t`, so that less exceeds the budget."""
        candidates: list[int] = np.flatnonzero(self.held[t] & ~self.dag.once).tolist()
        candidates.sort(key=lambda i: (self.wish[t, i], -self.dag.sizes[i], i))
        return any(self._change(i, *self._gap(t, i), hold=False) for i in candidates)

    def _gap(self, t: int, i: int) -> tuple[int, int]:
        """The stages around `t` into which node i is held, from behind one that touches it to the
        next one that does, or to where it goes unread."""
        first = last = t
        while not self._touches(first - 1, i):
            first -= 1
        while not self._touches(last, i) and last + 1 < len(self.dag) and self.held[last + 1, i]:
            last += 1
        return first, last

    def _touches(self, t: int, i: int) -> bool:
        return bool(self.runs[t, i] or self.runs[t, self.readers[i]].any())

    def fill(self) -> None:
        for _ in range(ROUNDS):
            again = [(t, i) for t, i in np.argwhere(self.runs).tolist() if i < t]
            again.sort(key=lambda each: (-self.dag.costs[each[1]], each))
            changed = [self._hold_instead(t, i) for t, i in again]
            if not any(changed):
                return

    def _hold_instead(self, t: int, i: int) -> bool:
        """Holds node i into stage `t`, from the last one that touches it, if it runs there and
        that is cheaper."""
        if not self.runs[t, i]:
            return False
        before = int(np.flatnonzero(self.runs[:t, i])[-1])
        return self._change(i, before + 1, t, hold=True)

    def _change(self, i: int, first: int, last: int, *, hold: bool) -> bool:
        """Holds or drops node i into the stages from `first` to `last`, if that is progress. Of
        these, only the last one touches it."""
        between = self.peaks[first:last] + (self.dag.sizes[i] if hold else -self.dag.sizes[i])
        if hold and between.max(initial=0.0) > self.budget:
            return False
        self.held[first : last + 1, i] = hold
        ends = (first - 1, last)
        runs = np.array([stage_runs(self.dag, self.held, t) for t in ends])
        peaks = [stage_peak(self.dag, self.held, t, row) for t, row in zip(ends, runs, strict=True)]
        after = np.array([peaks[0], *between, peaks[1]])
        if hold:
            cheaper = self._cost(runs) < self._cost(self.runs[list(ends)])
            progress = cheaper and after.max() <= self.budget
        else:
            legal = not any(
                (row[:t] & self.dag.once[:t]).any() for t, row in zip(ends, runs, strict=True)
            )
            progress = legal and self._excess(after) < self._excess(
                self.peaks[first - 1 : last + 1]
            )
        if progress:
            self.runs[list(ends)] = runs
            self.peaks[first - 1 : last + 1] = after
        else:
            self.held[first : last + 1, i] = not hold
        return progress

    def _cost(self, runs: Bits) -> float:
        # Rounded, so that another order of the same sum is no progress.
        return round(float((runs @ self.dag.costs).sum()), 12)

    def _excess(self, peaks: Floats) -> float:
        return float(np.maximum(peaks - self.budget, 0.0).sum())
