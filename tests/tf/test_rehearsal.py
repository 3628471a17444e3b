"""Which steps may be rehearsed: those that do no more than compute and update variables."""

from __future__ import annotations

import pytest
import tensorflow as tf

from memtrade.tf.extract import trace_concrete
from memtrade.tf.rehearsal import can_be_rehearsed
from memtrade.tf.rehearsal import rehearsed as rehearse
from memtrade.tf.step import TrainStep

BATCH = (tf.TensorSpec([16, 8]),)


def rehearsed(then) -> bool:
    """Whether a step is that does `then`, of a variable and its gradient, if that is finite, in a
    function of its own and in as many iterations as the batch says."""
    weight = tf.Variable(tf.eye(8))
    inner = tf.function(then)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(x @ weight))
        gradient = tape.gradient(loss, weight)
        if tf.reduce_all(tf.math.is_finite(gradient)):
            inner(weight, gradient)
        for _ in tf.range(tf.cast(x[0, 0], tf.int32)):
            inner(weight, gradient)
        return loss

    concrete = step.get_concrete_function(*BATCH)  # pyright: ignore[reportFunctionMemberAccess]
    traced = trace_concrete(TrainStep("step", step, BATCH, tuple, lambda: (weight,)), concrete)
    return can_be_rehearsed(traced)


@pytest.mark.parametrize(
    "then",
    [
        lambda weight, gradient: weight.assign_sub(0.1 * gradient),
        lambda weight, gradient: weight.assign(gradient + tf.random.normal([8, 8])),
        lambda weight, gradient: weight.scatter_sub(
            tf.IndexedSlices(gradient[:1], tf.constant([0]))
        ),
        lambda weight, gradient: weight.assign_sub(
            gradient * tf.gather_nd(weight, tf.constant([[0]]))
        ),
    ],
)
def test_a_step_is_whose_branches_and_loops_update_variables(then):
    assert rehearsed(then)


def test_a_step_is_not_whose_branches_and_loops_do_more():
    def prints(weight, gradient):
        tf.print(gradient)

    assert not rehearsed(prints)


@pytest.mark.parametrize("example", [None, [tf.ones([16, 8])]])
def test_what_a_step_asserts_of_its_batch_holds_for_the_one_that_is_given(example):
    """As `tf.repeat` does; of a batch that is made up, nobody knows."""
    weight = tf.Variable(tf.eye(8))

    @tf.function
    def step(x):
        tf.debugging.Assert(tf.reduce_all(x > 0), [x])
        weight.assign_sub(tf.transpose(x) @ x)
        return tf.reduce_sum(weight)

    concrete = step.get_concrete_function(*BATCH)  # pyright: ignore[reportFunctionMemberAccess]
    made = TrainStep("step", step, BATCH, tuple, lambda: (weight,), example=example)
    assert can_be_rehearsed(trace_concrete(made, concrete)) == (example is not None)


def test_an_assertion_that_does_not_hold_is_left_to_whoever_calls_the_step(monkeypatch):
    weight = tf.Variable(tf.ones([]))

    @tf.function
    def step(x):
        weight.assign_add(1.0)
        tf.debugging.assert_positive(x)
        return weight * tf.reduce_sum(x)

    concrete = step.get_concrete_function(*BATCH)  # pyright: ignore[reportFunctionMemberAccess]
    example = [-tf.ones([16, 8])]
    made = TrainStep("step", step, BATCH, tuple, lambda: (weight,), example=example)
    traced = trace_concrete(made, concrete)
    counts = {"current": 0, "peak": 0}  # as a device that counts says
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda device: counts)
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", lambda device: None)
    tried = rehearse(traced, lambda: concrete, "CPU:0", None, lambda made, values: made(*values))
    assert (tried.concrete, tried.taken_bytes) == (concrete, None)
    assert weight.numpy() == 1.0
