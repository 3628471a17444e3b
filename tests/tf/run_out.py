"""Runs out of memory in an arena, and has it explained on stderr.

python -m tests.tf.run_out
"""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import memtrade

LIMIT_BYTES = 160 << 20


def model_of(name: str, width: int = 256, optimizer: str = "sgd") -> Any:
    layers = [keras.layers.Dense(width, "tanh", name=f"hidden_{i}") for i in range(6)]
    model = keras.Sequential([keras.Input([256]), *layers, keras.layers.Dense(1)], name=name)
    model.compile(optimizer, "mse")
    model.jit_compile = False
    return model


def fit(model: Any, batch_size: int) -> None:
    x, y = np.zeros([batch_size, 256], "float32"), np.zeros([batch_size, 1], "float32")
    model.fit(x, y, batch_size=batch_size, verbose=0)


def batch() -> None:
    model = model_of("large")
    with memtrade.explain_oom():
        fit(model, 40_000)


if __name__ == "__main__":
    with contextlib.suppress(tf.errors.ResourceExhaustedError):
        batch()
        raise AssertionError("it did not run out of memory")
