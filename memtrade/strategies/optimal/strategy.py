"""The strategy: the plan that the search's outcome becomes.

After P. Jain et al., "Checkmate", MLSys 2020, arXiv 1910.02653, cut down to one recomputation per
tensor and widened by swaps (choice.py); rounded by RENS (milp.py); judged, corrected and improved
with the exact simulator (search.py).

The programme has O(items x window + edges) columns and rows (choice.py). The same step and options
give the same plan, whatever else the machine does: all limits are counts, of the programme's nodes
and solutions, and of the rows of programs that are simulated (`candidates.MOST_ROWS`).
Not guaranteed: that no plan is better. `Plan.gap` says how much better one of the programme's kind
could be; a step whose forward part has up to 8 ops or so is searched exhaustively.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import msgspec

from memtrade.collection import without_collection
from memtrade.errors import InfeasibleBudgetError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.plan import Fate, Plan
from memtrade.simulate.memory import MemoryResult
from memtrade.strategies import checkpoints, ome
from memtrade.strategies.base import Strategy, clock_of
from memtrade.strategies.optimal.judge import Finished
from memtrade.strategies.optimal.options import Options
from memtrade.strategies.optimal.search import Search
from memtrade.target import Target
from memtrade.units import megabytes

# A limit binds where so much of it is used.
BINDING = 0.95


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    """The fastest plan within the budget, or the smallest peak and the fastest plan with it.

    Where a rule's plan is leaner by more than the tolerance (it may schedule the forward part
    anew), or is the one that fits, it is that plan.

    Raises:
        InfeasibleBudgetError: no plan was found within the budget.
    """
    try:
        found = _planned(graph, options, target, looks_far=True)
    except InfeasibleBudgetError as error:
        ruled = _by_rule(graph, options, target)
        if ruled is None or ruled[1].peak_bytes >= error.needed_bytes:
            raise
        plan, needed = ruled
        if needed.peak_bytes > error.budget_bytes:
            raise InfeasibleBudgetError(
                needed.peak_bytes, error.budget_bytes, needed.peak_op
            ) from error
        return plan
    if options.goal == "time":
        return found
    ruled = _by_rule(graph, options, target)
    least_bytes = (1 - options.tolerance) * clock_of(graph, target).needed(found).peak_bytes
    return ruled[0] if ruled is not None and ruled[1].peak_bytes < least_bytes else found


def _by_rule(
    graph: StepGraph, options: Options, target: Target
) -> tuple[Plan, MemoryResult] | None:
    """The leanest plan of a rule, within the same limits, and what it is predicted to take."""
    made = []
    for rule in (checkpoints, ome) if options.swap else (checkpoints,):
        with contextlib.suppress(UnsupportedGraphError):
            made.append(rule.plan(graph, rule.Options(), target))
    clock = clock_of(graph, target)
    judged = [(plan, clock.needed(plan)) for plan in made]
    within = [each for each in judged if each[1].host_peak_bytes <= options.host_limit_bytes]
    if not within:
        return None
    plan, needed = min(within, key=lambda each: each[1].peak_bytes)
    remark = (
        f"as {plan.strategy} plans it: peak {megabytes(needed.peak_bytes)} MB at {needed.peak_op}, "
        "and nothing leaner was found"
    )
    plan = msgspec.structs.replace(
        plan,
        strategy="optimal",
        options=dataclasses.asdict(options),
        remarks=(*plan.remarks, remark),
    )
    return plan, needed


def near(graph: StepGraph, options: Options, target: Target) -> Plan:
    """The same plan where it takes no search for the smallest peak; next to that, a slower one.

    Raises:
        InfeasibleBudgetError: there is none; what it says is needed may be far too much.
    """
    return _planned(graph, options, target, looks_far=False)


def about(graph: StepGraph, options: Options, target: Target) -> float:
    """The smallest peak as the programme alone sees it, in bytes: a linear programme's, so soon."""
    with without_collection():
        return Search(graph, target, options).programmed_bytes()


def _planned(graph: StepGraph, options: Options, target: Target, *, looks_far: bool) -> Plan:
    with without_collection():
        search = Search(graph, target, options)
        search.looks_far = looks_far
        found = search.run()
    gap = search.gap
    return Plan(
        strategy="optimal",
        options=dataclasses.asdict(options),
        fingerprint=graph.fingerprint,
        order=target.order,
        fates=_fates(graph, found),
        actions=found.actions,
        gap=None if gap is None else round(gap, 4),
        remarks=tuple(_remarks(search, found, options)),
        target=target.name,
    )


def _remarks(search: Search, found: Finished, options: Options) -> Iterator[str]:
    """What the plan is predicted to come to, which limits bind, and what was left undone."""
    yield (
        f"predicted on {search.target.name}: {search.added(found)}, "
        f"peak {megabytes(found.peak_bytes)} MB at {found.memory.peak_op}"
    )
    budget, host = options.budget_bytes, options.host_limit_bytes
    if set(found.verdict.decisions.values()) <= {"keep"}:
        yield "everything fits: nothing is recomputed or swapped"
    elif search.minimize == "memory":
        yield _minimized(search, options)
    elif budget is not None and found.peak_bytes >= BINDING * budget:
        yield f"the budget of {megabytes(budget)} MB binds"
    swapped_bytes = found.memory.host_peak_bytes
    if options.swap and swapped_bytes >= BINDING * host:
        yield (
            f"the host memory limit of {megabytes(int(host))} MB binds: "
            f"{megabytes(swapped_bytes)} MB are swapped"
        )
    if search.left_out:
        yield f"{search.left_out} blocks repeat others, and have their choices"
    if search.cancelled:
        yield f"the time limit of {options.time_limit:g} s ended the search: give more time_limit"


def _minimized(search: Search, options: Options) -> str:
    if not options.tolerance or search.smallest_bytes is None:
        return "memory was minimized"
    return (
        f"memory was minimized: the smallest peak is {megabytes(search.smallest_bytes)} MB, and "
        f"this is the fastest plan within {100 * options.tolerance:g}% of it"
    )


def _fates(graph: StepGraph, found: Finished) -> tuple[Fate, ...]:
    reasons = {
        "keep": "worth its memory",
        "recompute": "cheaper to make again",
        "swap": "cheaper to copy than to make again",
    }
    decided = found.verdict.decisions
    made = [Fate(t, decision, reasons[decision]) for t, decision in decided.items()]
    kept = "small" if decided else "everything fits"
    made += [Fate(t, "keep", kept) for t in graph.activations if t not in decided]
    return tuple(sorted(made, key=lambda fate: fate.tensor))


STRATEGY = Strategy(
    "optimal",
    "keep, recompute or swap: least time under a budget, or least memory",
    Options,
    plan,
    near,
    about,
)
