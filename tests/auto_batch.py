"""Is the batch that "auto" finds the largest one? Every batch above it is tried, up to 5% more.

    python -m tests.auto_batch results/answers [MODEL ...]

As `memtrade.keras.fit(model, data, batch_size="auto", budget=...)` looks for it, on eight models.
Each trial is a process of its own under a hard limit (`tests.forks`). Writes auto_batch.csv and
auto_batch.md into the folder; with names, only these models' rows are made anew.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from memtrade.batch.fitting import Examples, find_batch
from memtrade.errors import MemtradeError
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.step_trial import try_step
from memtrade.results.sheets import NONE, Sheet
from memtrade.settings import settings_of
from memtrade.tf.calling import step_to_read
from memtrade.tf.structure import arguments_of
from memtrade.units import megabytes
from tests import forks

EXAMPLES = 4096  # more than any of the budgets takes
CLASSES, IMAGE_SIZE, WORDS, LENGTH = 10, 64, 200, 64
ABOVE = 0.05

Made = tuple[Any, tuple[int, ...], str]  # model, an example's shape, its type


def images(name: str, **options: Any) -> Made:
    shape = (IMAGE_SIZE, IMAGE_SIZE, 3)
    kind = getattr(keras.applications, name)
    return kind(input_shape=shape, weights=None, classes=CLASSES, **options), shape, "float32"


def perceptron() -> Made:
    hidden = [layers.Dense(256, "gelu") for _ in range(12)]
    last = [layers.GlobalAveragePooling1D(), layers.Dense(CLASSES, "softmax")]
    return keras.Sequential([keras.Input([32, 256]), *hidden, *last]), (32, 256), "float32"


def transformer() -> Made:
    tokens = keras.Input([LENGTH], dtype="int32")
    x = layers.Embedding(WORDS, 64)(tokens)
    for _ in range(4):
        seen = layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + seen)
        wide = layers.Dense(64)(layers.Dense(256, "gelu")(x))
        x = layers.LayerNormalization()(x + wide)
    outputs = layers.Dense(CLASSES, "softmax")(layers.GlobalAveragePooling1D()(x))
    return keras.Model(tokens, outputs), (LENGTH,), "int32"


def recurrent() -> Made:
    stack = [keras.Input([24, 64]), layers.LSTM(128), layers.Dense(CLASSES, "softmax")]
    return keras.Sequential(stack), (24, 64), "float32"


def convolutions() -> Made:
    stack: list[Any] = [keras.Input([IMAGE_SIZE, IMAGE_SIZE, 3])]
    for channels in (16, 32, 64):
        for _ in range(2):
            stack += [layers.Conv2D(channels, 3, padding="same"), layers.BatchNormalization()]
            stack += [layers.ReLU()]
        stack.append(layers.MaxPooling2D())
    stack += [layers.GlobalAveragePooling2D(), layers.Dense(CLASSES, "softmax")]
    return keras.Sequential(stack), (IMAGE_SIZE, IMAGE_SIZE, 3), "float32"


# Per model its maker, and a budget that some dozens of examples fill.
MODELS: dict[str, tuple[Callable[[], Made], str]] = {
    "perceptron": (perceptron, "40MiB"),
    "transformer": (transformer, "48MiB"),
    "LSTM": (recurrent, "16MiB"),
    "convolutions": (convolutions, "64MiB"),
    "MobileNetV3Small": (lambda: images("MobileNetV3Small"), "64MiB"),
    "EfficientNetB0": (lambda: images("EfficientNetB0"), "160MiB"),
    "ResNet50V2": (lambda: images("ResNet50V2"), "400MiB"),
    "DenseNet121": (lambda: images("DenseNet121"), "160MiB"),
}
COLUMNS: tuple[str, ...] = (
    "model",
    "budget",
    "found",
    "trials",
    "status",
    "peak_bytes",
    "larger_that_ran",
    "tried",
)

Row = dict[str, Any]


def looked_for(name: str) -> Row:
    """What "auto" finds for a model, and which of the larger batches run."""
    keras.utils.set_random_seed(0)
    make, budget = MODELS[name]
    model, shape, kind = make()
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    rows = np.zeros([EXAMPLES, *shape], kind), np.zeros([EXAMPLES], "int32")
    examples = Examples(rows)
    try:
        found, _ = find_batch(model, examples, None, {"strategy": "auto", "budget": budget})
    except MemtradeError as error:
        return {"model": name, "budget": budget, "found": 0, "status": str(error)}
    limit_bytes = settings_of("auto", budget=budget).budget_bytes
    above = range(found.batch_size + 1, math.ceil(found.batch_size * (1 + ABOVE)) + 1)
    step = tf.function(model.train_step, autograph=False)
    ran = [b for b in above if runs(step, examples.batch(b), found.strategy, budget, limit_bytes)]
    return {
        "model": name,
        "budget": budget,
        "found": found.batch_size,
        "trials": len(found.trials),
        "status": " ".join(f"{each.batch_size}:{each.status}" for each in found.trials),
        "peak_bytes": found.peak_bytes,
        "larger_that_ran": " ".join(map(str, ran)),
        "tried": f"{above.start} to {above.stop - 1}",
    }


def runs(step: Any, batch: Any, strategy: str, budget: str, limit_bytes: int | None) -> bool:
    """Whether the child's own plan for that batch runs under the limit."""
    spec = TrialSpec(
        strategy=strategy,
        strategy_options={"budget": budget, "swap": False},
        memory_limit_bytes=limit_bytes,
        steps=1,
    )
    traced, concrete = step_to_read(step, arguments_of(step, batch))
    return try_step(spec, concrete, traced.specs).status == "ok"


def main(folder: str, *chosen: str) -> int:
    path = Path(folder, "auto_batch.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = {}
    if path.exists():
        rows = {row["model"]: row for row in csv.DictReader(path.open(encoding="utf-8"))}
    forks.install()
    for name in chosen or MODELS:
        rows[name] = looked_for(name)
        print(*rows[name].values(), sep=", ", flush=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[each] for each in MODELS if each in rows)
    forks.remove()
    made = [rows[name] for name in MODELS if name in rows]
    Path(folder, "auto_batch.md").write_text(sheet(made, folder).to_markdown(), encoding="utf-8")
    return 0


def sheet(rows: list[Row], folder: str) -> Sheet:
    lines = []
    for row in rows:
        found = int(row["found"])
        if not found:
            lines.append((row["model"], row["budget"], "none", *[NONE] * 5))
            continue
        largest = max([found, *map(int, row["larger_that_ran"].split())])
        lines.append(
            (
                row["model"],
                row["budget"],
                str(found),
                str(row["trials"]),
                megabytes(int(row["peak_bytes"])),
                row["tried"],
                str(largest),
                f"{1 - found / largest:.1%}",
            )
        )
    told = []
    if right := [line for line in lines if line[-1] != NONE]:
        worst = max(right, key=lambda line: float(line[-1][:-1]))
        told = [
            f"At most {worst[-1]} below the largest batch ({worst[0]}). peak MB: measured at the "
            "batch that was found; tried: each of these batches, planned anew, in a child."
        ]
    refused = " ".join(f"{row['model']}: {row['status']}." for row in rows if not int(row["found"]))
    return Sheet(
        title='The batch that "auto" finds, beside the largest one that runs',
        columns=("model", "budget", "found", "trials", "peak MB", "tried", "largest", "below it"),
        words=2,
        rows=tuple(lines),
        notes=(*told, *filter(None, [refused])),
        command=f"python -m tests.auto_batch {folder}",
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
