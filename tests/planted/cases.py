"""Training that runs out of memory for a known reason, under the limit that `limits` says.

Each is a function of the cure that a page offered: without one it runs out, with it it does not.
"""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalSubscript=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import memtrade
from tests.planted.steps import filters

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Cure:
    """What is done about it. Attributes:

    line: of Python, as the page says it. batch: as many examples. habit: what was left undone is
    done (tensors are not kept, the other model's memory is given back).
    """

    line: str = ""
    batch: int = 0
    habit: bool = False

    def model(self, model: Any) -> Any:
        exec(self.line, {"memtrade": memtrade, "model": model})
        return model

    def step(self, train_step: Any, batch: Any) -> Any:
        scope = {"memtrade": memtrade, "train_step": train_step, "batch": batch}
        exec(self.line, scope)
        return scope["train_step"]


CASES: dict[str, Callable[[Cure], None]] = {}


def planted(run: Callable[[Cure], None]) -> Callable[[Cure], None]:
    CASES[run.__name__.replace("_", " ")] = run
    return run


def dense(name: str, *, width: int = 256, depth: int = 6, optimizer: str = "sgd") -> Any:
    hidden = [layers.Dense(width, "tanh", name=f"hidden_{i}") for i in range(depth)]
    model = keras.Sequential([keras.Input([width]), *hidden, layers.Dense(1)], name=name)
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def convolutions(size: int, channels: int = 16, depth: int = 6) -> Any:
    stack: list[Any] = [keras.Input([size, size, 3])]
    for _ in range(depth):
        stack += [layers.Conv2D(channels, 3, padding="same"), layers.BatchNormalization()]
        stack.append(layers.ReLU())
    stack += [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    model = keras.Sequential(stack, name="convolutions")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    return model


def rows(count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros([count, width], "float32"), np.zeros([count, 1], "float32")


def fit(model: Any, x: Any, y: Any, **more: Any) -> None:
    model.fit(x, y, batch_size=len(x), epochs=2, verbose=0, **more)


def chain(width: int, depth: int) -> Any:
    """A step that returns its outputs, too."""
    weights = [tf.Variable(tf.eye(width)) for _ in range(depth)]

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.tanh(x @ weight)
            loss = tf.reduce_mean(x**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss, x

    return train_step


def several(train_step: Any, batch: Any, times: int = 3) -> None:
    for _ in range(times):
        train_step(batch)


# The batch is too large.


@planted
def a_batch_of_16000_rows(cure: Cure) -> None:
    model = cure.model(dense("large", depth=14))
    with memtrade.explain_oom():
        fit(model, *rows(cure.batch or 16_000, 256))


@planted
def a_batch_of_128_images(cure: Cure) -> None:
    model, count = cure.model(convolutions(64)), cure.batch or 128
    with memtrade.explain_oom():
        fit(model, np.zeros([count, 64, 64, 3], "float32"), np.zeros([count], "int32"))


@planted
def a_batch_for_a_step_of_ones_own(cure: Cure) -> None:
    train_step = chain(128, 12)
    batch = tf.ones([cure.batch or 24_000, 128])
    step = cure.step(train_step, batch)
    with memtrade.explain_oom(train_step, batch):
        several(step, batch)


@planted
def a_batch_of_long_sequences(cure: Cure) -> None:
    tokens = keras.Input([256], dtype="int32")
    x = layers.Embedding(100, 64)(tokens)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16)(x, x))
    model = keras.Model(tokens, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)), name="reader")
    model.compile("adam", "mse", jit_compile=False)
    cure.model(model)
    count = cure.batch or 32
    with memtrade.explain_oom():
        fit(model, np.zeros([count, 256], "int32"), np.zeros([count, 1], "float32"))


# It needs more, whatever the batch.


@planted
def slots_of_adam(cure: Cure) -> None:
    model = cure.model(dense("wide", width=2048, depth=2, optimizer="adam"))
    with memtrade.explain_oom():
        fit(model, *rows(cure.batch or 16, 2048))


@planted
def gradients_as_large_as_weights(cure: Cure) -> None:
    weights = [tf.Variable(tf.zeros([2048, 2048])) for _ in range(4)]

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.tanh(y @ weight)
            loss = tf.reduce_mean(y)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, weights), 1.0)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(gradient)
        return loss

    batch = tf.ones([cure.batch or 8, 2048])
    step = cure.step(train_step, batch)
    with memtrade.explain_oom(train_step, batch):
        several(step, batch)


@planted
def one_large_image(cure: Cure) -> None:
    model = cure.model(convolutions(640))
    with memtrade.explain_oom():
        fit(model, np.zeros([1, 640, 640, 3], "float32"), np.zeros([1], "int32"))


# So many bytes are free, but not in one piece.


def holes(piece_mib: int, count: int, wall_mib: float) -> list[tf.Tensor]:
    """What stays of `count` large tensors, between each two of which a small one was made."""
    made = [(tf.zeros([piece_mib * MIB // 4]), tf.zeros([int(wall_mib * MIB) // 4]))
            for _ in range(count)]  # fmt: skip
    return [small for _, small in made]


@planted
def small_tensors_between_large_ones(cure: Cure) -> None:
    train_step = chain(1024, 2)
    batch = tf.ones([1024, 1024])
    several(train_step, batch, 1)
    kept = [] if cure.habit else holes(7, 14, 0.25)
    large = tf.ones([4096, 1024])
    with memtrade.explain_oom(train_step, large):
        several(train_step, large)
    del kept


# A kernel asks for scratch memory.


@planted
def the_gradient_of_wide_filters(cure: Cure) -> None:
    train_step, batch = filters(cure.batch or 8)
    with memtrade.explain_oom(train_step, batch):
        several(cure.step(train_step, batch), batch)


# Something stays from step to step.


@planted
def outputs_in_a_list(cure: Cure) -> None:
    train_step = chain(256, 4)
    batch = tf.ones([4096, 256])
    kept = []
    with memtrade.explain_oom(train_step, batch):
        for _ in range(60):
            loss, outputs = train_step(batch)
            kept.append(float(loss) if cure.habit else outputs)


@planted
def predictions_of_a_callback(cure: Cure) -> None:
    model, x = dense("watched"), tf.zeros([4096, 256])

    class Keeper(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            outputs = model(x)
            self.seen.append(float(tf.reduce_mean(outputs)) if cure.habit else model.layers[0](x))

    with memtrade.explain_oom():
        model.fit(x, tf.zeros([4096, 1]), batch_size=256, epochs=8, verbose=0, callbacks=[Keeper()])


@planted
def gradients_by_name(cure: Cure) -> None:
    weights = [tf.Variable(tf.eye(512)) for _ in range(4)]
    history: dict[str, list[Any]] = {}

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.tanh(x @ weight)
            loss = tf.reduce_mean(x**2)
        gradients = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss, gradients

    batch = tf.ones([1024, 512])
    with memtrade.explain_oom(train_step, batch):
        for _ in range(60):
            _, gradients = train_step(batch)
            for i, gradient in enumerate(gradients):
                kept = float(tf.norm(gradient)) if cure.habit else gradient
                history.setdefault(f"layer {i}", []).append(kept)


# Another model is in the process.


@planted
def a_second_model(cure: Cure) -> None:
    other = dense("teacher", width=2048, depth=6)
    if cure.habit:
        memtrade.keras.release(other)
    model = dense("student")
    with memtrade.explain_oom(model):
        fit(model, *rows(8_192, 256))


@planted
def the_model_of_the_run_before(cure: Cure) -> None:
    models = [dense("before", width=1024, depth=8, optimizer="adam")]
    fit(models[0], *rows(16, 1024))
    if cure.habit:
        memtrade.keras.release(models.pop())
    models.append(convolutions(64))
    with memtrade.explain_oom(models[-1]):
        fit(models[-1], np.zeros([32, 64, 64, 3], "float32"), np.zeros([32], "int32"))


@planted
def a_table_of_variables(cure: Cure) -> None:
    tables = [tf.Variable(tf.zeros([2048, 2048])) for _ in range(6)]
    if cure.habit:
        tables.clear()
    train_step = chain(256, 6)
    batch = tf.ones([12_288, 256])
    with memtrade.explain_oom(train_step, batch):
        several(train_step, batch)
