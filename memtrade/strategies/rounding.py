"""Schedules from the linear relaxation of `dag.py`: round, repair, fill.

    round     Checkmate's two phases: hold what the relaxation holds by more than a threshold,
              and run the least that this asks for
    repair    while a stage needs more than the budget: drop what the relaxation holds least of
              there, from where it was made to where it is made again
    fill      what runs again, the dearest first: hold it instead, if the budget allows

The first is the paper's; it overshoots small budgets and leaves room in large ones, which is what
the other two are for. A change touches only the stages between two runs of a node, so each try
costs what those stages cost.
"""

from __future__ import annotations

import numpy as np

from memtrade.strategies.dag import (
    Bits,
    Dag,
    Relaxed,
    Schedule,
    least_runs,
    relax,
    schedule_of,
    stage_peak,
    stage_runs,
)

THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
# Rounds of `fill`, and drops of `repair`; neither is reached but by odd graphs.
ROUNDS = 4
DROPS = 1000


def approximate(dag: Dag, budget: float) -> Schedule | None:
    """A schedule within the budget, or None where none was found."""
    relaxed = relax(dag, budget)
    return round_schedule(dag, relaxed, budget) if relaxed else None


def round_schedule(dag: Dag, relaxed: Relaxed, budget: float) -> Schedule | None:
    """The cheapest schedule within the budget that the thresholds lead to, or None."""
    bound = relaxed.bound if relaxed.budget >= budget else -np.inf
    found: list[Schedule] = []
    for threshold in THRESHOLDS:
        draft = _Draft(dag, relaxed.held, threshold, budget)
        if draft.repair():
            draft.fill()
            found.append(schedule_of(dag, draft.held, bound=bound))
    fitting = [each for each in found if each.peak <= budget and _is_legal(dag, each)]
    return min(fitting, key=lambda each: (each.cost, each.peak), default=None)


def _is_legal(dag: Dag, schedule: Schedule) -> bool:
    """Whether nothing runs again that must not."""
    again = schedule.runs.sum(axis=0) > 1
    return not (again & np.array(dag.once)).any()


class _Draft:
    """A schedule that is being changed: `held`, with what runs and the peak of each stage."""

    def __init__(self, dag: Dag, wish: np.ndarray, threshold: float, budget: float):
        self.dag, self.wish, self.budget = dag, wish, budget
        self.held: Bits = schedule_of(dag, wish > threshold).held.copy()
        self.runs = least_runs(dag, self.held)
        self.peaks = [stage_peak(dag, self.held, t, self.runs[t]) for t in range(len(dag))]
        self.costs = np.array(dag.costs)

    def repair(self) -> bool:
        """Whether all stages came to fit."""
        for _ in range(DROPS):
            worst = max(range(len(self.dag)), key=lambda t: self.peaks[t])
            if self.peaks[worst] <= self.budget:
                return True
            # What is held into the stage, or what is held from it on.
            if not any(self._drop_one(t) for t in (worst, worst + 1) if t < len(self.dag)):
                return False
        return False

    def _drop_one(self, t: int) -> bool:
        """Drops something that is held into stage `t`, so that less exceeds the budget."""
        candidates = [i for i in np.flatnonzero(self.held[t]).tolist() if not self.dag.once[i]]
        candidates.sort(key=lambda i: (self.wish[t, i], -self.dag.sizes[i], i))
        return any(self._change(i, *self._stretch(t, i), hold=False) for i in candidates)

    def _stretch(self, t: int, i: int) -> tuple[int, int]:
        """The first and the last stage into which node i is held without a break, around `t`."""
        first = last = t
        while self.held[first - 1, i] and not self.runs[first - 1, i]:
            first -= 1
        while last + 1 < len(self.dag) and self.held[last + 1, i] and not self.runs[last, i]:
            last += 1
        return first, last

    def fill(self) -> None:
        for _ in range(ROUNDS):
            again = [(t, i) for t, i in np.argwhere(self.runs).tolist() if i < t]
            again.sort(key=lambda each: (-self.costs[each[1]], each))
            changed = [self._hold_instead(t, i) for t, i in again]
            if not any(changed):
                return

    def _hold_instead(self, t: int, i: int) -> bool:
        """Holds node i from its last run to stage `t` if it runs there and that is cheaper."""
        if not self.runs[t, i]:
            return False
        before = int(np.flatnonzero(self.runs[:t, i])[-1])
        return self._change(i, before + 1, t, hold=True)

    def _change(self, i: int, first: int, last: int, *, hold: bool) -> bool:
        """Holds or drops node i into the stages from `first` to `last`, if that is progress."""
        old = self.held[first : last + 1, i].copy()
        self.held[first : last + 1, i] = hold
        stages = range(first - 1, last + 1)
        runs = [stage_runs(self.dag, self.held, t) for t in stages]
        peaks = [
            stage_peak(self.dag, self.held, t, row) for t, row in zip(stages, runs, strict=True)
        ]
        if self._is_progress(stages, runs, peaks, hold=hold):
            self.runs[first - 1 : last + 1] = runs
            self.peaks[first - 1 : last + 1] = peaks
            return True
        self.held[first : last + 1, i] = old
        return False

    def _is_progress(
        self, stages: range, runs: list[Bits], peaks: list[float], *, hold: bool
    ) -> bool:
        if hold:
            now = self.runs[stages.start : stages.stop]
            cheaper = self._cost(np.array(runs)) < self._cost(now)
            return cheaper and max(peaks) <= self.budget
        once = np.array(self.dag.once)
        if any((row[:t] & once[:t]).any() for t, row in zip(stages, runs, strict=True)):
            return False
        return self._excess(peaks) < self._excess(self.peaks[stages.start : stages.stop])

    def _cost(self, runs: np.ndarray) -> float:
        # Rounded, so that another order of the same sum is no progress.
        return round(float((runs @ self.costs).sum()), 12)

    def _excess(self, peaks: list[float]) -> float:
        return sum(max(0.0, peak - self.budget) for peak in peaks)
