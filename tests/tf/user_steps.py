"""Training steps as people write them: each a function of its batch, with all that it changes."""

# TensorFlow's and Keras's own annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

BATCH, WIDTH, LAYERS = 1024, 64, 6


@dataclass(frozen=True)
class UserStep:
    """A step with a batch, what it changes, and how its loss is found among what it returns."""

    function: Any
    batch: tuple[Any, ...]
    variables: Callable[[], list[tf.Variable]]
    loss: Callable[[Any], tf.Tensor] = lambda returned: returned


def images(size: int = BATCH, seed: int = 1) -> tf.Tensor:
    return tf.random.stateless_normal([size, WIDTH], (seed, 2))


def labels(size: int = BATCH) -> tf.Tensor:
    return tf.random.stateless_uniform([size], (3, 4), 0, 10, tf.int32)


def weights(count: int = LAYERS, seed: int = 0) -> list[tf.Variable]:
    return [
        tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], (seed, i)) / 8, name=f"w{i}")
        for i in range(count)
    ]


def keras_model(*, dropout: float = 0.0, norm: bool = False, l2: float = 0.0) -> keras.Model:
    keras.utils.set_random_seed(0)
    decay = keras.regularizers.L2(l2) if l2 else None
    x = inputs = keras.Input([WIDTH])
    for _ in range(LAYERS):
        x = keras.layers.Dense(WIDTH, kernel_regularizer=decay)(x)
        x = keras.layers.BatchNormalization()(x) if norm else x
        x = keras.layers.Activation("gelu")(x)
        x = keras.layers.Dropout(dropout)(x) if dropout else x
    return keras.Model(inputs, keras.layers.Dense(10, dtype="float32")(x))


def values(*owners: Any) -> list[tf.Variable]:
    """The tf.Variables of Keras models, optimizers and metrics."""
    return [variable.value for owner in owners for variable in owner.variables]


def descending(forward: Callable[[Any], Any], variables: list[tf.Variable]) -> Any:
    """The step of a custom loop that makes the squares of what `forward` returns smaller."""

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(forward(x) ** 2)
        for v, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    return train_step


def keras_loop(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    change: Callable[[list[tf.Tensor]], list[tf.Tensor]] = lambda gradients: gradients,
) -> UserStep:
    """The loop of Keras's guide, "Writing a training loop from scratch in TensorFlow"."""
    compute_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = compute_loss(y, logits)
            loss += sum(model.losses)
            scaled = optimizer.scale_loss(loss)
        gradients = change(tape.gradient(scaled, model.trainable_weights))
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        accuracy.update_state(y, logits)
        return loss

    return UserStep(train_step, (images(), labels()), lambda: values(model, optimizer, accuracy))


def plain() -> UserStep:
    """Matrix products and GradientTape, nothing else."""
    layers = weights()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for w in layers:
                x = tf.nn.tanh(x @ w)
            loss = tf.reduce_mean(x**2)
        for w, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
            w.assign_sub(0.1 * gradient)
        return loss

    return UserStep(train_step, (images(),), lambda: layers)


def tf_gradients() -> UserStep:
    layers = weights()

    @tf.function(autograph=False)
    def train_step(x):
        for w in layers:
            x = tf.nn.tanh(x @ w)
        loss = tf.reduce_mean(x**2)
        for w, gradient in zip(layers, tf.gradients(loss, layers), strict=True):
            w.assign_sub(0.1 * gradient)
        return loss

    return UserStep(train_step, (images(),), lambda: layers)


def metrics() -> UserStep:
    """Returns running means alone: there is no data edge from the loss to what is returned."""
    layers, mean, peak = weights(), keras.metrics.Mean(), keras.metrics.Mean()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = x
            for w in layers:
                y = tf.nn.tanh(y @ w)
            loss = tf.reduce_mean(y**2)
        for w, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
            w.assign_sub(0.1 * gradient)
        mean.update_state(loss)
        peak.update_state(tf.reduce_max(x))
        return {"peak": peak.result(), "loss": mean.result()}

    return UserStep(
        train_step, (images(),), lambda: layers + values(mean, peak), lambda logs: logs["loss"]
    )


def clipped() -> UserStep:
    """Gradient clipping by the norm of all gradients: none is used before the last is there."""
    return keras_loop(
        keras_model(),
        keras.optimizers.SGD(0.1, momentum=0.9),
        lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0],
    )


def regularized() -> UserStep:
    """Weight decay, and losses that come from weights alone."""
    return keras_loop(keras_model(l2=1e-3), keras.optimizers.AdamW(1e-3, weight_decay=0.01))


def norm_and_dropout() -> UserStep:
    return keras_loop(keras_model(norm=True, dropout=0.3), keras.optimizers.RMSprop(1e-3))


def averaged() -> UserStep:
    """Several micro-batches per update, an average of the weights: conditions on a counter."""
    return keras_loop(
        keras_model(),
        keras.optimizers.Adam(1e-3, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.9),
    )


def mixed(dtype: str) -> UserStep:
    """Mixed precision. A float16 loss is scaled, in a tf.cond around the update."""
    keras.config.set_dtype_policy(f"mixed_{dtype}")
    try:
        model = keras_model(norm=True)
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.Adam(1e-3)
    if dtype == "float16":
        optimizer = keras.optimizers.LossScaleOptimizer(
            optimizer, initial_scale=1024.0, dynamic_growth_steps=2
        )
    return keras_loop(model, optimizer)


def stateful_dropout() -> UserStep:
    """Random ops that keep their state in their kernels: they may run but once."""
    layers = weights()

    def forward(x):
        for seed, w in enumerate(layers):
            x = tf.nn.dropout(tf.nn.tanh(x @ w), 0.2, seed=seed)
        return x

    return UserStep(descending(forward, layers), (images(),), lambda: layers)


def nested() -> UserStep:
    """Functions in functions, which read and change variables; several inputs and losses."""
    layers, heads, calls = weights(), weights(2, seed=9), tf.Variable(0)

    @tf.function
    def dense(x, w):
        calls.assign_add(1)
        return tf.nn.tanh(x @ w), tf.split(x, 2, axis=1)

    @tf.function
    def tower(x):
        total = 0.0
        for w in layers:
            x, (left, right) = dense(x, w)
            total += tf.reduce_mean(left * right)
        return x, total

    @tf.function
    def train_step(batch, scale=1.0, *, targets):
        with tf.GradientTape() as tape:
            x, side = tower(batch["x"])
            first = tf.reduce_mean((x @ heads[0] - targets[0]) ** 2)
            second = tf.reduce_mean((x @ heads[1] - targets[1]) ** 2)
            loss = scale * first + second + side
        every = [*layers, *heads]
        for w, gradient in zip(every, tape.gradient(loss, every), strict=True):
            w.assign_sub(0.1 * gradient)
        return {"losses": (first, second), "loss": loss, "calls": calls.read_value(), "none": None}

    @tf.function
    def named(batch, targets):
        return train_step(batch, targets=targets)

    batch = ({"x": images(), "unused": labels()}, [images(seed=5), images(seed=6)])
    return UserStep(
        named, batch, lambda: [*layers, *heads, calls], lambda returned: returned["loss"]
    )


def control_flow() -> UserStep:
    """tf.cond and tf.while_loop in the forward pass, written in Python and through autograph."""
    layers = weights()

    def forward(x):
        for w in layers:
            x = tf.nn.tanh(x @ w)
            if tf.reduce_sum(x) > 0:  # noqa: SIM108  # AutoGraph makes a tf.cond of it
                x = tf.sin(x)
            else:
                x = tf.cos(x) - 1.0
        for _ in tf.range(3):
            x = tf.nn.tanh(x @ layers[0])
        return x

    return UserStep(descending(forward, layers), (images(),), lambda: layers)


def compiled() -> UserStep:
    """Convolutions in groups that XLA compiles, as Keras has them where there is no GPU."""
    filters = [tf.Variable(tf.random.stateless_normal([3, 3, 1, 8], [i, 0])) for i in range(4)]

    @tf.function(jit_compile=True)
    def convolve(x, kernel):
        return tf.nn.convolution(x, kernel, padding="SAME")

    def forward(x):
        for kernel in filters:
            x = tf.nn.gelu(convolve(x, kernel)) + x
        return x

    batch = tf.random.stateless_normal([8, 16, 16, 8], [1, 0])
    return UserStep(descending(forward, filters), (batch,), lambda: filters)


STEPS: dict[str, Callable[[], UserStep]] = {
    "plain": plain,
    "tf.gradients": tf_gradients,
    "metrics": metrics,
    "clipped": clipped,
    "regularized": regularized,
    "norm and dropout": norm_and_dropout,
    "averaged": averaged,
    "bfloat16": lambda: mixed("bfloat16"),
    "float16": lambda: mixed("float16"),
    "stateful dropout": stateful_dropout,
    "nested": nested,
    "control flow": control_flow,
    "compiled": compiled,
}
