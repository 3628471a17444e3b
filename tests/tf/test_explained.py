"""`memtrade.explain_oom` around errors of steps that were rewritten, and of what is no step."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import memtrade
import memtrade.keras
from tests.tf.user_steps import descending

SHAPE = "shape[4096,64] and type float on /job:localhost/device:CPU:0 by allocator cpu"


def explained(capsys: pytest.CaptureFixture[str], words: str, *step: Any, **how: Any) -> str:
    error = tf.errors.ResourceExhaustedError(None, None, words)
    with pytest.raises(tf.errors.ResourceExhaustedError), memtrade.explain_oom(*step, **how):
        raise error
    return " ".join(capsys.readouterr().err.split())  # a terminal's lines are joined


def dense() -> keras.Model:
    hidden = [keras.layers.Dense(64, "tanh") for _ in range(4)]
    model = keras.Sequential([keras.Input([64]), *hidden, keras.layers.Dense(1)], name="small")
    model.compile("sgd", "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def test_a_rewritten_step_is_explained_by_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    weight = tf.Variable(tf.eye(64))

    def forward(x):
        for _ in range(5):
            x = tf.nn.tanh(x @ weight)
        return x

    train_step, batch = descending(forward, [weight]), tf.ones([4096, 64])
    lean = memtrade.apply(train_step, batch, strategy="checkpoints")
    told = [
        explained(capsys, f"OOM when allocating tensor with {SHAPE}", step, batch, memory_limit=one)
        for step, one in ((train_step, "2MB"), (lean, "2MB"))
    ]
    assert "train_step, batch 4096, on arena" in told[0]
    assert "train_step, batch 4096, checkpoints, on arena" in told[1]
    # Why it failed depends on what other data the process holds; what the step holds does not.
    held = [float(re.findall(r"by layer: ([\d.]+) MB", page)[0]) for page in told]
    assert held[1] < 0.8 * held[0]


def test_so_is_an_optimized_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = dense()
    x, y = np.zeros([4096, 64], "float32"), np.zeros([4096, 1], "float32")
    memtrade.keras.optimize(model, 4096, strategy="checkpoints", example_batch=(x, y))
    words = f"OOM when allocating tensor with {SHAPE}"
    page = explained(capsys, words, model, batch_size=4096, memory_limit="2MB")
    assert "small, batch 4096, checkpoints, on arena" in page
    memtrade.keras.restore(model)
    page = explained(capsys, words, model, batch_size=4096, memory_limit="2MB")
    assert "small, batch 4096, on arena" in page


def test_an_op_that_the_program_runs_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    page = explained(capsys, f"OOM when allocating tensor with {SHAPE} [Op:MatMul]", dense())
    assert "MatMul, which the program runs by itself and not in a step" in page
    assert re.search(r"test_explained\.py:\d+:", page)
    assert "What the step holds at its peak" in page


def test_another_error_of_tensorflows_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(tf.errors.InternalError), memtrade.explain_oom():
        raise tf.errors.InternalError(None, None, "no such kernel")
    assert capsys.readouterr().err == ""
