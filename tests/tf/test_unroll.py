"""Loops whose trip count is known are gone, and the step is the same to the bit."""

# TensorFlow and Keras annotate less than their functions take.
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memtrade
from memtrade.op_types import BODY_TYPES
from memtrade.tf import unroll
from memtrade.tf.extract import opened
from memtrade.tf.functions import ordered
from memtrade.tf.nodes import Constant, folded
from memtrade.tf.unroll import unrolled
from tests.tf.user_steps import descending

WIDTH = 8


def inputs(*shape: int) -> tf.Tensor:
    return tf.random.stateless_normal(shape, (1, 2))


def weight() -> tf.Variable:
    return tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], (0, 1)) / 3)


def of_weight(forward: Callable[[tf.Tensor, tf.Variable], tf.Tensor], *shape: int) -> Any:
    w = weight()
    return descending(lambda x: forward(x, w), [w]), inputs(*shape)


def of_layers(layers: list[keras.layers.Layer], *shape: int) -> Any:
    keras.utils.set_random_seed(0)
    tf.random.set_seed(0)
    model = keras.Sequential([keras.Input(shape[1:]), *layers, keras.layers.Dense(1)])
    variables = [each.value for each in model.trainable_variables]
    return descending(lambda x: model(x, training=True), variables), inputs(*shape)


def lstm() -> Any:
    return of_layers([keras.layers.LSTM(WIDTH)], 4, 9, WIDTH)


def masked_gru() -> Any:
    layers = [keras.layers.Masking(), keras.layers.GRU(WIDTH, return_sequences=True)]
    step, x = of_layers(layers, 4, 9, WIDTH)
    return step, x * tf.cast(tf.sequence_mask([9, 2, 5, 7], 9), tf.float32)[..., None]


def both_ways() -> Any:
    forward = keras.layers.LSTM(WIDTH, return_sequences=True)
    return of_layers([keras.layers.Bidirectional(forward), keras.layers.GRU(WIDTH)], 2, 5, WIDTH)


def conv_lstm() -> Any:
    return of_layers([keras.layers.ConvLSTM2D(2, 3, padding="same")], 2, 4, 6, 6, 3)


def mapped() -> Any:
    return of_weight(lambda x, w: tf.map_fn(lambda row: tf.nn.tanh(row @ w), x), 5, 3, WIDTH)


def mapped_twice() -> Any:
    def forward(x, w):
        return tf.map_fn(lambda row: tf.map_fn(lambda y: tf.nn.tanh(y @ w), row), x)

    return of_weight(forward, 4, 3, 2, WIDTH)


def numbered() -> Any:
    """A map over numbers, which each row is picked by."""

    def forward(x, w):
        picked = tf.map_fn(lambda i: x[:, i] @ w, tf.range(4), fn_output_signature=tf.float32)
        return tf.nn.tanh(picked)

    return of_weight(forward, 3, 5, WIDTH)


def scanned() -> Any:
    return of_weight(lambda x, w: tf.scan(lambda a, y: tf.nn.tanh(a @ w + y), x), 6, 3, WIDTH)


def looped(
    x: tf.Tensor,
    times: Any,
    body: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    at_a_time: int = 10,
) -> Any:
    return tf.while_loop(
        lambda i, x: i < times,
        lambda i, x: (i + 1, body(i, x)),
        (0, x),
        parallel_iterations=at_a_time,
    )[1]


# A random op that reads nothing of its iteration does not wait for the iteration before, and
# TensorFlow runs ten iterations beside each other: which of them draws first, its threads decide,
# and the loop differs from itself. One at a time draws in order, as an unrolled loop always does.
one_at_a_time = functools.partial(looped, at_a_time=1)


def triangle() -> Any:
    """The inner loop runs as often as the outer one has so far."""

    def forward(x, w):
        return looped(x, 4, lambda i, x: looped(x, i, lambda j, y: tf.nn.tanh(y @ w)) + 0.1)

    return of_weight(forward, 3, WIDTH)


def gathered() -> Any:
    """The gradient of rows that are picked is a list of slices."""
    return of_weight(
        lambda x, w: looped(x, 3, lambda i, x: tf.tanh(x + tf.gather(w, tf.range(2) + i))), 2, WIDTH
    )


def counted() -> Any:
    """A variable that iterations write to in turn, branches by the counter, rows one by one."""
    w, count = weight(), tf.Variable(1)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y, rows = x, 0.0
            for i in tf.range(5):
                y = tf.nn.tanh(y @ w)
                count.assign(count * 2 + i)
                if i % 2 == 0:
                    y += tf.cast(count, tf.float32) / 1e3
            for row in y:
                rows += tf.reduce_sum(row)
            loss = tf.reduce_mean(y**2) + rows
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss, count.read_value()

    return train_step, inputs(3, WIDTH)


def signed_zeros() -> Any:
    """What is read twice gets a sum of gradients, and -0 + 0 is 0."""

    def forward(x, w):
        rows = tf.TensorArray(tf.float32, 3).unstack(x)
        y = looped(x[0], 3, lambda i, y: tf.tanh(y @ w) + rows.read(i) * rows.read(2 - i))
        return y + 0.0 * rows.stack()

    w = weight()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_mean(forward(x, w))
        return loss, tape.gradient(loss, x)

    return train_step, -tf.abs(inputs(3, 2, WIDTH))


def branching() -> Any:
    """Branches by the counter whose gradients need what was computed in them."""

    def body(i: tf.Tensor, x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
        return tf.cond(i % 2 == 0, lambda: tf.nn.tanh(x @ w), lambda: tf.sin(x) * x)

    return of_weight(lambda x, w: looped(x, 5, lambda i, x: body(i, x, w)), 3, WIDTH)


def joined() -> Any:
    """A gradient that asks where each of several tensors begins: constants that are a list."""

    def body(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
        return tf.nn.tanh(tf.concat([x, tf.sin(x)], 1) @ tf.concat([w, w], 0))

    return of_weight(lambda x, w: looped(x, 3, lambda i, x: body(x, w)), 3, WIDTH)


def by_data(seen: Any = 0.1) -> Any:
    def forward(x, w):
        return tf.while_loop(
            lambda i, x: tf.logical_and(i < 9, tf.reduce_max(x) > seen),
            lambda i, x: (i + 1, tf.nn.tanh(x @ w)),
            (0, x),
        )[1]

    return of_weight(forward, 3, WIDTH)


def dropped() -> Any:
    """Random ops that count on in their kernels."""
    tf.random.set_seed(7)
    return of_weight(
        lambda x, w: one_at_a_time(x, 4, lambda i, x: tf.nn.dropout(tf.tanh(x @ w), 0.3)),
        3,
        WIDTH,
    )


UNROLLED = {
    each.__name__: each
    for each in (lstm, masked_gru, both_ways, conv_lstm, mapped, mapped_twice, numbered, scanned,
                 triangle, gathered, branching, counted, signed_zeros, joined, dropped)
}  # fmt: skip


def both(step: Any, x: tf.Tensor) -> tuple[Any, Any]:
    """The step as it is traced, and unrolled."""
    specs = [tf.TensorSpec(x.shape, x.dtype)]
    concrete = step.get_concrete_function(*specs)
    return concrete, unrolled(opened(concrete, specs), specs)


def same(original: Any, other: Any, x: tf.Tensor, steps: int = 3) -> bool:
    """Whether both return and write the same bits, from the same variables."""
    variables = original.variables
    before = [v.numpy() for v in variables]
    seen = []
    for concrete in (original, other):
        tf.random.set_seed(0)  # random kernels begin anew
        values = []
        for _ in range(steps):
            values += [np.asarray(each) for each in tf.nest.flatten(concrete(x))]
            values += [v.numpy() for v in variables]
        seen.append([each.tobytes() for each in values])
        for v, value in zip(variables, before, strict=True):
            v.assign(value)
    return seen[0] == seen[1]


def types(concrete: Any) -> Counter[str]:
    return Counter(operation.type for operation in concrete.graph.get_operations())


@pytest.mark.parametrize("name", UNROLLED)
def test_an_unrolled_step_is_the_same_to_the_bit(name: str):
    step, x = UNROLLED[name]()
    original, without = both(step, x)
    assert BODY_TYPES & types(original).keys()
    assert not {
        each for each in types(without) if each in BODY_TYPES or "List" in each or "Opt" in each
    }
    assert same(original, without, x)


def test_a_loop_whose_end_depends_on_data_stays():
    original, left = both(*by_data())
    assert left is original


def test_so_does_one_that_is_found_to_depend_on_data_after_some_iterations():
    def forward(x, w):
        def body(i, going, x):
            return i + 1, tf.logical_or(i < 2, tf.reduce_max(x) > 0.1), tf.nn.tanh(x @ w)

        def goes_on(i, going, x):
            return tf.logical_and(i < 9, going)

        return tf.while_loop(goes_on, body, (0, True, looped(x, 3, lambda i, x: x @ w)))[2]

    step, x = of_weight(forward, 3, WIDTH)
    original, one = both(step, x)
    whiles = [sum(types(each)[t] for t in ("While", "StatelessWhile")) for each in (original, one)]
    assert whiles == [4, 2]
    assert same(original, one, x)


def test_what_would_be_too_large_stays_with_the_loop_of_its_gradient(monkeypatch):
    def forward(x, w):
        x = looped(x, 30, lambda i, x: tf.nn.tanh(x @ w))
        return looped(x, 3, lambda i, x: tf.nn.tanh(x @ w))

    step, x = of_weight(forward, 3, WIDTH)
    monkeypatch.setattr(unroll, "MOST_OPS", 150)
    original, small = both(step, x)
    assert types(small)["While"] + types(small)["StatelessWhile"] == 2
    assert same(original, small, x)
    monkeypatch.setattr(unroll, "MOST_OPS", 400)
    _, large = both(step, x)
    assert not BODY_TYPES & types(large).keys()
    assert same(original, large, x)


def test_variables_are_read_once_where_the_loop_does_not_write():
    step, x = of_weight(lambda x, w: looped(x, 6, lambda i, x: tf.nn.tanh(x @ w)), 3, WIDTH)
    _, without = both(step, x)
    assert types(without)["MatMul"] == 3 * 6
    assert types(without)["ReadVariableOp"] <= 2


def test_prints_keep_their_number_and_their_order(capfd):
    def body(i, x):
        tf.print("iteration", i)
        return x * 2.0

    @tf.function
    def step(x):
        return looped(x, 12, body)

    x = inputs(2)
    _, without = both(step, x)
    assert not BODY_TYPES & types(without).keys()
    without(x)
    printed = capfd.readouterr().err.split()
    assert [int(each) for each in printed if each.isdecimal()] == list(range(12))


def test_random_numbers_are_drawn_as_often_as_before_and_none_twice():
    step, x = dropped()
    _, without = both(step, x)
    assert types(without)["StatefulPartitionedCall"] == 4


def test_they_are_drawn_in_order_even_where_the_loop_does_not():
    def drawing(loop: Callable[..., Any]) -> tuple[Any, Any]:
        tf.random.set_seed(7)
        step = tf.function(lambda x: loop(x, 3, lambda i, x: 10.0 * x + tf.random.uniform([2])))
        return both(step, tf.zeros([2]))

    original, without = drawing(one_at_a_time)
    assert same(original, without, tf.zeros([2]))
    _, without = drawing(looped)
    assert same(original, without, tf.zeros([2]))


def test_a_step_without_loops_is_left_alone():
    w = weight()
    original, left = both(descending(lambda x: x @ w, [w]), inputs(3, WIDTH))
    assert left is original


def test_a_plan_sees_the_chain():
    step, x = of_layers([keras.layers.LSTM(64)], 64, 6, 64)
    lean = memtrade.apply(step, x, strategy="checkpoints")
    inner = lean.get_concrete_function(x).graph
    definitions = inner.as_graph_def().library.function
    names = [node.name for each in definitions for node in each.node_def]
    assert any("memtrade/again" in name and "while" in name for name in names)


def node(op: str, **attrs: int) -> Any:
    made = tf.compat.v1.NodeDef(op=op, name="a")
    for key, value in attrs.items():
        made.attr[key].i = value
    return made


@pytest.mark.parametrize(
    ("op", "values", "expected"),
    [("AddV2", (3, 4), 7), ("Less", (3, 4), True), ("FloorDiv", (7, 2), 3),
     ("FloorDiv", (7, 0), None), ("LogicalAnd", (False, None), False),
     ("LogicalAnd", (True, None), None), ("Tanh", (1,), None), ("Pack", (3,), [3]),
     ("Select", (True, [0, 1], [1, 0]), [0, 1]), ("SelectV2", (False, 3, 4), 4),
     ("Select", ([True, False], [[1, 2], [3, 4]], [[5, 6], [7, 8]]), None)],
)  # fmt: skip
def test_constants(op: str, values: tuple[Any, ...], expected: Any):
    made = folded(node(op), ["x" if each is None else Constant(each) for each in values])
    assert (made and made.array.tolist()) == expected


@pytest.mark.parametrize(
    ("start", "stop", "mask", "expected"),
    [(1, 2, 1, 5), (-1, 0, 1, 6), (1, 3, 0, [5, 6]), (7, 8, 1, None)],
)
def test_a_dimension_of_a_shape(start: int, stop: int, mask: int, expected: Any):
    vector = [Constant(np.array(each)) for each in ([4, 5, 6], [start], [stop], [1])]
    made = folded(node("StridedSlice", shrink_axis_mask=mask), vector)
    assert (made and made.array.tolist()) == expected


def test_nodes_stand_behind_what_they_read():
    read = {"a": ["c:1"], "b": [], "c": ["^d", "b"], "d": []}
    nodes = [tf.compat.v1.NodeDef(name=name, input=read[name]) for name in read]
    assert [each.name for each in ordered(nodes)] == ["d", "b", "c", "a"]
