"""Plans for a step that breaks its budget as it is, whatever it was predicted to take."""

from __future__ import annotations

import msgspec
import pytest
import tensorflow as tf

from memtrade import planning
from memtrade.planning import Planner
from memtrade.settings import settings_of
from memtrade.strategies.base import clock_of
from memtrade.tf.extract import trace_concrete
from memtrade.tf.step import TrainStep
from tests.graphs import ARENA

BATCH = (tf.TensorSpec([256, 64]),)


def planned(budget_share: float) -> tuple[float, bool]:
    """The share of the original's peak that the plan is predicted to take, and whether it computes
    anything again or sends it away."""
    w = tf.Variable(tf.eye(64))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for _ in range(8):
                y = tf.tanh(y @ w)
            loss = tf.reduce_mean(y)
        w.assign_sub(tape.gradient(loss, w))
        return loss

    concrete = step.get_concrete_function(*BATCH)  # pyright: ignore[reportFunctionMemberAccess]
    traced = trace_concrete(TrainStep("step", step, BATCH, tuple, lambda: (w,)), concrete)
    clock = clock_of(traced.graph, ARENA)
    settings = settings_of("optimal", budget=int(budget_share * clock.original_bytes))
    planner = Planner("step", traced, settings, None, lambda: concrete)
    planner.__dict__["_untouched"] = planning._AsItIs(False)
    plan, _ = planner._foresee(settings.options, ARENA)
    saving = {"recompute", "swap_out"} & {action.kind for action in plan.actions}
    assert plan.actions
    return clock.needed(plan).peak_bytes / clock.original_bytes, bool(saving)


@pytest.mark.parametrize("share", [1.5, 0.5])
def test_the_fastest_that_holds_the_budget(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the original is foreseen below what the strategy comes down to."""

    def left(plan, clock):
        return msgspec.structs.replace(plan, actions=())

    monkeypatch.setattr(planning, "no_worse", left)
    taken, saving = planned(share)
    assert taken <= share
    assert saving == (share < 1)
