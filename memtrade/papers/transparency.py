"""Is training the same with less memory? ResNet-101 on scikit-learn's digits, in six ways.

    python -m memtrade.papers.transparency results/transparency docs/images/transparency.png

The plain step, each strategy's and GPipe's (2 stages, 4 micro-batches), from the same variables
over the same batches. Strategies promise equality to the bit, and the exit status is 1 where one
breaks it; GPipe promises the same accuracy, for its batch norms see micro-batches. Scaled to two
cores: images of 32 x 32 pixels (the digits' 8 x 8, each pixel repeated) in place of ImageNet's, and
three epochs; ResNet-101 whole.

Each way is a process of its own (`transparency_child.py`) that needs scikit-learn; some minutes
each. Writes runs.json, from which it goes on where it was stopped, transparency.md, and a picture
of what has been run so far.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from memtrade.errors import MemtradeError
from memtrade.papers.pages import run_in_arena, save_page
from memtrade.papers.published import load_published
from memtrade.results.sheets import NONE, Sheet
from memtrade.units import megabytes

LAYERS, IMAGE_SIZE, BATCH, EPOCHS = 101, 32, 48, 3
OPTIMIZER, LEARNING_RATE = "adam", 1e-3
TEST_SHARE = 0.2
PARTITIONS, MICRO_BATCHES = 2, 4
LIMIT_BYTES = 4 << 30
STRATEGIES = ("ome", "checkpoints", "lms", "optimal")
GPIPE = "gpipe"
WAYS = ("plain", GPIPE, *STRATEGIES)
CHILD = "memtrade.papers.transparency_child"
COMMAND = "python -m memtrade.papers.transparency results/transparency docs/images/transparency.png"
SETTINGS = {
    "layers": LAYERS, "image_size": IMAGE_SIZE, "batch": BATCH, "epochs": EPOCHS,
    "optimizer": OPTIMIZER, "learning_rate": LEARNING_RATE, "test_share": TEST_SHARE,
    "partitions": PARTITIONS, "micro_batches": MICRO_BATCHES,
}  # fmt: skip


@dataclass(frozen=True)
class TrainedRun:
    """What a way came to: the loss of every step, the accuracy after every epoch, a digest of all
    variables at the end, and the arena's peak (of all stages together)."""

    way: str
    losses: list[float]
    accuracies: list[float]
    digest: str
    peak_bytes: int
    examples: int

    @property
    def error_text(self) -> str:
        """The share of test images that it took for others in the end, in %."""
        return f"{100 * (1 - self.accuracies[-1]):.2f}"


def run(way: str) -> TrainedRun:
    """Raises MemtradeError that says why the child ended early."""
    done = run_in_arena(CHILD, way, limit_bytes=LIMIT_BYTES)
    if done.returncode:
        raise MemtradeError(f"{way}: {done.stderr.strip().splitlines()[-1]}")
    print(done.stderr, file=sys.stderr, end="")
    return TrainedRun(**json.loads(done.stdout.splitlines()[-1]))


def is_same(one: TrainedRun, other: TrainedRun) -> bool:
    """To the bit: all losses, and all variables at the end."""
    return (one.losses, one.digest) == (other.losses, other.digest)


def ways_sheet(runs: Sequence[TrainedRun]) -> Sheet:
    plain = next(each for each in runs if each.way == "plain")
    missing = [way for way in WAYS if way not in {each.way for each in runs}]
    promised = {"plain", *STRATEGIES}

    def same(run: TrainedRun) -> str:
        return ("yes" if is_same(run, plain) else "NO") if run.way in promised else "not promised"

    return Sheet.of(
        runs,
        [
            ("way", lambda it: it.way),
            ("peak MB", lambda it: megabytes(it.peak_bytes)),
            ("first loss", lambda it: f"{it.losses[0]:.4f}"),
            ("last loss", lambda it: f"{it.losses[-1]:.4f}"),
            ("test error %", lambda it: it.error_text),
            ("every loss and variable as the plain step's, to the bit", same),
        ],
        title=f"ResNet-{LAYERS} on digits: trained in {len(runs)} ways",
        notes=(
            f"{plain.examples:,} images of {IMAGE_SIZE} x {IMAGE_SIZE} pixels, batch {BATCH}, "
            f"{EPOCHS} epochs ({len(plain.losses)} steps), {OPTIMIZER}, learning rate "
            f"{LEARNING_RATE:g}; tested on {TEST_SHARE:.0%} of the images, as one batch",
            f"gpipe: {PARTITIONS} stages, {MICRO_BATCHES} micro-batches, all recomputed; its peak "
            "is that of both stages in one arena, with the examiner's weights, as in all ways",
            "micro-batches are normalized by themselves, so gpipe takes another course",
            *([f"not run yet: {', '.join(missing)}"] if missing else []),
        ),
        command=COMMAND,
    )


def published_sheet(runs: Sequence[TrainedRun]) -> Sheet:
    """torchgpipe's accuracies of the same net on ImageNet, beside ours on digits."""
    errors = {each.way: each.error_text for each in runs}
    rows = []
    frame: Any = load_published("torchgpipe_accuracy")
    for batch, lines in frame.groupby("batch_size_printed", sort=False):
        cells = {
            line.implementation: NONE
            if pd.isna(line.top1_error_percent)
            else f"{line.top1_error_percent:.2f} ± {line.top1_error_plus_minus:.2f}"
            for line in lines.itertuples()
        }
        rows.append(
            (f"ImageNet, batch {batch}, published", cells["torchgpipe"], cells["data_parallel"],
             cells["goyal_et_al"])
        )  # fmt: skip
    rows.append((f"digits, batch {BATCH}, here", errors.get(GPIPE, NONE), errors["plain"], NONE))
    return Sheet(
        title=f"Errors of ResNet-{LAYERS} with and without a pipeline, %",
        columns=("data", "GPipe", "without a pipeline", "Goyal et al."),
        rows=tuple(rows),
        notes=("published: top-1 errors; without a pipeline: nn.DataParallel",),
    )


def draw(runs: Sequence[TrainedRun], path: Path) -> None:
    """Losses and accuracies over the steps. Curves that are the same lie on each other: from wide
    to narrow, so that all are seen."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = canvas.subplots(1, 2)
    for i, each in enumerate(runs):
        look: dict[str, Any] = {"color": f"C{i}", "label": each.way, "linewidth": 4 - 0.6 * i}
        if each.way == "plain":
            look |= {"linewidth": 7.0, "alpha": 0.35}
        if each.way == GPIPE:
            look |= {"linewidth": 1.4, "linestyle": "--"}
        left.plot(range(1, len(each.losses) + 1), each.losses, **look)
        per_epoch = len(each.losses) // len(each.accuracies)
        ends = [per_epoch * (k + 1) for k in range(len(each.accuracies))]
        right.plot(ends, [100 * accuracy for accuracy in each.accuracies], **look)
    left.set_yscale("log")
    left.set_ylabel("loss")
    right.set_ylabel("test accuracy, %")
    for axis in (left, right):
        axis.set_xlabel("steps")
        axis.grid(alpha=0.3)
    right.legend(fontsize=8)
    canvas.suptitle(
        f"ResNet-{LAYERS} on digits of {IMAGE_SIZE} x {IMAGE_SIZE} pixels, batch {BATCH}"
    )
    canvas.savefig(path, dpi=130, metadata={"Software": None})


def save(runs: Sequence[TrainedRun], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    said = {"settings": SETTINGS, "runs": [asdict(each) for each in runs]}
    (folder / "runs.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def known_runs(folder: Path) -> dict[str, TrainedRun]:
    """What has been run already, with these settings."""
    path = folder / "runs.json"
    if not path.is_file():
        return {}
    said = json.loads(path.read_bytes())
    if said["settings"] != SETTINGS:
        return {}
    return {each["way"]: TrainedRun(**each) for each in said["runs"]}


def show(runs: Sequence[TrainedRun], folder: Path, picture: Path) -> None:
    sheets = {"ways": ways_sheet(runs), "published": published_sheet(runs)}
    save_page(folder / "transparency.md", layers=LAYERS, command=COMMAND, **sheets)
    draw(runs, picture)


def main(words: Sequence[str]) -> int:
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder, picture = map(Path, words)
    runs = known_runs(folder)
    try:
        for way in WAYS:
            if way not in runs:
                runs[way] = run(way)
                save([runs[each] for each in WAYS if each in runs], folder)
            show([runs[each] for each in WAYS if each in runs], folder, picture)
    except MemtradeError as error:
        print(f"memtrade: {error}", file=sys.stderr)
        return 2
    return 0 if all(is_same(runs[way], runs["plain"]) for way in STRATEGIES) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
