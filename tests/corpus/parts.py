"""What the corpus' steps are made of: data that is the same in each run, plain ways to train."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

# A step and an example of its batch, as `memtrade.apply` and `--target` take them.
Made = tuple[Any, tuple[Any, ...]]

BATCH = 32


def normal(*shape: int, seed: int = 1) -> tf.Tensor:
    return tf.random.stateless_normal(shape, (seed, 7))


def images(size: int = 32, channels: int = 3, seed: int = 1) -> tf.Tensor:
    return normal(BATCH, size, size, channels, seed=seed)


def whole(*shape: int, below: int = 10, seed: int = 2) -> tf.Tensor:
    """Whole numbers: labels, tokens, ids."""
    return tf.random.stateless_uniform(shape, (seed, 5), 0, below, tf.int32)


def labels(classes: int = 10) -> tf.Tensor:
    return whole(BATCH, below=classes)


def weights(*shapes: Sequence[int], seed: int = 0) -> list[tf.Variable]:
    """Variables of these shapes, small enough for deep networks."""
    made = []
    for i, shape in enumerate(shapes):
        fan_in = 1
        for size in shape[:-1]:
            fan_in *= size
        value = tf.random.stateless_normal(shape, (seed, i)) / fan_in**0.5
        made.append(tf.Variable(value, name=f"w{i}"))
    return made


def descend(tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]) -> None:
    """Plain gradient descent."""
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(0.01 * tf.convert_to_tensor(gradient))


def seeded() -> None:
    """Keras's initializers and dropout are the same in each run."""
    keras.utils.set_random_seed(0)


def sparse_loss(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(each)


def supervised(
    model: keras.Model,
    compute_loss: Callable[[Any, Any], tf.Tensor] = sparse_loss,
    optimizer: keras.optimizers.Optimizer | None = None,
) -> Any:
    """The loop of Keras's guide, "Writing a training loop from scratch in TensorFlow"."""
    optimizer = optimizer or keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = compute_loss(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


def compiled_step(model: keras.Model) -> Any:
    """What `model.fit` runs for each batch."""
    return tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
