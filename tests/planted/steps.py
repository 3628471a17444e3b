"""A step whose kernel asks for scratch, as `memtrade run --target` takes it."""

# TensorFlow's annotations say less than its functions take.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import tensorflow as tf


def filters(batch_size: int = 8) -> tuple[Any, Any]:
    """Without oneDNN, the gradient of wide filters writes all patches of an image side by side."""
    made = [tf.Variable(tf.zeros([7, 7, 32, 32])) for _ in range(10)]

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for each in made:
                x = tf.nn.tanh(tf.nn.conv2d(x, each, 1, "SAME"))
            loss = tf.reduce_mean(x)
        for each, gradient in zip(made, tape.gradient(loss, made), strict=True):
            each.assign_sub(gradient)
        return loss

    return train_step, tf.ones([batch_size, 64, 64, 32])
