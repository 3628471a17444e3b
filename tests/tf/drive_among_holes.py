"""Child process of test_places.py: a step whose variables lie among holes, its slots all in one
buffer, and which reads a table in a NumPy array's memory. Says what `memtrade.apply` predicted, and
what the step then took."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import memtrade
from memtrade.tf.device import Arena

LIMIT = 128 << 20
WIDTH, ROWS, LAYERS = 128, 2048, 8


class Foreseen(logging.Handler):
    peak_bytes, told_bytes = 0, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.peak_bytes = getattr(record, "peak_bytes", self.peak_bytes)
        self.told_bytes = getattr(record, "told_peak_bytes", self.told_bytes)


def shared_table() -> tf.Tensor:
    """As tf.constant makes one where the array's copy happens to be aligned."""
    memory = np.zeros(ROWS * WIDTH + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    shared = memory[start : start + ROWS * WIDTH].reshape(ROWS, WIDTH)
    return tf.experimental.dlpack.from_dlpack(shared.__dlpack__())


def make_step() -> Any:
    """Between two weights a tensor comes and goes; the slots are zeros made in a tf.function."""
    weights, gone = [], []
    for _ in range(LAYERS):
        weights.append(tf.Variable(tf.eye(WIDTH)))
        gone.append(tf.zeros([20, WIDTH, 10 + len(weights)]))
    slots: list[tf.Variable] = []

    @tf.function(autograph=False)
    def train_step(x):
        if not slots:
            slots.extend(tf.Variable(lambda: tf.zeros([WIDTH, WIDTH])) for _ in weights)
        with tf.GradientTape() as tape:
            y = x + table
            for weight in weights:
                y = tf.nn.tanh(y @ weight)
            loss = tf.reduce_mean(y**2)
        gradients = tape.gradient(loss, weights)
        for weight, slot, gradient in zip(weights, slots, gradients, strict=True):
            weight.assign_sub(0.1 * slot.assign_add(gradient))
        return loss

    return train_step


def tried(strategy: str, **options: Any) -> dict[str, Any]:
    train_step, batch = make_step(), tf.ones([ROWS, WIDTH])
    train_step(batch)
    as_it_is = device.peak_bytes()
    lean = memtrade.apply(train_step, batch, strategy, **options)
    peaks, raised = [], device.peak_bytes() > as_it_is
    for _ in range(3):
        device.reset_peak()
        lean(batch)
        peaks.append(device.peak_bytes())
    predicted = {"told": foreseen.told_bytes, "predicted": foreseen.peak_bytes}
    return {**predicted, "peaks": peaks, "raised": raised}


tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
device = Arena(LIMIT)
device.start()
table = shared_table()
foreseen = Foreseen()
logging.getLogger("memtrade").setLevel("INFO")
logging.getLogger("memtrade").addHandler(foreseen)
seen: dict[str, Any] = {"ome": tried("ome"), "optimal": tried("optimal", budget="10MB")}
seen["table"] = device.offset(table)
Path(sys.argv[1]).write_text(json.dumps(seen))
