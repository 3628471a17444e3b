"""memtrade.inspect: what is in a step, and what follows, before anything is planned."""

import pytest
import tensorflow as tf

import memtrade
from memtrade.errors import UnsupportedGraphError
from memtrade.tf.findings import refusals

WEIGHT = tf.Variable(tf.ones([8, 8]), name="weight")
BATCH = tf.ones([4, 8])


def plain(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.tanh(tf.tanh(x @ WEIGHT) @ WEIGHT))
    WEIGHT.assign_sub(tape.gradient(loss, WEIGHT))
    return loss


def looping(x):
    y = tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: (y + plain(y),), (x,))[0]
    return tf.reduce_sum(y)


def scanned(x):
    return plain(tf.scan(lambda total, row: total + row, x))


def branching(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: plain(x), lambda: 0.0)


def random(x):
    return plain(x + tf.random.normal([4, 8]))


def masked(x):
    return plain(tf.boolean_mask(x, x[:, 0] > 0))


def on_two_devices(x):
    with tf.device("CPU:0"):
        y = x * 2.0
    with tf.device("CPU:1"):
        return plain(y)


@tf.function(jit_compile=True)
def doubled(x):
    return x * 2.0


def compiled(x):
    return plain(doubled(x))


def python(x):
    return plain(tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), [4, 8]))


def in_place(x):
    return plain(tf.raw_ops.InplaceUpdate(x=x, i=[0], v=x[1:2]))


def collective(x):
    reduced = tf.raw_ops.CollectiveReduceV2(
        input=x, group_size=1, group_key=1, instance_key=1, ordering_token=[], merge_op="Add",
        final_op="Id",
    )  # fmt: skip
    return plain(reduced)


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (looping, "loops"), (branching, "branches"), (random, "random ops with a state"),
        (scanned, "unrolled loops"), (masked, "bounded tensors"),
        (on_two_devices, "several devices"), (compiled, "functions for XLA"),
        (collective, "collectives"), (python, "Python calls"),
    ],
)  # fmt: skip
def test_what_is_in_a_step_is_found(step, what):
    found = {each.what: each for each in memtrade.inspect(step, BATCH)}
    assert set(found) >= {"loss", "activations", what}
    assert not any(each.refused for each in found.values())
    assert found[what].count >= 1
    assert what not in {each.what for each in memtrade.inspect(plain, BATCH)}


def test_what_is_refused_is_found_too():
    [found] = [each for each in memtrade.inspect(in_place, BATCH) if each.refused]
    assert found.what == "in-place ops"
    with pytest.raises(UnsupportedGraphError) as refused:
        memtrade.apply(in_place, BATCH)
    assert str(refused.value) == f"op {found.where} {found.follows}"


@pytest.mark.parametrize(
    ("device", "word"),
    [
        ("/job:ps/task:0/device:CPU:0", "a parameter server"),
        ("/job:worker/task:1/device:CPU:0", "in several processes"),
        ("/device:TPU:0", "XLA compiles all"),
    ],
)
def test_what_runs_where_nobody_can_plan_is_refused(device, word):
    def step(x):
        with tf.device(device):
            y = x * 2.0
        with tf.device("/job:worker/task:0/device:CPU:0"):
            return plain(y)

    with pytest.raises(UnsupportedGraphError, match=word):
        memtrade.apply(step, BATCH)


def test_variables_as_arguments_are_found():
    def step(weight, x):
        return tf.reduce_sum(x @ weight)

    found = {each.what: each for each in memtrade.inspect(step, WEIGHT, BATCH)}
    assert found["variables as arguments"].where == WEIGHT.name


def test_a_step_that_nothing_is_refused_of_has_no_refusals():
    graph_def = tf.function(plain).get_concrete_function(BATCH).graph.as_graph_def()
    assert list(refusals(graph_def)) == []
