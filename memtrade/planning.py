"""A plan for a step that is there: foreseen, rehearsed where the device counts, and corrected.

as it is ── predicted to fit, branches abreast, too? ──► rehearsed near the budget ──► it stays so
   │ no                               │ breaks it
   ▼                                  ▼
planned ──► foreseen to fit? ──► rehearsed ──► kept
   ▲                                  │ breaks it
   └───── the target, corrected ◄─────┘        at most CORRECTIONS times
"""

import gc
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import tensorflow as tf

from memtrade.bounds import bound_of
from memtrade.errors import InfeasibleBudgetError
from memtrade.measure import host
from memtrade.measure.budgets import (
    CORRECTIONS,
    BrokenBudgetError,
    corrected,
    leaving_margin,
    peak_op,
)
from memtrade.measure.here import learned_target
from memtrade.plan import Plan
from memtrade.settings import ORIGINAL, Settings
from memtrade.simulate.memory import MemoryResult
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import find_planned, make_options
from memtrade.strategies.base import clock_of, make_plan
from memtrade.strategies.budget import check_sized
from memtrade.strategies.saving import no_worse
from memtrade.target import Target
from memtrade.tf.calling import call_alone, call_unchanged
from memtrade.tf.extract import Trace
from memtrade.tf.places import places_here
from memtrade.tf.rehearsal import Rehearsal, can_be_rehearsed, rehearsed
from memtrade.tf.replicas import apply_plans
from memtrade.units import megabytes, megabytes_between

log = logging.getLogger("memtrade")

# The order that one thread runs a step in, as it is, moves its peak by a third at most.
_NEAR = 0.6


class PlannedFunction(NamedTuple):
    """A plan, and the function that a rehearsal of it made, if there was one. Without actions the
    plan leaves the step as it is, and so is the function."""

    plan: Plan
    concrete: Any = None


class _AsItIs(NamedTuple):
    """Whether the step keeps the budget as it is, and the function that its rehearsal made."""

    holds: bool
    concrete: Any = None


@dataclass(frozen=True)
class Planner:
    """Plans one step for its settings.

    Attributes:
        lies: `offsets_of` its batch, where that is there.
        as_it_is: makes the function of the step without a plan; None where none may run.
    """

    name: str
    traced: Trace
    settings: Settings
    lies: Sequence[int] | None
    as_it_is: Callable[[], Any] | None

    def plan(self) -> PlannedFunction:
        """A plan that keeps the budget, by prediction and, where the device counts, by a rehearsal.

        What a rehearsal above the budget teaches corrects the target, and the plan is made anew.
        """
        graph, budget_bytes, target = self.traced.graph, self.settings.budget_bytes, self._target
        if self.settings.automatic and self._fits() and self._untouched.holds:
            plan = find_planned(ORIGINAL).plan(graph, make_options(ORIGINAL), target)
            return PlannedFunction(plan, self._untouched.concrete)
        options = host.within_room(self.settings.options, graph, budget_bytes or 0)
        for correction in itertools.count():
            (plan, given_bytes), target = leaving_margin(partial(self._foresee, options), target)
            if not plan.actions:
                return PlannedFunction(plan, self._untouched.concrete)
            tried = self._rehearse(plan)
            if budget_bytes is None or not tried or tried.taken_bytes is None:
                return PlannedFunction(plan, tried and tried.concrete)
            peak_bytes = tried.taken_bytes + given_bytes
            held = peak_bytes <= budget_bytes
            if held and tried.places:  # what it takes for good is there now
                target = target.among(tried.places)
                foreseen_bytes = self._judge(plan, clock_of(graph, target)).peak_bytes
                if tried.moved:  # what it updated lies elsewhere than when it was rehearsed
                    peak_bytes = foreseen_bytes
            if peak_bytes <= budget_bytes:
                return PlannedFunction(plan, tried.concrete)
            del tried
            gc.collect()  # with its function goes what that keeps on the device
            if correction == CORRECTIONS:
                raise BrokenBudgetError(peak_bytes, budget_bytes, peak_op(target, graph, plan))
            if held:  # it is planned anew from there
                continue
            target, remedy = corrected(
                target, graph, plan, peak_bytes=peak_bytes, environment=os.environ
            )
            log.warning(
                "%s took %s MB of a budget of %s MB when it was rehearsed: planned anew; %s",
                self.traced.step.name,
                *map(megabytes, (peak_bytes, budget_bytes)),
                remedy,
            )
        raise AssertionError("the loop ends by itself")

    @cached_property
    def _target(self) -> Target:
        target = self.settings.target.among(places_here(self.traced, self.lies))
        return learned_target(target, [self.traced.graph], environment=os.environ)

    def _fits(self) -> bool:
        """Whether the step as it is is predicted to keep the budget."""
        graph, budget_bytes = self.traced.graph, self.settings.budget_bytes
        assert budget_bytes is not None
        if graph.data.unsized and not self.settings.asked:
            why = "has tensors whose size nothing tells, so whether it fits is not known"
            warn_as_it_is(self.name, why)
            return True
        clock = clock_of(graph, self._target)
        original_bytes = clock.original_bytes
        log.info(
            "%s as it is: predicted peak %s %s MB of %s MB",
            self.traced.step.name,
            bound_of(graph, None),
            megabytes_between(clock.least_bytes, clock.abreast_bytes),
            megabytes(budget_bytes),
            extra={"peak_bytes": original_bytes, "original_bytes": original_bytes},
        )
        return original_bytes <= budget_bytes

    @cached_property
    def _untouched(self) -> _AsItIs:
        """Whether the step keeps the budget in TensorFlow's own order, which is foreseen less well
        than a pinned one. Threads may run its branches abreast, now and not in a rehearsal; what
        keeps the budget then is rehearsed where it comes near. Where it leaves less than processes
        differ by, each with an order of its own, a rehearsal tells nothing, and it gets one."""
        graph, budget_bytes = self.traced.graph, self.settings.budget_bytes
        if budget_bytes is None:
            return _AsItIs(True)
        clock = clock_of(graph, self._target)
        if clock.abreast_bytes > budget_bytes:
            return _AsItIs(False)
        if budget_bytes - clock.abreast_bytes < clock.most_bytes - clock.least_bytes:
            return _AsItIs(False)
        found = clock.needed(())
        if self.as_it_is is None or not can_be_rehearsed(self.traced):
            return _AsItIs(True)
        if found.peak_bytes < _NEAR * budget_bytes:
            return _AsItIs(True)
        device = self.settings.tf_device
        try:
            tried = rehearsed(self.traced, self.as_it_is, device, self.lies, call_unchanged)
        except tf.errors.ResourceExhaustedError:
            return _AsItIs(False)
        taken_bytes = found.given_bytes + (tried.taken_bytes or 0)
        if tried.taken_bytes is None or taken_bytes <= budget_bytes:
            return _AsItIs(True, tried.concrete)
        del tried
        gc.collect()  # with its function goes what that keeps on the device
        return _AsItIs(False)

    def _rehearse(self, plan: Plan) -> Rehearsal | None:
        """Runs of the rewritten step that leave nothing behind, if anybody asks what it takes."""
        if self.settings.budget_bytes is None or not can_be_rehearsed(self.traced):
            return None
        build = partial(built, self.traced, [self.traced], [plan], [self.settings.transfer])
        return rehearsed(self.traced, build, self.settings.tf_device, self.lies, call_alone)

    def _foresee(self, options: Any, target: Target) -> tuple[Plan, int]:
        """A plan that is predicted to keep the budget, and the bytes that lie there before
        the first step (0 where nobody asks).

        Raises InfeasibleBudgetError where none does.
        """
        graph, budget_bytes = self.traced.graph, self.settings.budget_bytes
        clock = clock_of(graph, target)
        made = self.settings.strategy.plan(graph, options, target)
        plan = no_worse(made, clock)
        if budget_bytes is not None and not plan.actions and not self._untouched.holds:
            # Whatever it is predicted to take as it is.
            one_order = make_plan(made.strategy, graph, options, target, ())
            plan = min(
                (one_order, made) if made.actions else (one_order,),
                key=lambda plan: (
                    max(clock.needed(plan).peak_bytes - budget_bytes, 0),
                    clock.step_seconds(plan),
                ),
            )
        if budget_bytes is None and not log.isEnabledFor(logging.INFO):
            return plan, 0
        if budget_bytes is not None:
            check_sized(graph)
        found = self._judge(plan, clock)
        if budget_bytes is not None and found.peak_bytes > budget_bytes:
            raise InfeasibleBudgetError(found.peak_bytes, budget_bytes, found.peak_op)
        return plan, found.given_bytes

    def _judge(self, plan: Plan, clock: TimeSimulator) -> MemoryResult:
        """What the plan is predicted to take, which the log says, too."""
        found = clock.needed(plan)
        if log.isEnabledFor(logging.INFO):
            original = clock.needed(())
            least_bytes = min(original.told_peak_bytes, clock.least_bytes)
            bound = found.bound(self.traced.graph, plan)
            about = bound_of(self.traced.graph, None)
            log.info(
                "%s of %s: predicted peak %s%s MB, original %s%s MB",
                plan.strategy,
                self.traced.step.name,
                *(bound, megabytes_between(found.told_peak_bytes, found.peak_bytes)),
                *(about, megabytes_between(least_bytes, clock.abreast_bytes)),
                extra={
                    "peak_bytes": found.peak_bytes,
                    "told_peak_bytes": found.told_peak_bytes,
                    "original_bytes": original.peak_bytes,
                    "bound": bound,
                },
            )
        return found


def built(traced: Trace, parts: Any, plans: Any, transfers: Any) -> Any:
    """The rewritten step's concrete function."""
    return apply_plans(traced, parts, plans, transfers).get_concrete_function()  # pyright: ignore[reportFunctionMemberAccess]


def warn_as_it_is(name: str, why: str) -> None:
    warnings.warn(f"{name} {why}: it runs as it is", stacklevel=3)
