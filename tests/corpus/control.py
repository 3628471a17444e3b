"""Loops, branches, and what a step takes and returns."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

import keras
import tensorflow as tf

from tests.corpus.parts import Made, descend, normal, seeded, weights

ROWS, WIDTH, DEPTH = 512, 64, 6


def _layers(seed: int = 0, depth: int = DEPTH) -> list[tf.Variable]:
    return weights(*[[WIDTH, WIDTH]] * depth, seed=seed)


def _deep(x: tf.Tensor, layers: list[tf.Variable]) -> tf.Tensor:
    for w in layers:
        x = tf.nn.tanh(x @ w)
    return x


def _rows(seed: int = 1) -> tf.Tensor:
    return normal(ROWS, WIDTH, seed=seed)


def mapped() -> Made:
    """tf.map_fn over the examples."""
    layers = _layers()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = tf.map_fn(lambda row: _deep(row, layers), tf.reshape(x, [16, -1, WIDTH]))
            loss = tf.reduce_mean(y**2)
        descend(tape, loss, layers)
        return loss

    return train_step, (_rows(),)


def scanned() -> Made:
    """tf.scan over time."""
    layers = _layers(depth=2)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            start = tf.zeros([32, WIDTH])
            y = tf.scan(lambda h, x: tf.tanh(x + _deep(h, layers)),
                        tf.reshape(x, [16, 32, WIDTH]), start)  # fmt: skip
            loss = tf.reduce_mean(y**2)
        descend(tape, loss, layers)
        return loss

    return train_step, (_rows(),)


def while_over_layers() -> Made:
    """A tf.while_loop whose turns are the network's layers."""
    (stacked,) = weights([DEPTH, WIDTH, WIDTH])

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            _, y = tf.while_loop(
                lambda i, _: i < DEPTH, lambda i, y: (i + 1, tf.tanh(y @ stacked[i] / 3.0)), (0, x)
            )
            loss = tf.reduce_mean(y**2)
        stacked.assign_sub(0.01 * tape.gradient(loss, stacked))
        return loss

    return train_step, (_rows(),)


def branches() -> Made:
    """tf.cond between layers, through AutoGraph."""
    layers = _layers()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for w in layers:
                x = x @ w
                if tf.reduce_sum(x) > 0:  # noqa: SIM108  # AutoGraph makes a tf.cond of it
                    x = tf.sin(x)
                else:
                    x = tf.cos(x) - 1.0
            loss = tf.reduce_mean(x**2)
        descend(tape, loss, layers)
        return loss

    return train_step, (_rows(),)


def loss_from_cond() -> Made:
    """What is returned comes out of a branch, and so does the update."""
    layers = _layers()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_deep(x, layers) ** 2)
        gradients = tape.gradient(loss, layers)
        if tf.math.is_finite(loss):
            for w, gradient in zip(layers, gradients, strict=True):
                w.assign_sub(0.01 * gradient)
            found = loss
        else:
            found = tf.constant(0.0)
        return found

    return train_step, (_rows(),)


def loop_of_updates() -> Made:
    """Several updates in one call: a tf.while_loop around the whole step."""
    layers = _layers()

    @tf.function
    def train_step(x):
        loss = tf.constant(0.0)
        for part in tf.range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(_deep(x[part * 128 : part * 128 + 128], layers) ** 2)
            descend(tape, loss, layers)
        return loss

    return train_step, (_rows(),)


def twins() -> Made:
    """Two views of each picture, their group norms, and gradients summed over micro-batches."""
    seeded()
    inputs = keras.Input([24, 24, 3])
    x = inputs
    for filters in (16, 32):
        x = keras.layers.Conv2D(filters, 3, 2, padding="same")(x)
        x = keras.layers.ReLU()(keras.layers.GroupNormalization(8)(x))
    model = keras.Model(inputs, keras.layers.Dense(32)(keras.layers.GlobalAveragePooling2D()(x)))
    variables = model.trainable_variables

    @tf.function
    def train_step(a, b):
        sums = [tf.zeros(each.shape) for each in variables]
        losses = 0.0
        for i in tf.range(3):
            with tf.GradientTape() as tape:
                one, two = (model(each[i * 32 : (i + 1) * 32], training=True) for each in (a, b))
                alike = tf.matmul(tf.tanh(one), tf.tanh(two), transpose_a=True) / 32.0
                loss = tf.reduce_sum((alike - tf.eye(32)) ** 2)
            gradients = tape.gradient(loss, variables)
            sums = [each + gradient for each, gradient in zip(sums, gradients, strict=True)]
            losses += loss
        for variable, gradient in zip(variables, sums, strict=True):
            variable.assign_sub(0.1 * gradient)
        return losses

    return train_step, (normal(96, 24, 24, 3), normal(96, 24, 24, 3, seed=3))


def mixture_of_experts() -> Made:
    """Each row is sent to the experts by a gate, of which the two largest count."""
    experts, (gate,) = [_layers(i, depth=2) for i in range(4)], weights([WIDTH, 4], seed=8)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            share, chosen = tf.math.top_k(tf.nn.softmax(x @ gate), 2)
            mask = tf.reduce_sum(tf.one_hot(chosen, 4) * share[..., None], 1)
            made = [_deep(x, expert) * mask[:, i : i + 1] for i, expert in enumerate(experts)]
            loss = tf.reduce_mean(tf.add_n(made) ** 2)
        descend(tape, loss, [gate, *(w for each in experts for w in each)])
        return loss

    return train_step, (_rows(),)


def routed_experts() -> Made:
    """The same with tf.boolean_mask: how many rows an expert gets, nobody knows before."""
    experts, (gate,) = [_layers(i, depth=2) for i in range(4)], weights([WIDTH, 4], seed=8)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            share = tf.nn.softmax(x @ gate)
            chosen = tf.argmax(share, 1)
            loss = 0.0
            for i, expert in enumerate(experts):
                routed = tf.boolean_mask(x * share[:, i : i + 1], chosen == i)
                loss += tf.reduce_sum(_deep(routed, expert) ** 2) / ROWS
        descend(tape, loss, [gate, *(w for each in experts for w in each)])
        return loss

    return train_step, (_rows(),)


def vectorized() -> Made:
    layers = _layers()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = tf.vectorized_map(lambda row: tf.nn.softmax(_deep(row, layers)),
                                  tf.reshape(x, [16, -1, WIDTH]))  # fmt: skip
            loss = -tf.reduce_mean(tf.math.log(y))
        descend(tape, loss, layers)
        return loss

    return train_step, (_rows(),)


def neural_ode() -> Made:
    """An integrator written out, four evaluations a step."""
    layers = _layers(depth=2)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for _ in range(6):
                a = _deep(x, layers)
                b = _deep(x + 0.05 * a, layers)
                c = _deep(x + 0.05 * b, layers)
                d = _deep(x + 0.1 * c, layers)
                x = x + 0.1 / 6.0 * (a + 2.0 * b + 2.0 * c + d)
            loss = tf.reduce_mean(x**2)
        descend(tape, loss, layers)
        return loss

    return train_step, (_rows(),)


def returns_nothing() -> Made:
    layers, seen = _layers(), keras.metrics.Mean()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_deep(x, layers) ** 2)
        descend(tape, loss, layers)
        seen.update_state(loss)

    return train_step, (_rows(),)


def returns_metrics() -> Made:
    """Several numbers, none of which is called the loss."""
    layers = _layers()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = _deep(x, layers)
            error = tf.reduce_mean(y**2)
        gradients = tape.gradient(error, layers)
        for w, gradient in zip(layers, gradients, strict=True):
            w.assign_sub(0.01 * gradient)
        return {
            "largest": tf.reduce_max(y),
            "error": error,
            "norm": tf.linalg.global_norm(gradients),
        }

    return train_step, (_rows(),)


def returns_predictions() -> Made:
    """A loss for each example, and what was predicted: no scalar at all."""
    layers = _layers()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = _deep(x, layers)
            losses = tf.reduce_mean(y**2, 1)
        for w, gradient in zip(layers, tape.gradient(losses, layers), strict=True):
            w.assign_sub(1e-3 * gradient)
        return y, losses

    return train_step, (_rows(),)


def second_evaluation() -> Made:
    """The loss that is returned is computed anew after the update."""
    layers = _layers()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_deep(x, layers) ** 2)
        descend(tape, loss, layers)
        return tf.reduce_mean(_deep(x, layers) ** 2)

    return train_step, (_rows(),)


def inner_function() -> Made:
    """A loss that is a tf.function of its own, and is called several times."""
    layers = _layers()

    @tf.function
    def loss_of(x, sign):
        return tf.reduce_mean(sign * _deep(x, layers) ** 2)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = sum(loss_of(part, tf.constant(1.0)) for part in tf.split(x, 4)) / 4.0
        descend(tape, loss, layers)
        return loss

    return train_step, (_rows(),)


STEPS = (
    mapped, scanned, while_over_layers, branches, loss_from_cond, loop_of_updates,
    twins, mixture_of_experts, routed_experts, vectorized, neural_ode, returns_nothing,
    returns_metrics, returns_predictions, second_evaluation, inner_function,
)  # fmt: skip
