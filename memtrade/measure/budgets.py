"""A budget that a step broke: what is learned from that, before the plan is made anew.

plan ──► first step ──peak above the budget──► kernels near the peak asked anew
 ▲                                             what they leave unexplained set aside
 └───────────────── a corrected target ◄───────┘        at most CORRECTIONS times
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from memtrade.errors import BEFORE_ANY_OP, InfeasibleBudgetError, MemtradeError, sizes_apart
from memtrade.facts.signature import signature_of
from memtrade.graph import Op, StepGraph
from memtrade.measure.here import learned_target
from memtrade.plan import Plan
from memtrade.simulate.predict import Predictor
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import Target
from memtrade.units import megabytes

T = TypeVar("T")

CORRECTIONS = 2

# Kernels that run where so much of the peak is in use are asked anew.
_NEAR = 0.85


class BrokenBudgetError(MemtradeError):
    """A step that takes more than its budget, whatever was learned."""

    def __init__(self, peak_bytes: int, budget_bytes: int, op: str):
        peak, budget = sizes_apart(peak_bytes, budget_bytes)
        super().__init__(
            f"the step takes {peak}, above the budget of {budget}, after {CORRECTIONS} "
            f"corrections of its plan; at the peak stands {op or BEFORE_ANY_OP}. Give a larger "
            "budget or a smaller batch"
        )


def leaving_margin(plan: Callable[[Target], T], target: Target) -> tuple[T, Target]:
    """What `plan` makes for the target; for one without a margin where nothing leaves that much.

    A margin comes of one plan's peak, on one run, and need not be another's: a plan that is
    predicted to hold the budget without it is worth a run, which tells.

    Returns what was made, and the target that it was made for. Raises InfeasibleBudgetError where
    nothing holds the budget without a margin either.
    """
    try:
        return plan(target), target
    except InfeasibleBudgetError:
        if not target.margin_bytes:
            raise
        bare = target.replace(margin_bytes=0)
        return plan(bare), bare


def corrected(
    target: Target,
    graph: StepGraph,
    plan: Plan,
    *,
    peak_bytes: int,
    environment: Mapping[str, str] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[Target, str]:
    """What a measured peak says of the target that the plan was made for: one that knows better,
    and what was learned, in a few words.

    Args:
        peak_bytes: that the plan's step took.
    """

    def ask(ops: Sequence[Op]) -> tuple[Target, int]:
        """The ops' kernels asked anew, and how many ops' requests are others than was thought."""
        keys = frozenset(s.key for op in ops if (s := signature_of(op, graph)))
        better = learned_target(
            target, [graph], anew=keys, environment=environment, on_progress=on_progress
        )
        before, after = target.facts, better.facts
        return better, sum(
            before.of(op, graph).requests != after.of(op, graph).requests for op in ops
        )

    better, changed = ask([graph.ops[op_id] for op_id in _near_the_peak(target, graph, plan)])
    if changed:  # what was thought of the others is not to be trusted either
        better, changed = ask(graph.ops)
    predicted = Predictor(graph, better).predict(plan)
    unexplained = max(0, peak_bytes - predicted.peak_bytes)
    if unexplained:
        better = better.replace(margin_bytes=better.margin_bytes + unexplained)
    remedy = f"kernels asked anew, {changed} ops' requests are others than was thought"
    if unexplained:
        remedy += f"; {megabytes(unexplained)} MB that nothing explains set aside"
    return better, remedy


def peak_op(target: Target, graph: StepGraph, plan: Plan) -> str:
    """Who stands at the plan's predicted peak."""
    return TimeSimulator(graph, target).timeline(plan).memory.peak_op


def _near_the_peak(target: Target, graph: StepGraph, plan: Plan) -> list[int]:
    """The ops that run while nearly as much is in use as at the peak."""
    simulator = TimeSimulator(graph, target)
    actions = simulator.simulator.actions(plan)
    memory = simulator.timeline(actions, series=True).memory
    assert memory.in_use_bytes is not None
    return sorted(
        {
            action.id
            for action, in_use in zip(actions, memory.in_use_bytes, strict=True)
            if action.kind in ("run", "recompute") and in_use >= _NEAR * memory.peak_bytes
        }
    )
