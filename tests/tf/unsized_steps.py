"""Steps with tensors that tracing does not size: masks, loops, branches. Targets for trials."""

# TensorFlow and Keras annotate less than their functions take.
# pyright: reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.tf.user_steps import descending

WIDTH = 256


def _weights(count: int = 4) -> list[tf.Variable]:
    shape = [WIDTH, WIDTH]
    return [tf.Variable(tf.random.stateless_normal(shape, (0, i)) / 16) for i in range(count)]


def _deep(x: Any, weights: list[tf.Variable]) -> Any:
    for w in weights:
        x = tf.nn.tanh(x @ w)
    return x


def masked(batch_size: int = 4096) -> Any:
    weights = _weights()

    def forward(x):
        return _deep(tf.boolean_mask(x, x[:, 0] > 0), weights)

    return descending(forward, weights), (tf.ones([batch_size, WIDTH]),)


def looped(batch_size: int = 1024) -> Any:
    (w,) = _weights(1)

    def forward(x):
        return tf.while_loop(lambda i, x: i < 20, lambda i, x: (i + 1, tf.nn.tanh(x @ w)), (0, x))[
            1
        ]

    return descending(forward, [w]), (tf.ones([batch_size, WIDTH]),)


def listed(batch_size: int = 4096) -> Any:
    """Lists that hold copies of a tensor's parts, which no loop reads."""
    weights = _weights()

    def forward(x):
        parts = tf.reshape(x @ weights[0], [4, -1, WIDTH])
        there = tf.TensorArray(tf.float32, 4).unstack(parts)
        turned = tf.TensorArray(tf.float32, 4).scatter([3, 2, 1, 0], tf.nn.tanh(there.stack()))
        halves = tf.TensorArray(tf.float32, 2).split(turned.concat(), [batch_size // 2] * 2)
        return _deep(halves.stack(), weights[1:])

    return descending(forward, weights), (tf.ones([batch_size, WIDTH]),)


def mapped(batch_size: int = 32) -> Any:
    weights = _weights(2)

    def forward(x):
        return tf.map_fn(lambda row: tf.nn.tanh(tf.nn.tanh(row @ weights[0]) @ weights[1]), x)

    return descending(forward, weights), (tf.ones([batch_size, 128, WIDTH]),)


def branched(batch_size: int = 2048) -> Any:
    weights = _weights()

    def forward(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: _deep(x, weights), lambda: 2 * x)

    return descending(forward, weights), (tf.ones([batch_size, WIDTH]),)


def recurrent(batch_size: int = 64) -> Any:
    layers = [keras.Input((100, 64)), keras.layers.LSTM(64), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    variables = [each.value for each in model.trainable_variables]
    step = descending(lambda x: model(x, training=True), variables)
    return step, (tf.ones([batch_size, 100, 64]),)


def unknown(batch_size: int = 64, maximum_iterations: int | None = None) -> Any:
    """How often the loop runs hangs on the batch, unless it is bounded."""
    (w,) = _weights(1)

    def forward(x):
        return tf.while_loop(
            lambda x: tf.reduce_max(x) > 0.5,
            lambda x: (tf.nn.tanh(x @ w) * 0.1,),
            (x,),
            maximum_iterations=maximum_iterations,
        )[0]

    return descending(forward, [w]), (tf.ones([batch_size, WIDTH]),)


def breaking(batch_size: int = 64) -> Any:
    """An episode: at most 20 rounds, and a `break`; what each makes is in lists that grow."""
    (w,) = _weights(1)

    def forward(x):
        found = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(20):
            x = tf.nn.tanh(x @ w) * 0.9
            found = found.write(i, x)
            if tf.reduce_max(tf.abs(x)) < 0.01:
                break
        return tf.reduce_mean(found.stack(), 0)

    return descending(tf.autograph.to_graph(forward), [w]), (tf.ones([batch_size, WIDTH]),)


def counting(batch_size: int = 64) -> Any:
    """A loop that changes something: it does not run to be watched."""
    (w,) = _weights(1)
    runs = tf.Variable(tf.constant(0))

    def forward(x):
        def body(x):
            runs.assign_add(1)
            return (tf.nn.tanh(x @ w) * 0.1,)

        return tf.while_loop(lambda x: tf.reduce_max(x) > 0.5, body, (x,))[0]

    return descending(forward, [w]), (tf.ones([batch_size, WIDTH]),)


def accumulating(batch_size: int = 64) -> Any:
    """Gradients are summed; every other step applies them and begins anew with zeros."""
    weights, count = _weights(6), tf.Variable(tf.constant(0))
    sums = [tf.Variable(tf.zeros([WIDTH, WIDTH])) for _ in weights]

    def apply() -> tf.Tensor:
        for w, s in zip(weights, sums, strict=True):
            w.assign_sub(0.01 * s)
            s.assign(tf.zeros([WIDTH, WIDTH]))
        return tf.constant(0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_deep(x, weights))
        for s, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
            s.assign_add(gradient)
        count.assign(tf.cond(count > 0, apply, lambda: tf.constant(1)))
        return loss

    return step, (tf.ones([batch_size, WIDTH]),)
