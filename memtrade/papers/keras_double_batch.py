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
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from memtrade.papers.pages import save_csv
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
CHILD = (sys.executable, "-m", "memtrade.papers.keras_double_batch", "child")


@dataclass(frozen=True)
class FitRun:
    """One call of `model.fit`, over one epoch."""

    model: str
    batch_size: int
    steps: int
    optimized: bool

    @property
    def label(self) -> str:
        way = "with memtrade.keras.optimize" if self.optimized else "as Keras trains it"
        return f"{way}, batch {self.batch_size}"


@dataclass(frozen=True)
class FitOutcome:
    """How it went: the peak and the loss after each step, or what was in the way."""

    obstacle: str | None
    peak_bytes: int | None
    losses: list[float]


@dataclass(frozen=True)
class ModelResult:
    """Of one model: the largest batches in both ways, and an epoch of three fits."""

    model: str
    original: int
    optimized: int
    trials: tuple[tuple[FitRun, FitOutcome], ...]
    epochs: tuple[tuple[FitRun, FitOutcome], ...]

    @property
    def largest_difference(self) -> float:
        """Between the two curves at the batch where both fit, relative to the loss."""
        (_, kept), (_, rewritten), *_ = self.epochs
        pairs = zip(kept.losses, rewritten.losses, strict=True)
        return max(abs(a - b) / abs(a) for a, b in pairs)


# --- the child ----------------------------------------------------------------------------------


def train(fit: FitRun) -> FitOutcome:
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
        return FitOutcome(OUT_OF_MEMORY, None, seen)
    return FitOutcome(None, arena.peak_bytes(), seen)


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


def attempt(fit: FitRun) -> FitOutcome:
    """Trains in a child. A kernel that runs out of memory may abort, and that is an answer, too."""
    environment = child_environment(TrialSpec(memory_limit_bytes=LIMIT_BYTES))
    done = subprocess.run(
        [*CHILD, json.dumps(asdict(fit))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode == 0:
        ran = FitOutcome(**json.loads(done.stdout.splitlines()[-1]))
    elif "ran out of memory" in done.stderr or "OOM" in done.stderr:
        ran = FitOutcome(OUT_OF_MEMORY, None, [])
    else:
        raise RuntimeError(f"{fit}: {done.stderr[-2000:]}")
    print(fit.model, fit.label, f"{fit.steps} steps:", ran.obstacle or "ran", file=sys.stderr)
    return ran


def answer(model: str) -> ModelResult:
    trials: list[tuple[FitRun, FitOutcome]] = []

    def obstacle(batch_size: int, optimized: bool) -> str | None:
        fit = FitRun(model, batch_size, TRIED_STEPS, optimized)
        trials.append((fit, attempt(fit)))
        return trials[-1][1].obstacle

    plain = largest(functools.partial(obstacle, optimized=False), guess=GUESS, step=STEP)
    if plain.batch == 0:
        raise RuntimeError(f"{model}: no batch runs under {megabytes(LIMIT_BYTES)} MB")
    lean = largest(
        functools.partial(obstacle, optimized=True),
        guess=2 * plain.batch,
        step=plain.batch,
        most=MOST_TIMES * plain.batch,
    )
    fits = [FitRun(model, plain.batch, EPOCH_STEPS, optimized) for optimized in (False, True)]
    if lean.batch >= 2 * plain.batch:
        fits.append(FitRun(model, 2 * plain.batch, EPOCH_STEPS // 2, True))
    epochs = tuple((fit, attempt(fit)) for fit in fits)
    return ModelResult(model, plain.batch, lean.batch, tuple(trials), epochs)


def sheet(answers: Sequence[ModelResult], folder: str) -> Sheet:
    def difference(found: float) -> str:
        return f"{found:.2g}" if found else "0 (to the bit)"

    return Sheet.of(
        answers,
        [
            ("model", lambda it: it.model),
            ("largest batch", lambda it: str(it.original)),
            ("optimized", lambda it: str(it.optimized)),
            ("times as large", lambda it: f"{it.optimized / it.original:.2f}"),
            ("peak MB", lambda it: megabytes(it.epochs[0][1].peak_bytes or 0)),
            ("optimized peak MB", lambda it: megabytes(it.epochs[1][1].peak_bytes or 0)),
            ("largest difference of losses", lambda it: difference(it.largest_difference)),
            ("last loss", lambda it: f"{it.epochs[0][1].losses[-1]:.4f}"),
            ("optimized last loss", lambda it: f"{it.epochs[1][1].losses[-1]:.4f}"),
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


def save(answers: Sequence[ModelResult], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    trials = [
        (fit.model, fit.optimized, fit.batch_size, fit.steps, ran.obstacle or "ran", ran.peak_bytes)
        for each in answers
        for fit, ran in (*each.trials, *each.epochs)
    ]
    losses = [
        (fit.model, fit.optimized, fit.batch_size, step, loss)
        for each in answers
        for fit, ran in each.epochs
        for step, loss in enumerate(ran.losses, start=1)
    ]
    about = ["model", "optimized", "batch_size"]
    made = pd.DataFrame(trials, columns=[*about, "steps", "outcome", "peak_bytes"])
    save_csv(folder / "double_batch.csv", made.astype({"peak_bytes": "Int64"}))
    curves = pd.DataFrame(losses, columns=[*about, "step", "loss"])
    save_csv(folder / "double_batch_losses.csv", curves)
    (folder / "double_batch.md").write_text(sheet(answers, str(folder)).to_markdown(), "utf-8")
    draw(answers, folder / "double_batch.png")


def draw(answers: Sequence[ModelResult], path: Path) -> None:
    """The losses over the examples seen, so that batches of two sizes share an axis."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(4.6 * len(answers), 3.4), layout="constrained")
    looks = (
        {"color": "tab:blue", "linewidth": 6.0, "alpha": 0.35},
        {"color": "black", "linewidth": 1.2},
        {"color": "tab:orange", "linewidth": 1.6, "linestyle": "--"},
    )
    for axis, each in zip(canvas.subplots(1, len(answers), squeeze=False)[0], answers, strict=True):
        for (fit, ran), look in zip(each.epochs, looks, strict=False):
            seen = [fit.batch_size * (i + 1) for i in range(len(ran.losses))]
            axis.plot(seen, ran.losses, label=fit.label, **look)
        axis.set_title(f"{each.model} under {LIMIT_BYTES >> 20} MiB")
        axis.set_xlabel("examples seen")
        axis.set_ylabel("loss, the epoch's mean so far")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    canvas.savefig(path, dpi=130, metadata={"Software": None})


def main(words: Sequence[str]) -> int:
    match words:
        case ["child", text]:
            ran = train(FitRun(**json.loads(text)))
            print(json.dumps(asdict(ran)))
            return 0
        case [folder]:
            answers: list[ModelResult] = []
            for model in MODELS:
                answers.append(answer(model))
                save(answers, Path(folder))
            good = all(
                each.optimized >= 2 * each.original and each.largest_difference == 0.0
                for each in answers
            )
            return 0 if good else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
