# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false
"""Random steps: whatever is drawn, a rewritten step is the same, or refused in one line."""

import warnings

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memtrade
from memtrade.errors import MemtradeError
from memtrade.strategies import PLANNED
from tests.corpus.parts import normal, weights
from tests.corpus.running import differing

ROWS, WIDTH = 512, 32

# What a layer may do with the rows, those of the layer before, its weights and its number.
LAYERS = {
    "dense": lambda x, before, w, i: tf.nn.tanh(x @ w),
    "residual": lambda x, before, w, i: x + tf.nn.gelu(x @ w),
    "skip": lambda x, before, w, i: 0.5 * (x @ w) + before,
    "norm": lambda x, before, w, i: tf.nn.l2_normalize(x @ w, 1) * tf.reduce_max(x),
    "split": lambda x, before, w, i: tf.concat(tf.split(x @ w, 2, axis=1)[::-1], 1),
    "gate": lambda x, before, w, i: tf.where(before > 0.0, x @ w, tf.sin(x)),
    "gather": lambda x, before, w, i: tf.gather(x @ w, tf.range(ROWS)[::-1]),
    "dropout": lambda x, before, w, i: tf.nn.experimental.stateless_dropout(x @ w, 0.2, [i, 1]),
    "random": lambda x, before, w, i: x @ w + 0.1 * tf.random.normal([ROWS, WIDTH], seed=i),
    "branch": lambda x, before, w, i: tf.cond(
        tf.reduce_sum(x) > 0.0, lambda: tf.sin(x @ w), lambda: tf.cos(x @ w)
    ),
    "loop": lambda x, before, w, i: tf.while_loop(
        lambda n, _: n < 3, lambda n, y: (n + 1, tf.nn.tanh(y @ w)), (0, x)
    )[1],
    "stop": lambda x, before, w, i: x + tf.stop_gradient(tf.nn.relu(x @ w)),
}
NEVER_REFUSED = ("ome", "checkpoints", "lms", "optimal", "greedy")
UPDATES = ("plain", "momentum", "clipped", "two losses")


def drawn_step(kinds: list[str], update: str):
    layers = weights(*[[WIDTH, WIDTH]] * len(kinds))
    slots = [tf.Variable(tf.zeros_like(w)) for w in layers]
    tf.random.set_seed(0)

    @tf.function(autograph=False)
    def train_step(x):
        with tf.GradientTape(persistent=update == "two losses") as tape:
            before, y = x, x
            for i, (kind, w) in enumerate(zip(kinds, layers, strict=True)):
                before, y = y, LAYERS[kind](y, before, w, i)
            loss, side = tf.reduce_mean(y**2), tf.reduce_mean(tf.abs(before))
        gradients = tape.gradient(loss, layers, unconnected_gradients=zeros)
        if update == "two losses":
            more = tape.gradient(side, layers, unconnected_gradients=zeros)
            gradients = [a + b for a, b in zip(gradients, more, strict=True)]
        if update == "clipped":
            gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        for w, slot, gradient in zip(layers, slots, gradients, strict=True):
            if update == "momentum":
                gradient = slot.assign(0.9 * slot + gradient)
            w.assign_sub(0.01 * gradient)
        return {"first": loss, "second": side}

    zeros = tf.UnconnectedGradients.ZERO
    return train_step, (normal(ROWS, WIDTH),)


@pytest.mark.parametrize("strategy", [name for name in PLANNED if name != "original"])
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    kinds=st.lists(st.sampled_from(sorted(LAYERS)), min_size=2, max_size=8),
    update=st.sampled_from(UPDATES),
)
def test_a_random_step_stays_the_same(strategy, kinds, update):
    step, batch = drawn_step(kinds, update)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            lean = memtrade.apply(step, batch, strategy)
        except MemtradeError:  # rules for chains alone
            assert strategy not in NEVER_REFUSED
            return
        assert differing(step, lean, batch) == []
