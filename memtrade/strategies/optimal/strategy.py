"""The search: solve the choice, judge it exactly, correct the budget, improve what was found.

    reference order -> problem -> programme --budget--> choice -> lower -> exact simulator
                                      ^                                        |
                                      '------- budget less the excess ---------'

The programme's memory is a sum per interval and leaves a little out: what a recomputation holds
while it runs, the allocator's padding, an order that shifts with the decisions. The simulator has
the last word, and what it finds over (or far under) the budget corrects the programme's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from memtrade.errors import InfeasibleBudgetError, MemtradeError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.models.options import option
from memtrade.plan import Decision, Fate, Plan
from memtrade.strategies import checkpoints, ome
from memtrade.strategies.base import Strategy, worth_deciding
from memtrade.strategies.budget import BudgetOptions
from memtrade.strategies.optimal.choice import Choice, Chooser
from memtrade.strategies.optimal.judge import Judge, Verdict
from memtrade.strategies.optimal.problem import MB, Item, Problem, make_problem, reference_order
from memtrade.target import Target
from memtrade.units import megabytes, parse_bytes

GOALS = ("time", "memory")

# The programme is corrected and solved anew at most so many times, with this much to spare.
ROUNDS = 5
SPARE = 0.001
# For the smallest peak, the order of the plan that came out is taken up so often.
ORDERS = 3
# To swap all is worth a search of its own where its peak is so close to the smallest.
NEAR = 0.05
# What other strategies choose is not looked at where the smallest peak is proven to be so close.
CLOSE_PEAK = 0.1
# A plan proven to be within this share of the best is not searched around, unless the graph is so
# small that the search is exhaustive.
ENOUGH = 0.005
FEW_ITEMS = 20
# A choice is close enough below the budget with so much of it left; else this share of what is left
# is tried, too.
CLOSE = 0.01
CAUTION = 0.7
# Of the time left, the share that one solution may take.
TIME_SHARE = 0.5
# Nothing is begun after this share of the time limit: what is begun is ended.
BEGIN_SHARE = 0.9
# Where the budget seems too small, the smallest peak is looked for this share of the limit longer:
# what is said to be the smallest should be.
EXTENSION = 0.5
# How many simulated actions the local search may spend.
SEARCH_ACTIONS = 150_000
# To finish a program is so many simulations more.
FINISH_COST = 13
# A limit binds where so much of it is used.
BINDING = 0.95

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options(BudgetOptions):
    minimize: str = option(
        "time", "time: the fastest plan within the budget; memory: the smallest peak", choices=GOALS
    )
    host_memory_limit: str = option(
        "", "the most host memory for swapped tensors; empty: what the target has"
    )
    swap: bool = option(True, "whether tensors may be swapped")
    time_limit: float = option(60.0, "seconds of planning after which the best so far counts")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.host_memory_limit:
            parse_bytes(self.host_memory_limit)
        if not self.time_limit > 0:
            raise MemtradeError(f"time_limit is a positive number, not {self.time_limit:g}")


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    """The fastest plan within the budget, or the smallest peak and the fastest plan with it.

    Raises:
        InfeasibleBudgetError: no plan was found within the budget.
    """
    search = _Search(graph, options, target)
    budget = options.budget_for(graph)
    if budget is None or search.minimizes_memory:
        return search.smallest()
    return search.fastest(budget)


Rule = Callable[[StepGraph, Target], list[Fate]]


@dataclass
class _Search:
    graph: StepGraph
    options: Options
    target: Target
    deadline: float = field(init=False)
    best: tuple[Verdict, Plan] | None = None
    # The longest that it took to finish a program: so much is left for the last one.
    finish_seconds: float = 0.0
    _finish_count: int = 0
    _ruled: dict[Rule, list[Verdict]] = field(default_factory=dict)
    _last_finished: tuple[Verdict, tuple[Verdict, Plan]] | None = None
    # What no plan of the programme's kind goes below, as far as it is known.
    least_seconds: float | None = None
    least_bytes: float | None = None

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + BEGIN_SHARE * self.options.time_limit
        self.judge = Judge(self.graph, self.target)
        self.original_seconds = self.judge.times.step_seconds(())
        self.host_limit_bytes = self._host_limit_bytes()
        self.chooser = Chooser(
            self._problem(None), self.target.device, host_limit_mb=self.host_limit_bytes / MB
        )

    def _problem(self, decisions: Mapping[int, Decision] | None) -> Problem:
        judge = self.judge
        made = make_problem(judge.simulator, judge.times, reference_order(self.graph, decisions))
        return made if self.options.swap else made.without_swaps()

    @property
    def _seconds_left(self) -> float:
        return self.deadline - time.monotonic() - self.finish_seconds

    def _host_limit_bytes(self) -> float:
        if self.options.host_memory_limit:
            return parse_bytes(self.options.host_memory_limit)
        return math.inf if self.target.host_bytes is None else self.target.host_bytes

    # The two goals.

    def fastest(self, budget: int) -> Plan:
        everything = self._judge({})
        if self._finish(everything, budget):
            self.least_seconds = self.original_seconds  # nothing is faster than to do no more
            return self._result()
        self._solve(budget)
        if not self._good_enough:
            self._consider_others(budget)
        if self.best is None:
            self._say(f"no plan found within {megabytes(budget)} MB: looking for the smallest")
            least = time.monotonic() + EXTENSION * self.options.time_limit
            self.deadline = max(self.deadline, least)
            smallest = self._least_memory()
            if smallest.peak_bytes > budget:
                raise InfeasibleBudgetError(smallest.peak_bytes, budget, smallest.peak_op)
        if not self._good_enough:
            self._improve(budget)
        return self._result()

    def smallest(self) -> Plan:
        peak_bytes = self._least_memory().peak_bytes
        self._solve(peak_bytes)
        if self.gap is None or self.gap > CLOSE_PEAK:
            self._consider_others(peak_bytes)
        self._improve(peak_bytes)
        return self._result()

    # Their parts.

    def _least_memory(self) -> Verdict:
        """The smallest peak of a finished plan, which is remembered.

        Solved, then again with the order of the plan that came out; then local search. Small
        tensors, which the programme leaves alone, count where everything else is gone: to swap
        all is tried, too.
        """
        may_swap = self.options.swap and self._swapped.host_bytes <= self.host_limit_bytes
        tried = [self._judge({}), *([self._swapped] if may_swap else [])]
        for _ in range(ORDERS):
            choice = self._choose(None)
            if choice is None:
                break
            bound = choice.bound * MB
            self.least_bytes = bound if self.least_bytes is None else min(bound, self.least_bytes)
            tried.append(self._judge(choice.decisions))
            if tried[-1].peak_bytes >= min(verdict.peak_bytes for verdict in tried[:-1]):
                break
            self.chooser.problem = self._problem(choice.decisions)
        leanest = sorted(tried, key=lambda verdict: verdict.peak_bytes)[:2]
        finished = [self._finished(leanest[0])]
        starts = [leanest[0]]
        near = (1 + NEAR) * leanest[0].peak_bytes
        if may_swap and leanest[0] is not self._swapped and self._swapped.peak_bytes <= near:
            starts.append(self._swapped)
        ruled = self._by_rule(_ome if self.options.swap else _checkpoints)
        close = [verdict for verdict in ruled if verdict.peak_bytes <= near]
        for each in itertools.chain(leanest[1:], close, map(self._shrink, starts)):
            # Finishing takes long, and no plan needs less than its judged program.
            least = min(plan.peak_bytes for plan, _ in finished)
            if self._seconds_left > 0 and each.peak_bytes < least:
                finished.append(self._finished(each))
        self._remember(min(finished, key=lambda each: each[0].peak_bytes))

        def smaller(verdict: Verdict, _: Verdict) -> bool:
            assert self.best is not None
            if verdict.peak_bytes >= self.best[0].peak_bytes:
                return False
            finished = self._finished(verdict)
            if finished[0].peak_bytes >= self.best[0].peak_bytes:
                return False
            self._remember(finished)
            return True

        assert self.best is not None
        self._descend(self.best[0], smaller, cost=FINISH_COST)
        return self.best[0]

    def _solve(self, budget: int) -> None:
        """Choices for the budget; what the simulator finds above it corrects the programme."""
        loosened, excess_bytes = False, 0.0
        for turn in range(ROUNDS):
            choice = self._choose(int(budget * (1 - SPARE)))
            if choice is None:
                if not excess_bytes:
                    return
                excess_bytes /= 2  # the last correction left no room: half of it is taken back
                self._everywhere(-excess_bytes)
                continue
            if self.least_seconds is None:  # later programmes are corrected, so they prove less
                self.least_seconds = self.original_seconds + choice.bound
            verdict = self._judge(choice.decisions)
            if self._finish(verdict, budget):
                assert self.best is not None
                slack = budget - self.best[0].peak_bytes
                if loosened or slack < CLOSE * budget or choice.seconds <= 0:
                    return
                self._everywhere(-CAUTION * slack)
                loosened = True
            elif loosened:
                return
            else:
                excess_bytes = self._correct(verdict, budget, weight=turn + 1)

    def _consider_others(self, budget: int) -> None:
        """What the rules of other strategies choose: small tensors, which the programme leaves
        alone, may count, and recomputations may span more than its windows."""
        if self.options.swap:
            self._finish(self._swapped, budget)
        for choose in (_checkpoints, _ome) if self.options.swap else (_checkpoints,):
            for verdict in self._by_rule(choose):
                self._finish(verdict, budget)

    def _correct(self, verdict: Verdict, budget: int, weight: int) -> float:
        """Where the judged program takes more than the budget, the programme counts that much more,
        `weight` times: what was not enough at first is more than padding that comes and goes.

        What has no place counts everywhere: padding that is left after reservations, and copies
        beside compute, which hold a tensor's memory until its last byte has moved. Returns the
        bytes that it counts for.
        """
        problem = self.chooser.problem
        excess: dict[int, float] = {}
        if self.target.copies_in_line:
            place = 0
            in_use = self.judge.simulator.live_bytes(verdict.actions)
            for action, size in zip(verdict.actions, in_use, strict=True):
                if action.kind == "run":
                    place = problem.place[action.id]
                if size > budget:
                    excess[place] = max(excess.get(place, 0.0), weight * (size - budget) / MB)
        if excess:
            self.chooser.problem = problem.corrected(excess)
            return 0.0
        excess_bytes = weight * (self._finished(verdict)[0].peak_bytes - budget)
        self._everywhere(excess_bytes)
        return float(excess_bytes)

    def _everywhere(self, excess_bytes: float) -> None:
        problem = self.chooser.problem
        log.debug("%.1f MB over the budget", excess_bytes / MB)
        self.chooser.problem = problem.corrected(
            dict.fromkeys(set(problem.place.values()), excess_bytes / MB)
        )

    def _choose(self, budget: int | None) -> Choice | None:
        left = self._seconds_left
        if left <= 0:
            return None
        self._say("solving")
        choice = self.chooser.choose(
            None if budget is None else budget / MB,
            minimize="memory" if budget is None else "time",
            time_limit_seconds=TIME_SHARE * left,
        )
        if choice is not None:
            log.debug(
                "%s: +%.1f%% time, %.0f MB in the programme",
                self.graph.name,
                100 * choice.seconds / self.original_seconds,
                choice.mb,
            )
        return choice

    @cached_property
    def _swapped(self) -> Verdict:
        """All that can be is swapped."""
        return self._judge(dict.fromkeys(worth_deciding(self.graph), "swap"))

    def _by_rule(self, choose: Rule) -> list[Verdict]:
        """What the rule of another strategy chooses, if it is for this graph, and there is time
        and room for it."""
        if choose not in self._ruled and self._seconds_left > 0:
            self._ruled[choose] = []
            with contextlib.suppress(UnsupportedGraphError):
                fates = choose(self.graph, self.target)
                verdict = self._judge({fate.tensor: fate.decision for fate in fates})
                if verdict.host_bytes <= self.host_limit_bytes:
                    self._ruled[choose].append(verdict)
        return self._ruled.get(choose, [])

    def _judge(self, decisions: Mapping[int, Decision]) -> Verdict:
        return self.judge.judge(decisions)

    def _finished(self, verdict: Verdict) -> tuple[Verdict, Plan]:
        if self._last_finished is None or self._last_finished[0] is not verdict:
            begun = time.monotonic()
            self._last_finished = verdict, self._finish_program(verdict)
            self.finish_seconds = max(self.finish_seconds, time.monotonic() - begun)
            self._finish_count += 1
        return self._last_finished[1]

    def _finish_program(self, verdict: Verdict) -> tuple[Verdict, Plan]:
        actions = (
            self.judge.finish(verdict.actions) if self.target.order == "pinned" else verdict.actions
        )
        made = Plan(
            strategy="optimal",
            options=dataclasses.asdict(self.options),
            fingerprint=self.graph.fingerprint,
            order=self.target.order,
            fates=tuple(self._fates(verdict)),
            actions=actions,
            target=self.target.name,
        )
        return self.judge.finished(verdict.decisions, made.actions), made

    def _finish(self, verdict: Verdict, budget: int) -> bool:
        """Whether the finished plan fits; the fastest that does is remembered."""
        if verdict.peak_bytes > budget or verdict.host_bytes > self.host_limit_bytes:
            return False
        finished = self._finished(verdict)
        if finished[0].peak_bytes > budget:
            return False
        if self.best is None or finished[0].seconds < self.best[0].seconds:
            self._remember(finished)
        return True

    def _remember(self, best: tuple[Verdict, Plan]) -> None:
        self.best = best
        self._say("best so far")

    def _say(self, what: str) -> None:
        """Progress, for whoever listens to the log: what is done now and the best so far."""
        told = what
        if self.best is not None:
            found = self.best[0]
            told += f": {self._added(found)}, peak {megabytes(found.peak_bytes)} MB"
            if self.gap is not None:
                told += f", gap {100 * self.gap:.1f}%"
        log.info("%s", told)

    def _added(self, verdict: Verdict) -> str:
        return f"{100 * (verdict.seconds / self.original_seconds - 1):+.1f}% time"

    @property
    def minimizes_memory(self) -> bool:
        return self.options.minimize == "memory" or self.options.budget_bytes is None

    @property
    def _good_enough(self) -> bool:
        if self.best is None or self.gap is None or len(self.chooser.problem.items) <= FEW_ITEMS:
            return False
        return self.gap <= ENOUGH

    @property
    def gap(self) -> float | None:
        """How much better any plan could be, as a share of the best so far."""
        assert self.best is not None
        found = self.best[0]
        if self.minimizes_memory:
            least, best = self.least_bytes, found.peak_bytes
        else:
            least, best = self.least_seconds, found.seconds
        if least is None or math.isinf(least):
            return None
        return max(0.0, 1 - least / best)

    def _improve(self, budget: int) -> None:
        """Local search for less time, while the finished plan fits the budget."""
        assert self.best is not None
        self._descend(
            self.best[0],
            lambda tried, current: (
                tried.seconds < current.seconds
                and tried.peak_bytes <= budget
                and self._finish(tried, budget)
            ),
        )

    def _shrink(self, verdict: Verdict) -> Verdict:
        """Local search for a smaller peak, and less time at the same."""
        return self._descend(
            verdict,
            lambda tried, current: (
                (tried.peak_bytes, tried.seconds) < (current.peak_bytes, current.seconds)
            ),
        )

    def _descend(
        self, current: Verdict, better: Callable[[Verdict, Verdict], bool], *, cost: int = 1
    ) -> Verdict:
        """Changes a few decisions at a time, as long as that is better.

        As many as there is time for: one in a large graph, any number in a tiny one.
        """
        evaluations = SEARCH_ACTIONS // max(1, cost * len(current.actions))
        moves = self._moves(evaluations)
        improved = True
        while improved:
            improved = False
            for move in moves:
                changed = [flip for flip in move if current.of(flip[0]) != flip[1]]
                if len(changed) < len(move):
                    continue
                if evaluations <= 0 or self._seconds_left <= 0:
                    return current
                tried = self._judge({**current.decisions, **dict(changed)})
                count = self._finish_count
                if tried.host_bytes <= self.host_limit_bytes and better(tried, current):
                    current, improved = tried, True
                evaluations -= 1 if self._finish_count == count else FINISH_COST // cost
        return current

    def _moves(self, most: int) -> list[tuple[tuple[int, Decision], ...]]:
        """Single changes, the most expensive op's first; then pairs, and so on, up to `most`."""
        items = sorted(self.chooser.problem.items, key=lambda item: -item.again_seconds)
        moves: list[tuple[tuple[int, Decision], ...]] = []
        for together in range(1, len(items) + 1):
            larger = [
                tuple(zip((item.tensor for item in chosen), changes, strict=True))
                for chosen in itertools.islice(itertools.combinations(items, together), most)
                for changes in itertools.product(*map(_allowed, chosen))
            ]
            if moves and len(moves) + len(larger) > most:
                break
            moves += larger
        return moves

    def _result(self) -> Plan:
        assert self.best is not None
        verdict, made = self.best
        gap = None if self.gap is None else round(self.gap, 4)
        return msgspec.structs.replace(made, gap=gap, remarks=tuple(self._remarks(verdict)))

    def _remarks(self, found: Verdict) -> Iterator[str]:
        """What the plan is predicted to come to, which limits bind, and what was left undone."""
        yield (
            f"predicted on {self.target.name}: {self._added(found)}, "
            f"peak {megabytes(found.peak_bytes)} MB at {found.peak_op}"
        )
        budget = self.options.budget_bytes
        if set(found.decisions.values()) <= {"keep"}:
            yield "everything fits: nothing is recomputed or swapped"
            return
        if self.minimizes_memory:
            yield "memory was minimized"
        elif budget is not None and found.peak_bytes >= BINDING * budget:
            yield f"the budget of {megabytes(budget)} MB binds"
        host = self.host_limit_bytes
        if self.options.swap and found.host_bytes >= BINDING * host:
            yield (
                f"the host memory limit of {megabytes(int(host))} MB binds: "
                f"{megabytes(found.host_bytes)} MB are swapped"
            )
        if self._seconds_left <= 0:
            yield f"the time limit of {self.options.time_limit:g} s ended the search"

    def _fates(self, verdict: Verdict) -> list[Fate]:
        reasons = {"keep": "worth its memory", "recompute": "cheaper to make again"}
        graph = self.graph
        made = []
        for t, decision in sorted(verdict.decisions.items()):
            reason = reasons.get(decision, "cheaper to copy than to make again")
            made.append(Fate(t, decision, reason))
        kept = set(graph.activations) - {fate.tensor for fate in made}
        made += [Fate(t, "keep", "small") for t in kept]
        return sorted(made, key=lambda fate: fate.tensor)


def _checkpoints(graph: StepGraph, target: Target) -> list[Fate]:
    return checkpoints.fates(graph, checkpoints.choose(graph, checkpoints.Options(), target))


def _ome(graph: StepGraph, target: Target) -> list[Fate]:
    return ome.fates(graph, ome.Options(), target)


def _allowed(item: Item) -> list[Decision]:
    allowed: list[Decision] = ["keep"]
    if item.may_recompute:
        allowed.append("recompute")
    if item.may_swap:
        allowed.append("swap")
    return allowed


STRATEGY = Strategy(
    "optimal", "keep, recompute or swap: least time under a budget, or least memory", Options, plan
)
