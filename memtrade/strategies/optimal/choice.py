"""The choice as a mixed-integer programme, for HiGHS.

For each item i there are three columns: keep_i and swap_i, and again_o for its op o, which runs
again in the backward part. What the backward part reads must come from somewhere:

    keep_i + swap_i + again_o >= 1
    keep_n + swap_n + again_n >= again_o          for what the op reads

An item is in memory from its first backward reader to its last, whatever was chosen. Before that,
present_{i,a} says so for backward interval a: because it is kept, or because an item that is made
from it was recomputed earlier (with it comes all that it is made from, back to what is there):

    present_{i,a} >= keep_i
    present_{i,a} >= present_{i,a-1}
    present_{n,a} >= present_{i,a} - keep_i - swap_i       for n read by i's op

Only in a window of WINDOW intervals before the first use; farther ahead an item is either kept or
absent, which costs a little freedom and makes the rows linear in the items. With these, memory in
interval a is a sum: all else, kept items whose window lies ahead, and what is present.

Where copies run beside compute, backlogs link them to the clock. In the forward part, and on into
the backward part, out_p is what has been handed to the copy-out channel and still holds memory;
in_a is what must have been copied in by the end of interval a for what follows; compute may stall
for either:

    out_p >= out_{p-1} + sizes of the swapped items made at p - rate x (seconds since p-1 + stall_p)
    out_p <= rate x (seconds and stalls until i is read again - its copy in)   for swapped items i
    in_{a-1} >= in_a + sizes of the swapped items first needed in a - rate x (seconds + stall_a)

The objective is time: ops that run again, copies where they are in line with compute, and stalls.
Where it is memory, every copy is waited for, so they are in line on all devices.

This is Checkmate's formulation (Jain et al., MLSys 2020) cut down to what plans of this tool do: a
tensor is recomputed once, the backward order is given, and its stages are intervals.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from memtrade.devices import Device
from memtrade.plan import Decision
from memtrade.strategies.deadline import Deadline
from memtrade.strategies.milp import Milp, NearRelaxation, Solution
from memtrade.strategies.optimal.problem import MB, Problem

# Backward intervals before an item's first use in which a recomputation may bring it back. Longer
# windows let one recomputation span more; about the same number of columns for every graph.
COLUMNS = 10_000
SHORTEST_WINDOW, LONGEST_WINDOW = 12, 24
# A solution is good enough within this share of what the best choice adds, or of the step's time.
GAP = 0.02
STEP_GAP = 0.002
# Or, where memory is minimized, within this share of the peak.
PEAK_GAP = 0.005
# With backlogs, large programmes take long beyond the first rounding, and gain little.
FEW_ITEMS = 60
# Of a relaxation's item, what share is kept for it to be kept: nearly all, or most.
WHOLE, MOSTLY = 0.999, 0.5
# Of solutions that take the same time, the one that moves and holds less: ms per MB.
TIE = 1e-6
# Where memory is minimized, a longer step counts too, lest it become absurd: twice the time weighs
# as much as this share of the activations.
STEP_SHARE = 0.002


@dataclass(frozen=True)
class Choice:
    """A solution.

    Attributes:
        decisions: tensor id -> decision, for every item.
        mb: the model's peak. seconds: what the choice adds to the step.
        bound: no choice of the model has less of what was minimized, in seconds added or MB of
            peak; minus infinity where nothing was proven.
    """

    decisions: dict[int, Decision]
    mb: float
    seconds: float
    bound: float


class Chooser:
    """The programme of one problem on one device: columns, rows, and solutions for budgets.

    Args:
        minimize: time within a budget, or the peak.
        host_limit_mb: most host memory for swapped items.
        awaited: whether every copy is waited for, also where it could run beside compute.
    """

    def __init__(
        self,
        problem: Problem,
        device: Device,
        *,
        minimize: Literal["time", "memory"],
        host_limit_mb: float,
        deadline: Deadline,
        awaited: bool = False,
    ):
        self.problem, self.device, self.items = problem, device, problem.items
        self.minimize = minimize
        self.model = Milp()
        window = COLUMNS // max(1, len(self.items))
        window = min(max(window, SHORTEST_WINDOW), LONGEST_WINDOW)
        self.start = [max(0, item.first - window) for item in self.items]
        # The objective is in ms; where memory is minimized, a step's time counts as little memory.
        self.per_second = 1e3
        if minimize == "memory" and self.items:
            sizes = sum(item.size for item in self.items)
            self.per_second = STEP_SHARE * sizes / self.problem.step_seconds
        awaited = awaited or minimize == "memory" or device.blocking_transfers
        self.overlapping = not awaited
        self._decide()
        self._presence()
        self.peak = self._column(cost=1.0 if minimize == "memory" else 0.0)
        out_forward, out_backward, in_backward = [], [], []
        if self.overlapping:
            self._stalls()
            out_forward, out_backward = self._copies_out()
            in_backward = self._copies_in()
            self._out_before_in(out_forward)
        self.row_at: dict[int, int] = {}  # place (see Problem) -> the row of its memory
        self._forward_memory(out_forward)
        self._backward_memory(out_backward, in_backward)
        if host_limit_mb < math.inf:
            swapped = [(self.swap[i], item.size) for i, item in enumerate(self.items)]
            self.model.row(swapped, at_most=host_limit_mb)
        self.solver = NearRelaxation(self.model, self.groups, self._beside(), deadline)

    def choose(self, budget_mb: float = math.inf, *, rough: float = 0.0) -> Choice | None:
        """The best choice found within a budget of device memory, persistent memory included; None
        if there is none.

        Args:
            rough: above 0, the relaxation's, at once: what is kept to a larger share is kept. With
                `WHOLE`, it is mostly within the budget.
        """
        self.solver.limit_column(self.peak, budget_mb)
        if rough:
            relaxed = self.solver.relax()
            return self._read(relaxed, rough) if relaxed.found else None
        solution = self.solver.solve(
            relative_gap=GAP if self.minimize == "time" else PEAK_GAP,
            absolute_gap=self.per_second * STEP_GAP * self.problem.step_seconds,
            thorough=not self.overlapping or len(self.items) <= FEW_ITEMS,
        )
        return self._read(solution) if solution.found else None

    def _beside(self) -> list[set[int]]:
        """For each item, those that it is made from or that are made from it."""
        beside = [set(item.needs) for item in self.items]
        for i, item in enumerate(self.items):
            for n in item.needs:
                beside[n].add(i)
        return beside

    def correct(self, excess_mb: Mapping[int, float]) -> None:
        """From here on, so much more memory is taken at some places, or at all of them."""
        rows = {self.row_at[place]: mb for place, mb in excess_mb.items() if place in self.row_at}
        self.solver.raise_rows(rows)

    def _column(self, *, cost: float = 0.0, upper: float = math.inf) -> int:
        return int(self.model.columns(1, cost=cost, upper=upper)[0])

    def _decide(self) -> None:
        items, model = self.items, self.model
        count = len(items)
        sizes = [item.size for item in items]
        copies = [10 * TIE * size for size in sizes]
        if not self.overlapping:
            copies = [self.per_second * (item.out_seconds + item.in_seconds) for item in items]
        kept = [TIE * size for size in sizes]
        self.keep = model.columns(count, cost=kept, upper=1, integer=True).tolist()
        self.swap = model.columns(
            count, cost=copies, upper=[float(item.may_swap) for item in items], integer=True
        ).tolist()
        op_column: dict[int, int] = {}
        for item in items:
            if item.op not in op_column:
                op_column[item.op] = self._column(
                    cost=item.again_seconds * self.per_second, upper=float(item.may_recompute)
                )
        self.again = [op_column[item.op] for item in items]
        # Recomputations by backward interval: columns of ops and their seconds.
        self.again_in: dict[int, dict[int, float]] = defaultdict(dict)
        for column, item in zip(self.again, items, strict=True):
            self.again_in[item.first][column] = item.again_seconds
        self.groups = list(zip(self.keep, self.swap, self.again, strict=True))
        there = [[(column, 1.0) for column in group] for group in self.groups]
        for i, item in enumerate(items):
            if item.read:
                model.row(there[i], at_least=1)
        for i, item in enumerate(items):
            for n in item.needs:
                model.row([*there[n], (self.again[i], -1.0)], at_least=0)

    def _presence(self) -> None:
        items = self.items
        self.present: list[dict[int, int]] = []
        for i, item in enumerate(items):
            window = range(self.start[i], item.first)
            columns = self.model.columns(len(window), upper=1).tolist()
            self.present.append(dict(zip(window, columns, strict=True)))
            for a, column in self.present[i].items():
                self.model.row([(column, 1.0), (self.keep[i], -1.0)], at_least=0)
                if a > self.start[i]:
                    self.model.row([(column, 1.0), (column - 1, -1.0)], at_least=0)
        for i, item in enumerate(items):
            stays = [(self.keep[i], 1.0), (self.swap[i], 1.0)]
            for n in item.needs:
                end = min(item.first, items[n].last, items[n].first - 1)
                for a in range(self.start[i], end + 1):
                    source = self.present[n][a] if a in self.present[n] else self.keep[n]
                    if a < item.first:
                        early = [(self.present[i][a], -1.0), *stays]
                        self.model.row([(source, 1.0), *early], at_least=0)
                    else:
                        self.model.row([(source, 1.0), (self.again[i], -1.0)], at_least=0)

    def _stalls(self) -> None:
        """How long compute waits at each forward point, and before and in each backward interval;
        and running sums of both."""

        def columns(count: int) -> tuple[list[int], list[int]]:
            stalls = self.model.columns(count, cost=self.per_second).tolist()
            sums = self.model.columns(count).tolist()
            for k, stall in enumerate(stalls):
                before = [(sums[k - 1], -1.0)] if k else []
                self.model.row([(sums[k], 1.0), (stall, -1.0), *before], at_least=0, at_most=0)
            return stalls, sums

        self.forward_stall, self.forward_stalls = columns(len(self.problem.forward_seconds))
        self.backward_stall, self.backward_stalls = columns(1 + len(self.problem.backward_seconds))

    def _backlog(self, terms: Sequence[tuple[int, float]], constant: float) -> int:
        """A column of at least 0 and at least constant + terms."""
        column = self._column()
        self.model.row([(column, 1.0), *((c, -v) for c, v in terms)], at_least=constant)
        return column

    def _copies_out(self) -> tuple[list[int], list[int]]:
        problem = self.problem
        rate = self.device.device_to_host_bytes_per_s / MB
        made: dict[int, list[int]] = {}
        for i, item in enumerate(self.items):
            made.setdefault(item.made, []).append(i)
        forward: list[int] = []
        clock = 0.0
        for p, seconds in enumerate(problem.forward_seconds):
            terms = [(self.swap[i], self.items[i].size) for i in made.get(p, ())]
            before = [(forward[-1], 1.0)] if forward else []
            terms.append((self.forward_stall[p], -rate))
            forward.append(self._backlog([*before, *terms], -rate * (seconds - clock)))
            clock = seconds
        backward: list[int] = []
        for a, seconds in enumerate(problem.backward_seconds):
            previous = backward[-1] if backward else forward[-1]
            longer = [(column, -rate * value) for column, value in self.again_in[a].items()]
            stalls = self.backward_stall[a + 1 if a else 0 : a + 2]
            longer += [(stall, -rate) for stall in stalls]
            backward.append(self._backlog([(previous, 1.0), *longer], -rate * seconds))
        return forward, backward

    def _copies_in(self) -> list[int]:
        """For each backward interval, MB that are there ahead of their time by its end."""
        rate = self.device.host_to_device_bytes_per_s / MB
        needed: dict[int, list[int]] = {}
        for i, item in enumerate(self.items):
            needed.setdefault(item.first, []).append(i)
        ahead: list[int] = []
        last = len(self.problem.backward_seconds) - 1
        for a in range(last, -1, -1):
            terms = [(self.backward_stall[a + 1], -rate)]
            terms += [(c, -rate * v) for c, v in self.again_in[a].items()]
            if a < last:
                following = needed.get(a + 1, ())
                terms += [(self.swap[i], self.items[i].size) for i in following]
                terms.append((ahead[-1], 1.0))
            ahead.append(self._backlog(terms, -rate * self.problem.backward_seconds[a]))
        # Nothing is copied in before the backward part: what the first intervals need stalls.
        first = [(self.swap[i], -self.items[i].size) for i in needed.get(0, ())]
        self.model.row([(self.backward_stall[0], rate), (ahead[-1], -1.0), *first], at_least=0)
        return ahead[::-1]

    def _out_before_in(self, out: Sequence[int]) -> None:
        """What is swapped has left, behind all that was handed over before it, and is back in time.

        Else its first reader would wait for the whole queue: near the turn, what follows a long one
        is not swapped, or compute stalls.
        """
        problem = self.problem
        rate = self.device.device_to_host_bytes_per_s / MB
        reached = [0.0, *itertools.accumulate(problem.backward_seconds)]
        queued = sum(item.size for item in self.items)
        turn = self.forward_stalls[-1]
        for i, item in enumerate(self.items):
            if item.may_swap:
                gap = problem.forward_seconds[-1] - problem.forward_seconds[item.made]
                gap += reached[item.first] - item.in_seconds
                # out <= rate x gap, unless it is not swapped.
                free = max(0.0, queued - rate * gap)
                row = [(out[item.made], -1.0), (self.swap[i], -free)]
                row += [(turn, rate), (self.forward_stalls[item.made], -rate)]
                row.append((self.backward_stalls[item.first], rate))
                self.model.row(row, at_least=-rate * gap - free)

    def _forward_memory(self, backlog: Sequence[int]) -> None:
        """After each point: all else, kept items that the forward part is done with, backlog."""
        done: dict[int, list[int]] = {}
        for i, item in enumerate(self.items):
            done.setdefault(item.spent + 1, []).append(i)
        kept: list[int] = []
        for p, other in enumerate(self.problem.forward_mb):
            ended = [(self.keep[i], self.items[i].size) for i in done.get(p, ())]
            if ended:
                before = [(column, 1.0) for column in kept]
                kept = [self._backlog([*before, *ended], 0.0)]
            terms = [(self.peak, 1.0), *((column, -1.0) for column in kept)]
            terms += [(backlog[p], -1.0)] if backlog else []
            self.row_at[p] = self.model.row(terms, at_least=other)

    def _backward_memory(self, out: Sequence[int], ahead: Sequence[int]) -> None:
        items = self.items
        starting: dict[int, list[int]] = {}
        for i in range(len(items)):
            starting.setdefault(self.start[i], []).append(i)
        using: dict[int, list[int]] = {}
        for i, item in enumerate(items):
            for a in range(self.start[i], item.last + 1):
                using.setdefault(a, []).append(i)
        later = self._backlog(
            [(self.keep[i], item.size) for i, item in enumerate(items) if self.start[i] > 0], 0.0
        )
        for a, other in enumerate(self.problem.backward_mb):
            if a and starting.get(a):
                ending = [(self.keep[i], -items[i].size) for i in starting[a]]
                later = self._backlog([(later, 1.0), *ending], 0.0)
            terms, constant = [(later, -1.0)], other
            for i in using.get(a, ()):
                if a < items[i].first:
                    terms.append((self.present[i][a], -items[i].size))
                elif items[i].read:
                    constant += items[i].size
                else:
                    terms.append((self.keep[i], -items[i].size))
            terms += [(out[a], -1.0), (ahead[a], -1.0)] if out else []
            self.row_at[-1 - a] = self.model.row([(self.peak, 1.0), *terms], at_least=constant)

    def _read(self, solution: Solution, kept: float = 0.5) -> Choice:
        values = solution.values
        decisions: dict[int, Decision] = {}
        for i, item in enumerate(self.items):
            if values[self.keep[i]] > kept:
                decisions[item.tensor] = "keep"
            else:
                swapped = values[self.swap[i]] > min(0.5, values[self.again[i]])
                decisions[item.tensor] = "swap" if swapped else "recompute"
        seconds = solution.objective
        if self.minimize == "memory":
            seconds -= values[self.peak]
        return Choice(
            decisions=decisions,
            mb=float(values[self.peak]),
            seconds=float(seconds) / self.per_second,
            bound=self._bound(solution),
        )

    def _bound(self, solution: Solution) -> float:
        """Of what was minimized alone: the objective's, less what its other terms weigh at most."""
        if self.minimize == "memory":
            return self.least_peak_mb()
        ties = 11 * TIE * sum(item.size for item in self.items)  # what only chooses between equals
        return (solution.bound - ties) / self.per_second

    def least_peak_mb(self) -> float:
        """What no choice's peak is below."""
        return self.solver.least(self.peak)
