"""The same small network under optimizers old and new, and with gradients that are changed."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.corpus.parts import Made, normal, seeded, sparse_loss, supervised, weights, whole

ROWS, WIDTH, DEPTH = 512, 128, 8


def _layers() -> list[tf.Variable]:
    return weights(*[[WIDTH, WIDTH]] * DEPTH)


def _loss(x: tf.Tensor, layers: list[tf.Variable]) -> tf.Tensor:
    for w in layers:
        x = tf.nn.tanh(x @ w)
    return tf.reduce_mean(x**2)


def _with(optimizer: Any, layers: list[tf.Variable]) -> Made:
    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = _loss(x, layers)
        gradients = tape.gradient(loss, layers)
        optimizer.apply_gradients(list(zip(gradients, layers, strict=True)))
        return loss

    return train_step, (normal(ROWS, WIDTH),)


def v1_adam() -> Made:
    """tf.compat.v1's optimizers put ops beside their variables (colocation)."""
    return _with(tf.compat.v1.train.AdamOptimizer(1e-3), _layers())


def v1_minimize() -> Made:
    layers = _layers()
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.01, 0.9)

    @tf.function
    def train_step(x):
        loss = _loss(x, layers)
        optimizer.minimize(lambda: _loss(x, layers), var_list=layers)
        return loss

    return train_step, (normal(ROWS, WIDTH),)


def v1_gradients() -> Made:
    """Written for TensorFlow 1: tf.gradients, gates and colocation."""
    layers = _layers()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)

    @tf.function(autograph=False)
    def train_step(x):
        loss = _loss(x, layers)
        gradients = tf.compat.v1.gradients(
            loss, layers, colocate_gradients_with_ops=True, gate_gradients=True
        )
        optimizer.apply_gradients(list(zip(gradients, layers, strict=True)))
        return loss

    return train_step, (normal(ROWS, WIDTH),)


def keras_lion() -> Made:
    return _with(keras.optimizers.Lion(1e-4, weight_decay=0.1), _layers())


def keras_accumulating() -> Made:
    """Keras's own accumulation and average of weights: conditions on a counter."""
    optimizer = keras.optimizers.Adam(1e-3, gradient_accumulation_steps=2, use_ema=True)
    return _with(optimizer, _layers())


def clipped_by_norm() -> Made:
    """No gradient is used before the last is there; the norm is all that is returned."""
    layers = _layers()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = _loss(x, layers)
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, layers), 1.0)
        for w, gradient in zip(layers, gradients, strict=True):
            w.assign_sub(0.01 * gradient)
        return norm

    return train_step, (normal(ROWS, WIDTH),)


def schedule() -> Made:
    """A learning rate that follows the step's number."""
    rate = keras.optimizers.schedules.CosineDecay(1e-3, 1000, warmup_target=1e-2, warmup_steps=10)
    layers, optimizer = _layers(), keras.optimizers.Adafactor(rate)
    optimizer.build(layers)
    return _with(optimizer, layers)


def per_example_clipping() -> Made:
    """Differential privacy: a gradient for each example, clipped, then noise."""
    seeded()
    layers = weights(*[[32, 32]] * 4)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = x
            for w in layers:
                y = tf.nn.tanh(y @ w)
            losses = tf.reduce_mean(y**2, 1)
        jacobians = tape.jacobian(losses, layers)
        for w, each in zip(layers, jacobians, strict=True):
            clipped = tf.clip_by_norm(each, 1.0, axes=[1, 2])
            w.assign_sub(0.01 * (tf.reduce_mean(clipped, 0) + 1e-3 * tf.random.normal([32, 32])))
        return tf.reduce_mean(losses)

    return train_step, (normal(64, 32),)


def weight_decay() -> Made:
    """Keras's L2 penalties, whose gradients hang on constants alone; one of them takes 12 MB."""
    seeded()
    penalty = keras.regularizers.L2(1e-4)
    model = keras.Sequential(
        [
            keras.Input([768]),
            keras.layers.Dense(2048, "relu", kernel_regularizer=penalty),
            keras.layers.Dense(1536, "relu", kernel_regularizer=penalty),
            keras.layers.Dense(10, kernel_regularizer=penalty),
        ]
    )

    def compute_loss(labels, logits):
        return sparse_loss(labels, logits) + tf.add_n(model.losses)

    return supervised(model, compute_loss), (normal(1024, 768), whole(1024))


STEPS = (
    v1_adam, v1_minimize, v1_gradients, keras_lion, keras_accumulating, clipped_by_norm, schedule,
    per_example_clipping, weight_decay,
)  # fmt: skip
