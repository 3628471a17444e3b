"""Plans that are known already: one that was found for less memory counts for more, too.

Searches are cut off by counts, so one for a larger budget may end at a slower plan than one for a
smaller. Whoever plans a step for several budgets hands on what was found (`pareto` as it goes on,
`sweep` through the folder of its records), and the plan says which of them it is:

    plan(900MB) ──► +4.1%           known: +3.9% for 800MB ──► the plan for 800MB counts for 900MB

Nothing is handed on between steps, targets, or options that differ in more than the budget.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from memtrade.errors import InfeasibleBudgetError, InvalidPlanError
from memtrade.files import write_whole
from memtrade.graph import StepGraph
from memtrade.plan import Plan, check_plan, load_plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import Strategy
from memtrade.target import Target

# Beside the records that a sweep writes.
KNOWN_FOLDER = "plans"


def plan_with_known(
    strategy: Strategy, graph: StepGraph, options: Any, target: Target, known: Iterable[Plan]
) -> Plan:
    """The strategy's plan, or one of `known` that fits the budget and is faster.

    Raises what the strategy raises, unless it found nothing within a budget that a known one fits.
    """
    budget_bytes: int | None = getattr(options, "budget_bytes", None)
    clock = TimeSimulator(graph, target)
    fitting = [] if budget_bytes is None else _fitting(clock, options, budget_bytes, known)
    try:
        made = strategy.plan(graph, options, target)
    except InfeasibleBudgetError:
        if not fitting:
            raise
        return _taken(min(fitting, key=clock.step_seconds), options)
    fastest = min([made, *fitting], key=clock.step_seconds)
    return made if fastest is made else _taken(fastest, options)


def _fitting(
    clock: TimeSimulator, options: Any, budget_bytes: int, known: Iterable[Plan]
) -> list[Plan]:
    """Those of the same step, target and options, as the simulator sees them today."""
    found: list[Plan] = []
    asked = _besides_budget(dataclasses.asdict(options))
    for plan in known:
        target = (clock.target.name, clock.target.order)
        if (plan.target, plan.order) != target or _besides_budget(plan.options) != asked:
            continue
        with contextlib.suppress(InvalidPlanError):
            check_plan(plan, clock.graph)
            if clock.needed(plan).peak_bytes <= budget_bytes:
                found.append(plan)
    return found


def _besides_budget(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "budget"}


def _taken(plan: Plan, options: Any) -> Plan:
    """A known plan as that for these options. What it proved does not hold for another budget."""
    found_for = plan.found_for or plan.options.get("budget") or "least memory"
    return msgspec.structs.replace(
        plan,
        options=dataclasses.asdict(options),
        gap=None,
        remarks=(*plan.remarks[:1], f"found for {found_for}, and counts for more"),
        found_for=found_for,
    )


def plan_sharing(
    strategy: Strategy, graph: StepGraph, options: Any, target: Target, folder: str | None
) -> Plan:
    """The plan of a process that shares a folder of plans with others, if it has a budget."""
    if folder is None or getattr(options, "budget_bytes", None) is None:
        return strategy.plan(graph, options, target)
    known = plans_in(Path(folder), strategy.name, graph)
    plan = plan_with_known(strategy, graph, options, target, known)
    encoded = msgspec.json.encode(plan)
    name = hashlib.sha256(encoded).hexdigest()[:12]
    # Whole or not at all; a folder that cannot be written to keeps nothing.
    with contextlib.suppress(OSError):
        write_whole(Path(folder) / f"{strategy.name}-{plan.fingerprint}-{name}.plan", encoded)
    return plan


def plans_in(folder: Path, strategy: str, graph: StepGraph) -> list[Plan]:
    """All that can be read of a strategy's plans for a step, in the order of their names."""
    found: list[Plan] = []
    for path in sorted(folder.glob(f"{strategy}-{graph.fingerprint}-*.plan")):
        with contextlib.suppress(InvalidPlanError):  # of another version: as if nobody had found it
            found.append(load_plan(path))
    return found
