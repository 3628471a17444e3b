# pyright: reportArgumentType=false
# (TensorFlow annotates less than tf.Variable takes.)
import pytest
import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.tf.extract import trace
from memtrade.tf.loss import find_loss
from tests.tf.test_extract import step_of

A, B, MANY = tf.constant(1.0), tf.constant(2.0), tf.constant([1.0, 2.0])


@pytest.mark.parametrize(
    "returned",
    [
        A,
        (A, MANY),
        [tf.constant(3), {"any name": A}],
        {"accuracy": B, "loss": A},
        (B, {"nested": {"loss": A}}, None),
        {"mse_loss": A, "accuracy": B},
        {"loss": A, "side_loss": B},
    ],
)
def test_the_loss_is_the_scalar_or_the_one_of_that_name(returned):
    assert find_loss(returned) is A


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((A, B), r"not clear .* \(0, 1\): return the one .* \{\"loss\": ...\}"),
        ({"d_loss": A, "g_loss": B}, r"not clear .* \(d_loss, g_loss\)"),
        (({"loss": A}, {"loss": B}), r"\(0/loss, 1/loss\)"),
        (MANY, "no loss found: .* Return the loss"),
        (None, "no loss found"),
        (tf.constant(1), "no loss found"),
    ],
)
def test_what_to_return_is_said(returned, message):
    with pytest.raises(UnsupportedGraphError, match=message):
        find_loss(returned)


def test_a_running_mean_leads_back_to_the_loss():
    """As Keras returns it: read from a variable to which the loss was added before."""
    total, count, weight = tf.Variable(0.0), tf.Variable(0.0), tf.Variable([1.0, 2.0])

    def step(x):
        loss = tf.reduce_sum(tf.sin(x * weight))
        weight.assign_sub(tf.cos(x))
        total.assign_add(loss)
        count.assign_add(tf.cast(tf.size(x), tf.float32))
        return tf.math.divide_no_nan(total, count)

    graph = trace(step_of(step, tf.TensorSpec([2]))).graph
    assert graph.ops[graph.tensors[graph.loss].op].type == "Sum"
    assert {graph.ops[i].type for i in graph.forward} >= {"Sin", "Mul", "Sum"}


def test_a_loss_that_reads_updated_weights_is_the_loss():
    weight = tf.Variable([1.0, 2.0])

    def step(x):
        weight.assign_add(x)
        return tf.reduce_sum(tf.sin(x * weight))

    graph = trace(step_of(step, tf.TensorSpec([2]))).graph
    assert graph.ops[graph.tensors[graph.loss].op].type == "Sum"
