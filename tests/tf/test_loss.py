# pyright: reportArgumentType=false
# (TensorFlow annotates less than tf.Variable takes.)
import pytest
import tensorflow as tf

from memtrade.errors import UnknownNameError, UnsupportedGraphError
from memtrade.tf.extract import trace
from memtrade.tf.loss import candidates, returned_loss
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
        {"side_loss": B, "loss": A},
    ],
)
def test_the_scalar_or_the_one_of_that_name_is_tried_first(returned):
    assert candidates(returned)[0] == [A]
    assert returned_loss(returned) is A


def test_what_no_name_tells_apart_is_tried_together():
    assert candidates({"d_loss": A, "norm": MANY[0], "g_loss": B})[0] == [A, B]
    assert candidates((None, tf.constant(1), MANY)) == []


def test_the_loss_can_be_named():
    returned = {"parts": (A, B), "many": MANY}
    for named in ("parts/1", 1, lambda found: found["parts"][1]):
        assert candidates(returned, named) == [[B]]
    assert candidates((A, B), -1) == [[B]]
    with pytest.raises(UnknownNameError, match="did you mean 'parts/1'"):
        candidates(returned, "part/1")
    with pytest.raises(UnknownNameError, match="choices are many, parts/0, parts/1"):
        candidates(returned, 3)
    with pytest.raises(UnsupportedGraphError, match="fails on what the step returns: 'total'"):
        candidates(returned, lambda found: found["total"])
    with pytest.raises(UnsupportedGraphError, match="is no floating-point tensor that the step"):
        candidates((tf.constant(1), A), 0)
    with pytest.raises(UnsupportedGraphError, match="is no floating-point tensor that the step"):
        candidates((A, B), lambda found: found[0] + found[1])


def loss_of(step, *specs) -> str:
    graph = trace(step_of(step, *specs)).graph
    return graph.ops[graph.tensors[graph.loss].op].type


def trained(returns):
    """A small network with an update; `returns` says what it returns."""
    weights = [tf.Variable(tf.ones([3, 3]) / 3.0) for _ in range(3)]

    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for w in weights:
                y = tf.nn.tanh(y @ w)
            loss = tf.reduce_mean(y**2)
        gradients = tape.gradient(loss, weights)
        for w, gradient in zip(weights, gradients, strict=True):
            w.assign_sub(gradient)
        return returns(loss, gradients, y)

    return step, tf.TensorSpec([5, 3])


def test_a_norm_of_gradients_is_no_loss():
    """Nor is a scalar that leads to no update: the loss is where the gradients begin."""
    norm = trained(lambda loss, gradients, y: tf.linalg.global_norm(gradients))
    both = trained(lambda loss, gradients, y: (tf.linalg.global_norm(gradients), loss))
    nothing = trained(lambda loss, gradients, y: None)
    assert loss_of(*both) == "Mean"
    for step in (norm, nothing):
        graph = trace(step_of(*step)).graph
        kinds = [graph.ops[i].type for i in sorted(graph.forward)]
        assert kinds.count("MatMul") == kinds.count("Tanh") == 3


def test_without_updates_what_is_returned_leads_to_the_loss():
    """A scalar, or else the gradients, which somebody else will apply."""
    spec = tf.TensorSpec([2])
    assert loss_of(lambda x: (tf.reduce_sum(x), tf.reduce_max(x)), spec) == "Sum"
    with pytest.raises(UnsupportedGraphError, match=r"no loss found.*Return the loss"):
        trace(step_of(lambda x: tf.constant([1, 2]), spec))
    weight = tf.Variable(tf.ones([64, 64]))

    def gradients(x):
        with tf.GradientTape() as tape:
            y = x
            for _ in range(3):
                y = tf.nn.tanh(y @ weight)
            loss = tf.reduce_mean(y)
        return tape.gradient(loss, [weight])

    graph = trace(step_of(gradients, tf.TensorSpec([256, 64]))).graph
    kinds = [graph.ops[i].type for i in sorted(graph.forward)]
    assert kinds.count("MatMul") == kinds.count("Tanh") == 3


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


def test_without_a_batch_what_variables_lead_to_is_the_way():
    """What is trained may be all that a step takes, as an image is whose style is changed."""
    image = tf.Variable(tf.ones([64, 64]))

    def step():
        with tf.GradientTape() as tape:
            y = image
            for _ in range(3):
                y = tf.nn.tanh(y @ tf.ones([64, 64]))
            loss = tf.reduce_mean(y**2)
        image.assign_sub(tape.gradient(loss, image))

    graph = trace(step_of(step)).graph
    kinds = [graph.ops[i].type for i in sorted(graph.forward)]
    assert kinds.count("MatMul") == kinds.count("Tanh") == 3
