"""Peaks of steps that tracing does not size, and of Keras models, against the allocator's own."""

from __future__ import annotations

from typing import Any

import pytest

from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import run_child

LIMIT_BYTES = 1 << 30


def peaks(model: str, strategy: str = "lms", **options: Any) -> tuple[int, tuple[int, ...]]:
    """The predicted peak, and the measured one of each step."""
    spec = TrialSpec(
        model=model,
        model_options=options,
        strategy=strategy,
        memory_limit_bytes=LIMIT_BYTES,
        steps=3,
    )
    outcome = run_child(spec, timeout_seconds=120)
    assert outcome.measured is not None, outcome.reason
    assert outcome.predicted is not None
    assert outcome.predicted.bound != "≥"
    return outcome.predicted.peak_bytes, outcome.measured.peak_bytes_by_step


@pytest.mark.parametrize(
    ("step", "batch_size", "most"), [("masked", 4096, 1.02), ("branched", 2048, 1.3)]
)
def test_what_tracing_does_not_size_is_bounded_from_above(step: str, batch_size: int, most: float):
    """In every step the same: the gradient that a branch makes for nobody is there before the next
    action, or it would hold a weight's value while that is updated, and so have it moved."""
    target = f"tests.tf.unsized_steps:{step}"
    predicted, measured = peaks("target", target=target, batch_size=batch_size)
    assert max(measured) * 0.995 <= predicted <= max(measured) * most
    assert len(set(measured)) == 1


@pytest.mark.usefixtures("asking")
def test_lists_hold_copies_of_what_they_are_made_of():
    predicted, measured = peaks("target", "ome", target="tests.tf.unsized_steps:listed")
    assert max(measured) * 0.995 <= predicted <= max(measured) * 1.005


@pytest.mark.usefixtures("asking")
def test_an_unrolled_loop_takes_half_and_what_is_predicted():
    target = "tests.tf.unsized_steps:recurrent"
    _, original = peaks("target", "original", target=target, batch_size=256)
    predicted, measured = peaks("target", "checkpoints", target=target, batch_size=256)
    assert max(measured) * 0.995 <= predicted <= max(measured) * 1.02
    assert max(measured) <= max(original) / 2


def test_constants_of_a_branch_are_computed_before_the_first_step_and_merged():
    target = "tests.tf.unsized_steps:accumulating"
    predicted, measured = peaks("target", "original", target=target, batch_size=64)
    assert measured[0] * 0.995 <= predicted <= measured[0] * 1.02


@pytest.mark.usefixtures("asking")
def test_a_keras_step_takes_what_is_predicted_in_every_step():
    name = "keras/MobileNetV3Small"
    predicted, measured = peaks(name, "ome", image_size=96, batch_size=16)
    assert max(measured) * 0.995 <= predicted <= max(measured) * 1.02
    assert len(set(measured[1:])) == 1


def test_a_budget_is_refused_where_nothing_tells_a_size():
    spec = TrialSpec(
        model="target",
        model_options={"target": "tests.tf.unsized_steps:counting", "batch_size": 64},
        strategy="greedy",
        strategy_options={"budget": "60MB"},
        memory_limit_bytes=LIMIT_BYTES,
    )
    outcome = run_child(spec, timeout_seconds=120)
    assert outcome.status == "unsupported"
    assert "a budget needs the size of every tensor" in outcome.reason
    assert "while" in outcome.reason
