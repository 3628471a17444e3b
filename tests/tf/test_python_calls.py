"""Steps that call Python: each call once, where the step has it, and its function stays there."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import memtrade
from memtrade.bounds import bound_of
from memtrade.errors import UnsupportedGraphError
from memtrade.facts.signature import signature_of
from memtrade.strategies import find_planned, make_options
from tests.graphs import ARENA
from tests.tf.test_origins import graph_of

WIDTH, BATCH = 64, tf.reshape(tf.linspace(-1.0, 1.0, 512 * 64), [512, 64])


def middle(x):
    """A differentiated call into Python."""
    return tf.ensure_shape(tf.py_function(lambda v: tf.tanh(v) * v, [x], tf.float32), x.shape)


def step_and_log(between=tf.nn.tanh):
    """Its weights and losses, as Python sees them after each step, and what it was given."""
    weights = [tf.Variable(tf.eye(WIDTH) * 0.5) for _ in range(16)]
    optimizer = tf.keras.optimizers.SGD(100.0)
    optimizer.build(weights)
    log = []

    def note(loss):
        log.append((float(loss), float(weights[0][0, 0])))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for i, weight in enumerate(weights):
                x = (between if i == 4 else tf.nn.sigmoid)(x @ weight)
            loss = tf.reduce_mean(tf.square(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        tf.py_function(note, [loss], [])
        return loss

    return step, log


@pytest.mark.filterwarnings("error::UserWarning")  # such as one that it runs as it is
@pytest.mark.parametrize("strategy", ["ome", "checkpoints"])
@pytest.mark.parametrize("between", [tf.nn.tanh, middle])
def test_python_sees_the_same_once_and_in_its_place(strategy, between):
    step, expected = step_and_log(between)
    for _ in range(3):
        step(BATCH)
    step, log = step_and_log(between)
    lean = memtrade.apply(step, BATCH, strategy)
    del step
    gc.collect()
    for _ in range(3):
        lean(BATCH)
    assert len(log) == 3  # neither planning nor a clone has called it
    assert np.diff([loss for loss, _ in log]).all()
    np.testing.assert_allclose(log, expected, rtol=1e-5)


def test_what_it_takes_is_foreseen_about_and_not_asked():
    def scaled(x):
        y = tf.numpy_function(lambda v: 2 * v, [tf.stop_gradient(x)], tf.float32, stateful=False)
        return x * tf.ensure_shape(y, x.shape)

    graph = graph_of(step_and_log(scaled)[0], BATCH)
    [call] = [op for op in graph.ops if op.type == "PyFuncStateless"]
    assert graph.tensors[call.outputs[0]].size_bytes == 4 * 512 * 64
    assert signature_of(call, graph) is None
    plan = find_planned("ome").plan(graph, make_options("ome"), ARENA)
    assert plan.actions
    assert bound_of(graph, plan) == "≈"


def test_a_budget_needs_the_shape_of_what_it_returns():
    def open_shape(x):
        return x * tf.numpy_function(lambda v: 2 * v, [tf.stop_gradient(x)], tf.float32)

    with pytest.raises(
        UnsupportedGraphError, match=r"PyFunc:0.* Python returns by tf.ensure_shape"
    ):
        memtrade.apply(step_and_log(open_shape)[0], BATCH, budget="3MB")
