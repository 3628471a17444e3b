"""The nearest plan that fits: of those that do, the one that costs least time.

The quick rules are asked first; where none of them fits, the search that plans for a budget.
"""

import contextlib

import msgspec

from memtrade.errors import InfeasibleBudgetError, UnsupportedGraphError
from memtrade.explain.cause import Explanation
from memtrade.graph import StepGraph
from memtrade.plan import Plan
from memtrade.simulate.predict import Predicted, Predictor
from memtrade.strategies import find_planned, make_options
from memtrade.target import Target

_QUICK = ("checkpoints", "ome", "lms")
_SEARCH = "optimal"


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that is predicted to fit.

    Attributes:
        budget_bytes: that it was made for; 0 of a rule that knows none.
        relative_time: its step's time, as a share of the original's.
        host_bytes: of swapped tensors.
    """

    strategy: str
    budget_bytes: int
    peak_bytes: int
    relative_time: float
    host_bytes: int

    @property
    def arguments(self) -> str:
        """Those of `memtrade.apply` and `memtrade.keras.optimize`."""
        budget = f', budget="{self.budget_bytes >> 20}MiB"' if self.budget_bytes else ""
        return f'strategy="{self.strategy}"{budget}'

    @property
    def python(self) -> str:
        """The line that applies it to a step."""
        return f"train_step = memtrade.apply(train_step, batch, {self.arguments})"


class NoRemedy(msgspec.Struct, frozen=True, kw_only=True):
    """No plan fits. `floor_bytes`: the smallest peak found; `op` binds it."""

    floor_bytes: int
    op: str


def remedy_for(found: Explanation, graph: StepGraph, target: Target) -> Remedy | NoRemedy | None:
    """The nearest plan; None where the step fits alone, for no plan helps against what is beside
    it."""
    if found.fits_alone:
        return None
    whole = found.room_bytes >> 20 << 20  # as commands have it, in MiB
    return nearest_plan(graph, target, whole or found.room_bytes)


def nearest_plan(graph: StepGraph, target: Target, limit_bytes: int) -> Remedy | NoRemedy | None:
    """The plan that fits into `limit_bytes`; None where the step cannot be planned at all."""
    target = target.replace(limit_bytes=limit_bytes)
    predictor = Predictor(graph, target)
    original = predictor.clock.step_seconds(())
    found: list[Remedy] = []
    floors: list[NoRemedy] = []
    for name in _QUICK:
        with contextlib.suppress(UnsupportedGraphError):
            plan = find_planned(name).plan(graph, make_options(name, {}), target)
            predicted = predictor.predict(plan)
            if plan.actions and predicted.fits:
                found.append(_remedy(plan, predicted, original, budget_bytes=0))
            else:
                by = predictor.clock.needed(plan).peak_op
                floors.append(NoRemedy(floor_bytes=predicted.peak_bytes, op=by))
    if found:
        return min(found, key=lambda each: each.relative_time)
    try:
        options = make_options(_SEARCH, {"budget": f"{limit_bytes}B"})
        plan = find_planned(_SEARCH).plan(graph, options, target)
    except InfeasibleBudgetError as error:
        return NoRemedy(floor_bytes=error.needed_bytes, op=error.op)
    except UnsupportedGraphError:
        return min(floors, key=lambda each: each.floor_bytes) if floors else None
    predicted = predictor.predict(plan)
    return _remedy(plan, predicted, original, budget_bytes=limit_bytes)


def _remedy(plan: Plan, predicted: Predicted, original: float, *, budget_bytes: int) -> Remedy:
    seconds = predicted.step_seconds or 0.0
    return Remedy(
        strategy=plan.strategy,
        budget_bytes=budget_bytes,
        peak_bytes=predicted.peak_bytes,
        relative_time=seconds / original if original else 1.0,
        host_bytes=predicted.host_bytes,
    )
