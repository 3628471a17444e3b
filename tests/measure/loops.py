"""Steps whose loops run as loops: targets of trials."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def _step(layers: list[Any], *shape: int) -> Any:
    keras.utils.set_random_seed(0)
    x = tf.random.stateless_normal(shape, seed=(1, 2))
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(4)])
    model(x)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step, (x,)


def lstm(batch_size: int) -> Any:
    """The gradient of a weight is as large as eight iterations' activations."""
    layers = [keras.layers.LSTM(192, return_sequences=True), keras.layers.LSTM(192)]
    return _step(layers, batch_size, 16, 192)


def mapped(batch_size: int) -> Any:
    """Attention of each example."""
    attend = keras.layers.Lambda(
        lambda x: tf.map_fn(lambda e: tf.nn.softmax(e @ tf.transpose(e)) @ e, x)
    )
    first, last = (keras.layers.Dense(size, "relu") for size in (256, 64))
    return _step([first, attend, last], batch_size, 48, 64)
