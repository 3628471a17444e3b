# pyright: reportArgumentType=false
# (Keras and pandas annotate less than they take.)
"""Is a Keras model still trained the same after memtrade.keras.optimize? On real models.

    python -m memtrade.papers.verify_keras results/keras [NAME ...]

Each model of keras.applications, and a small transformer with dropout, is compiled with Adam and
metrics. From the same variables and on the same batch, two steps of its own and two of the
rewritten one: the loss, the weights, the optimizer's slots, the metrics and the seeds must be equal
to the bit. The peaks are the simulator's, at the sizes given, which are small: a check of equality
and no measurement.

Writes verify.csv and verify.md into the folder; with names, only these models' rows are made anew.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pandas as pd
import tensorflow as tf

import memtrade.keras
from memtrade.papers.pages import save_csv
from memtrade.results.sheets import Sheet
from memtrade.simulate.memory import ROOMY_BYTES, Simulator
from memtrade.strategies import find_planned, make_options
from memtrade.target import profile_target
from memtrade.tf.extract import trace_concrete
from memtrade.tf.step import TrainStep
from memtrade.tf.verify import compare_steps
from memtrade.units import megabytes

CaseRow = dict[str, Any]

STRATEGY = "ome"
BATCH, CLASSES, STEPS = 4, 10, 2


def application(name: str, size: int) -> Callable[[], keras.Model]:
    kind = getattr(keras.applications, name)
    return lambda: kind(weights=None, input_shape=(size, size, 3), classes=CLASSES)


def transformer(blocks: int = 2) -> keras.Model:
    """Blocks of attention and feed-forward, before each a norm, behind each dropout."""
    length, width = 32, 64
    inputs = keras.Input([length, width])
    x = inputs
    for _ in range(blocks):
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(y)])
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(4 * width, activation="gelu")(y)
        y = keras.layers.Dense(width)(y)
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(y)])
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(CLASSES, activation="softmax")(x))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "ResNet50V2": application("ResNet50V2", 64),
    "EfficientNetB0": application("EfficientNetB0", 64),
    "MobileNetV3Large": application("MobileNetV3Large", 64),
    "DenseNet121": application("DenseNet121", 64),
    "InceptionResNetV2": application("InceptionResNetV2", 75),
    "ConvNeXtTiny": application("ConvNeXtTiny", 64),
    "transformer": transformer,
}


def compiled(name: str) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    model.compile(
        keras.optimizers.Adam(1e-3),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model


def batch_for(model: keras.Model) -> tuple[tf.Tensor, tf.Tensor]:
    shape = [BATCH, *model.input_shape[1:]]
    labels = tf.random.stateless_uniform([BATCH], (1, 3), 0, CLASSES, tf.int32)
    return tf.random.stateless_normal(shape, (1, 2)), labels


def state(model: keras.Model) -> list[tf.Variable]:
    """All that a step changes: weights, averages, seeds, metrics, the optimizer's slots."""
    owners = (model, model.optimizer, *model.metrics)
    every = {id(v): v.value for owner in owners for v in owner.variables}
    return list(every.values())


def verify(name: str) -> CaseRow:
    """One row of the table."""
    model = compiled(name)
    batch = batch_for(model)
    model.train_on_batch(*batch)  # makes the optimizer's slots and the metrics
    original = tf.function(model.train_step, autograph=False)
    rewritten = memtrade.keras.optimize(model, strategy=STRATEGY, example_batch=batch)
    step = rewritten.train_function.step
    variables = state(model)
    comparison = compare_steps(
        lambda *given: original(given)["loss"],
        lambda *given: step(given)["loss"],
        variables,
        batch,
        steps=STEPS,
    )
    concrete = original.get_concrete_function(batch)  # pyright: ignore[reportFunctionMemberAccess]
    specs = tuple(tf.TensorSpec(part.shape, part.dtype) for part in batch)
    graph = trace_concrete(TrainStep(name, original, specs, lambda: batch, tuple), concrete).graph
    target = profile_target("arena")
    plan = find_planned(STRATEGY).plan(graph, make_options(STRATEGY), target)
    simulator = Simulator(graph, target)
    peaks = [simulator.memory(each, limit_bytes=ROOMY_BYTES).peak_bytes for each in ((), plan)]
    return {
        "model": name, "input": "x".join(map(str, model.input_shape[1:])), "batch": BATCH,
        "ops": len(graph.ops), "variables": len(variables), "strategy": STRATEGY,
        "recomputed": len(plan.tensors("recompute")), "swapped": len(plan.tensors("swap")),
        "steps": STEPS, "max_difference": comparison.verified(0.0).max_difference,
        "predicted_original_bytes": peaks[0], "predicted_peak_bytes": peaks[1],
    }  # fmt: skip


def sheet(rows: Sequence[CaseRow], folder: str) -> Sheet:
    """The rows as a table."""

    def difference(row: CaseRow) -> str:
        size = float(row["max_difference"])
        return f"{size:.3g}" if size else "0 (to the bit)"

    return Sheet.of(
        rows,
        [
            ("model", lambda row: row["model"]),
            ("input", lambda row: row["input"]),
            *(
                (name, lambda row, name=name: f"{row[name]:,}")
                for name in ("ops", "variables", "recomputed", "swapped")
            ),
            (
                "predicted peak MB: original",
                lambda row: megabytes(row["predicted_original_bytes"]),
            ),
            (STRATEGY, lambda row: megabytes(row["predicted_peak_bytes"])),
            ("largest difference", difference),
        ],
        title="Keras models before and after memtrade.keras.optimize",
        words=2,
        notes=(
            f"{STEPS} steps of each, batch {BATCH}, Adam, from the same variables: loss, weights, "
            "moving averages, the optimizer's slots, metrics and seeds are compared.",
            "The peaks are the simulator's and not measured.",
        ),
        command=f"python -m memtrade.papers.verify_keras {folder}",
    )  # fmt: skip


def main(folder: str, names: Sequence[str]) -> int:
    # Both steps as memtrade's worker runs them: TensorFlow's optimizer would fuse ops of the
    # original, whose results then differ in the last bit.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    path = Path(folder, "verify.csv")
    known: dict[str, CaseRow] = {}
    if names and path.exists():
        known = {row["model"]: row for row in pd.read_csv(path).to_dict("records")}
    for name in names or MODELS:
        known[name] = verify(name)
        print(name, known[name]["max_difference"], flush=True)
        keras.backend.clear_session()
    rows = [known[name] for name in MODELS if name in known]
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_csv(path, pd.DataFrame(rows))
    Path(folder, "verify.md").write_text(sheet(rows, folder).to_markdown(), encoding="utf-8")
    return 0 if all(float(row["max_difference"]) == 0.0 for row in rows) else 1


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(MODELS):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
