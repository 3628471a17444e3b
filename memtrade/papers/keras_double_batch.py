"""Does `memtrade.keras.optimize` double the largest batch of a Keras model? Tried, in the arena.

    python -m memtrade.papers.keras_double_batch results/keras

For each model, under one limit: the largest batch that Keras trains, the largest multiple of it
that runs with the one line more, and an epoch of each. At the batch where both fit the losses of
the two must be the same.
Each trial is a process of its own that calls `model.fit`; out of memory is the allocator's word.
Writes double_batch.csv (the trials), double_batch_losses.csv (the curves), double_batch.md and
double_batch.png.
"""

import functools
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from memtrade.papers.pages import run_in_arena, save_csv
from memtrade.results.sheets import Sheet
from memtrade.search import largest
from memtrade.units import megabytes

MODELS = ("ResNet50V2", "DenseNet121")
LIMIT_BYTES = 256 << 20
IMAGE_SIZE, CLASSES = 64, 4
STEP = 4  # what Keras trains is tried in multiples of it
GUESS = 20
MOST_TIMES = 4  # how many times that batch is tried with memtrade, at the most
TRIED_STEPS = 2  # a batch runs if two steps of it do
EPOCH_STEPS = 16  # at the largest batch of both
TIMEOUT_SECONDS = 300

OUT_OF_MEMORY = "out of memory"
CHILD = ("memtrade.papers.keras_double_batch", "child")


@dataclass(frozen=True)
class Fit:
    """One call of `model.fit`, over one epoch.

    Attributes:
        obstacle, peak_bytes, losses: how it went: what was in the way, if anything; the peak and
            the loss after each step.
    """

    model: str
    batch_size: int
    steps: int
    optimized: bool
    obstacle: str | None = None
    peak_bytes: int | None = None
    losses: list[float] = field(default_factory=list)

    @property
    def label(self) -> str:
        way = "with memtrade.keras.optimize" if self.optimized else "as Keras trains it"
        return f"{way}, batch {self.batch_size}"


# --- the child ----------------------------------------------------------------------------------


def train(fit: Fit) -> Fit:
    """Runs in a process of its own, whose environment turns the arena on."""
    import keras
    import tensorflow as tf

    import memtrade.keras
    from memtrade.tf.device import Arena

    arena = Arena(LIMIT_BYTES)
    # Both ways without TensorFlow's graph optimizer, which fuses ops of one step and not of the
    # other: the losses are then comparable to the last bit.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    arena.start()
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, fit.model)(
        weights=None,
        input_shape=(IMAGE_SIZE, IMAGE_SIZE, 3),
        classes=CLASSES,
        classifier_activation=None,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    if fit.optimized:
        memtrade.keras.optimize(model, batch_size=fit.batch_size, strategy="ome")
    seen: list[float] = []
    each = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: seen.append(float(logs["loss"]))
    )
    try:
        model.fit(pictures(fit.batch_size, fit.steps), verbose=0, callbacks=[each])
    except tf.errors.ResourceExhaustedError:
        return replace(fit, obstacle=OUT_OF_MEMORY)
    return replace(fit, peak_bytes=arena.peak_bytes(), losses=seen)


def pictures(batch_size: int, steps: int):
    """A tf.data.Dataset of noise with a bright spot in one of four corners: which one?"""
    import numpy as np
    import tensorflow as tf

    half = IMAGE_SIZE // 2

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        random = np.random.default_rng(0)
        for _ in range(steps):
            images = random.normal(size=[batch_size, IMAGE_SIZE, IMAGE_SIZE, 3])
            labels = random.integers(0, CLASSES, batch_size)
            for image, label in zip(images, labels, strict=True):
                row, column = half * (label // 2), half * (label % 2)
                image[row : row + half, column : column + half] += 1
            yield images.astype("float32"), labels

    shape = [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3]
    specs = (tf.TensorSpec(shape, tf.float32), tf.TensorSpec([batch_size], tf.int64))
    return tf.data.Dataset.from_generator(batches, output_signature=specs)


# --- the parent ---------------------------------------------------------------------------------


def attempt(fit: Fit) -> Fit:
    """Trains in a child. A kernel that runs out of memory may abort, and that is an answer, too."""
    asked = json.dumps(asdict(fit))
    done = run_in_arena(*CHILD, asked, limit_bytes=LIMIT_BYTES, timeout_seconds=TIMEOUT_SECONDS)
    if done.returncode == 0:
        ran = Fit(**json.loads(done.stdout.splitlines()[-1]))
    elif "ran out of memory" in done.stderr or "OOM" in done.stderr:
        ran = replace(fit, obstacle=OUT_OF_MEMORY)
    else:
        raise RuntimeError(f"{fit}: {done.stderr[-2000:]}")
    print(fit.model, fit.label, f"{fit.steps} steps:", ran.obstacle or "ran", file=sys.stderr)
    return ran


def tried(model: str) -> list[Fit]:
    """The trials of both searches, then an epoch of two fits, and of a third if twice the batch
    runs."""
    fits: list[Fit] = []

    def obstacle(batch_size: int, optimized: bool) -> str | None:
        fits.append(attempt(Fit(model, batch_size, TRIED_STEPS, optimized)))
        return fits[-1].obstacle

    plain = largest(functools.partial(obstacle, optimized=False), guess=GUESS, step=STEP).batch
    if plain == 0:
        raise RuntimeError(f"{model}: no batch runs under {megabytes(LIMIT_BYTES)} MB")
    lean = largest(
        functools.partial(obstacle, optimized=True),
        guess=2 * plain,
        step=plain,
        most=MOST_TIMES * plain,
    ).batch
    asked = [Fit(model, plain, EPOCH_STEPS, optimized) for optimized in (False, True)]
    if lean >= 2 * plain:
        asked.append(Fit(model, 2 * plain, EPOCH_STEPS // 2, True))
    return [*fits, *map(attempt, asked)]


def epochs(fits: Sequence[Fit]) -> list[Fit]:
    return [fit for fit in fits if fit.steps > TRIED_STEPS]


def largest_batch(fits: Sequence[Fit], *, optimized: bool) -> int:
    ran = (fit for fit in fits if fit.obstacle is None and fit.optimized == optimized)
    return max((fit.batch_size for fit in ran), default=0)


def largest_difference(fits: Sequence[Fit]) -> float:
    """Between the two curves at the batch where both fit, relative to the loss."""
    kept, rewritten, *_ = epochs(fits)
    return max(abs(a - b) / abs(a) for a, b in zip(kept.losses, rewritten.losses, strict=True))


def by_model(fits: Sequence[Fit]) -> list[list[Fit]]:
    return [list(own) for _, own in itertools.groupby(fits, key=lambda fit: fit.model)]


def sheet(fits: Sequence[Fit], folder: str) -> Sheet:
    def difference(own: list[Fit]) -> str:
        found = largest_difference(own)
        return f"{found:.2g}" if found else "0 (to the bit)"

    def times(own: list[Fit]) -> float:
        return largest_batch(own, optimized=True) / largest_batch(own, optimized=False)

    return Sheet.of(
        by_model(fits),
        [
            ("model", lambda own: own[0].model),
            ("largest batch", lambda own: str(largest_batch(own, optimized=False))),
            ("optimized", lambda own: str(largest_batch(own, optimized=True))),
            ("times as large", lambda own: f"{times(own):.2f}"),
            ("peak MB", lambda own: megabytes(epochs(own)[0].peak_bytes or 0)),
            ("optimized peak MB", lambda own: megabytes(epochs(own)[1].peak_bytes or 0)),
            ("largest difference of losses", difference),
            ("last loss", lambda own: f"{epochs(own)[0].losses[-1]:.4f}"),
            ("optimized last loss", lambda own: f"{epochs(own)[1].losses[-1]:.4f}"),
        ],
        title=f"The largest batch of Keras models under {LIMIT_BYTES >> 20} MiB",
        notes=(
            f"Images of {IMAGE_SIZE} × {IMAGE_SIZE} pixels, SGD. Largest batch: as Keras trains "
            f"it, in steps of {STEP}, and with memtrade.keras.optimize, in multiples of it, "
            f"{MOST_TIMES} times at the most. Peaks and losses are those of an epoch at the batch "
            "that fits in both ways.",
            "The losses are as Keras reports them after each step: the epoch's mean so far. Their "
            "difference is relative.",
        ),
        command=f"python -m memtrade.papers.keras_double_batch {folder}",
    )


def save(fits: Sequence[Fit], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    about = ["model", "optimized", "batch_size"]
    every: Any = pd.DataFrame([asdict(fit) for fit in fits]).astype({"peak_bytes": "Int64"})
    every["outcome"] = every["obstacle"].fillna("ran")
    save_csv(folder / "double_batch.csv", every[[*about, "steps", "outcome", "peak_bytes"]])
    curves = every[every["steps"] > TRIED_STEPS].explode("losses")
    curves["step"] = curves.groupby(level=0).cumcount() + 1
    curves = curves.rename(columns={"losses": "loss"})[[*about, "step", "loss"]]
    save_csv(folder / "double_batch_losses.csv", curves)
    (folder / "double_batch.md").write_text(sheet(fits, str(folder)).to_markdown(), "utf-8")
    draw(by_model(fits), folder / "double_batch.png")


def draw(models: Sequence[list[Fit]], path: Path) -> None:
    """The losses over the examples seen, so that batches of two sizes share an axis."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(4.6 * len(models), 3.4), layout="constrained")
    looks = (
        {"color": "tab:blue", "linewidth": 6.0, "alpha": 0.35},
        {"color": "black", "linewidth": 1.2},
        {"color": "tab:orange", "linewidth": 1.6, "linestyle": "--"},
    )
    for axis, own in zip(canvas.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        for fit, look in zip(epochs(own), looks, strict=False):
            seen = [fit.batch_size * (i + 1) for i in range(len(fit.losses))]
            axis.plot(seen, fit.losses, label=fit.label, **look)
        axis.set_title(f"{own[0].model} under {LIMIT_BYTES >> 20} MiB")
        axis.set_xlabel("examples seen")
        axis.set_ylabel("loss, the epoch's mean so far")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    canvas.savefig(path, dpi=130, metadata={"Software": None})


def is_good(own: Sequence[Fit]) -> bool:
    """Twice the batch, and the same losses to the bit."""
    plain, lean = (largest_batch(own, optimized=each) for each in (False, True))
    return lean >= 2 * plain and largest_difference(own) == 0.0


def main(words: Sequence[str]) -> int:
    match words:
        case ["child", text]:
            print(json.dumps(asdict(train(Fit(**json.loads(text))))))
            return 0
        case [folder]:
            fits: list[Fit] = []
            for model in MODELS:
                fits += tried(model)
                save(fits, Path(folder))
            return 0 if all(map(is_good, by_model(fits))) else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
