"""Long sums in groups: the same bits, less at once."""

# TensorFlow's annotations say less than its functions take.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import logging

import pytest
import tensorflow as tf

import memtrade
from memtrade.tf.sums import in_groups
from tests.corpus.parts import descend, normal, weights
from tests.corpus.running import differing


@pytest.mark.parametrize("count", [9, 10, 16, 17, 18, 24, 25, 40])
def test_groups_make_the_same_bits(count):
    parts = normal(count, 40, 50) * tf.exp(6 * normal(count, 1, 1, seed=3))
    concrete = tf.function(lambda x: tf.add_n(tf.unstack(x))).get_concrete_function(parts)
    grouped = in_groups(concrete, [tf.TensorSpec(parts.shape)])
    types = [each.type for each in grouped.graph.get_operations()]
    assert types.count("AddV2") == (count - 2) // 8
    assert concrete(parts).numpy().tobytes() == grouped(parts).numpy().tobytes()


def test_other_bits_would_be_noticed():
    parts = normal(20, 40, 50) * tf.exp(6 * normal(20, 1, 1, seed=3))
    one_by_one = sum(tf.unstack(parts)[1:], parts[0])
    assert one_by_one.numpy().tobytes() != tf.add_n(tf.unstack(parts)).numpy().tobytes()


def sliced():
    """A loop in Python over the time of what was computed: 40 gradients as large as all of it."""
    first, second, out = weights([16, 48], [48, 48], [48, 4])

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            wide = tf.tanh(x @ first)
            state = tf.zeros([8, 48])
            for i in range(40):
                state = tf.tanh(state @ second + wide[:, i])
            loss = tf.reduce_mean((state @ out) ** 2)
        descend(tape, loss, [first, second, out])
        return loss

    return train_step, (normal(8, 40, 16),)


def test_a_loop_over_slices_takes_a_third(caplog):
    step, batch = sliced()
    with caplog.at_level(logging.INFO, "memtrade"):
        lean = memtrade.apply(step, batch, "checkpoints")
    predicted = caplog.records[-1].__dict__
    assert predicted["original_bytes"] > 40 * 8 * 40 * 48 * 4  # all parts at once
    assert predicted["peak_bytes"] < predicted["original_bytes"] / 3
    assert differing(step, lean, batch) == []
