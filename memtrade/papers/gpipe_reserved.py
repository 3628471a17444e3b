"""What the published bytes of GPipe on GPT-2 count: each hypothesis beside the 84 runs.

    python -m memtrade.papers.gpipe_reserved results/predicted

Writes gpipe_reserved.md and .csv into the folder. Takes some minutes; nothing is traced or run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from memtrade.papers.gpipe_torch import RECOMPUTE_SHARE, STEPS, Implementation, reserved
from memtrade.papers.pages import save_csv, save_page, write_pages
from memtrade.papers.pipelines import checkpoint_of
from memtrade.papers.published import load_published, published_lines
from memtrade.papers.torch_allocator import MIB, CachingAllocator
from memtrade.pipeline.design.schedule import CheckpointMode
from memtrade.results.sheets import Sheet

COMMAND = "python -m memtrade.papers.gpipe_reserved results/predicted"
# What the host's order hangs on: shares of a backward part's time that a recomputation takes.
SHARES = (0.5, 0.7, 0.8)


class PublishedRun(NamedTuple):
    """A published run. `parameter_bytes` are what the logs take off the devices' `peaks`."""

    name: str
    implementation: Implementation
    checkpoint: CheckpointMode
    partitions: int
    micro_batches: int
    parameter_bytes: int
    peaks: tuple[int, ...]

    def error(self, peaks: Sequence[int]) -> float:
        """Of the activations' bytes: predicted over published, less 1."""
        return (sum(peaks) - self.parameter_bytes) / (sum(self.peaks) - self.parameter_bytes) - 1


def published_runs() -> list[PublishedRun]:
    devices = load_published("gpipe_gpt2_devices").groupby("run")["max_bytes"]
    peaks = {str(name): tuple(map(int, each)) for name, each in devices}
    return [
        PublishedRun(
            line["run"],
            line["implementation"],
            checkpoint_of(line["implementation"], line["strategy"]),
            line["partitions"],
            line["micro_batches"],
            line["parameter_bytes"],
            peaks[line["run"]],
        )
        for line in published_lines("gpipe_gpt2_runs")
    ]


def _predict(run: PublishedRun, **otherwise: object) -> list[CachingAllocator]:
    case = run.partitions, run.micro_batches, run.checkpoint, run.implementation
    return reserved(*case, **otherwise)  # pyright: ignore[reportArgumentType]  # of reserved()


def _otherwise(
    runs: Sequence[PublishedRun], usual: Sequence[list[CachingAllocator]], **otherwise: object
) -> list[list[CachingAllocator]]:
    """As usual where nothing is recomputed."""
    return [
        devices if run.checkpoint == "never" else _predict(run, **otherwise)
        for run, devices in zip(runs, usual, strict=True)
    ]


def hypotheses_sheet(runs: Sequence[PublishedRun], errors: dict[str, list[float]]) -> Sheet:
    """For each group of runs, the median error of each hypothesis."""
    names = ["implementation", "checkpoint", "K"]
    keys = [(run.implementation, run.checkpoint, run.partitions) for run in runs]
    groups = pd.DataFrame(keys, columns=pd.Index(names))
    sizes = groups.join(pd.DataFrame(errors).abs())
    medians = sizes.groupby(names, sort=False)[list(errors)].median()
    medians.loc["all", "", ""] = sizes[list(errors)].median()
    told = medians.map("{:.1%}".format)
    return Sheet(
        title=f"Activations of {len(runs)} runs: median error by what is counted",
        columns=(*names, *errors),
        words=2,
        rows=tuple((*map(str, group), *row) for group, *row in told.itertuples(name=None)),
        notes=(
            "in use: most bytes that tensors take at once; reserved: PyTorch's segments",
            "in turn: each micro-batch is recomputed when the one before has gone backward; ahead: "
            "as soon as its gradient is there, except under torchgpipe with several partitions",
            f"a recomputation takes the host {RECOMPUTE_SHARE} of its backward part's time: to the "
            "nearest tenth, in view of the runs with K = 1; nothing else was fitted",
            f"{STEPS} steps; the logs' ten change little",
        ),
    )


def runs_sheet(runs: Sequence[PublishedRun], predicted: Sequence[Sequence[int]]) -> Sheet:
    """Every device of every run."""

    def text(peaks: Sequence[int]) -> str:
        return " + ".join(f"{peak // MIB:,}" for peak in peaks)

    return Sheet.of(
        list(zip(runs, predicted, strict=True)),
        [
            ("run", lambda it: it[0].name),
            ("checkpoint", lambda it: it[0].checkpoint),
            ("published", lambda it: text(it[0].peaks)),
            ("predicted", lambda it: text(it[1])),
            ("error %", lambda it: f"{100 * it[0].error(it[1]):+.1f}"),
        ],
        title="MiB reserved on each device, and the error of the activations",
        words=2,
        command=COMMAND,
    )


def main(folder: Path) -> None:
    runs = published_runs()
    usual = [_predict(run) for run in runs]
    in_turn = _otherwise(runs, usual, order="in turn")

    def errors_of(each: Sequence[list[CachingAllocator]], what: str) -> list[float]:
        pairs = zip(runs, each, strict=True)
        return [run.error([getattr(device, what) for device in devices]) for run, devices in pairs]

    errors = {
        f"{name}, {order}": errors_of(each, what)
        for order, each in (("in turn", in_turn), ("ahead", usual))
        for name, what in (("in use", "peak_bytes"), ("reserved", "reserved_bytes"))
    }
    for share in SHARES:
        others = _otherwise(runs, usual, share=share)
        errors[f"the same, a share of {share}"] = errors_of(others, "reserved_bytes")
    predicted = [[device.reserved_bytes for device in devices] for devices in usual]
    save_page(
        folder / "gpipe_reserved.md",
        command=COMMAND,
        hypotheses=hypotheses_sheet(runs, errors),
        runs=runs_sheet(runs, predicted),
    )
    frame = pd.DataFrame(
        {
            "run": [run.name for run in runs],
            "published_bytes": [sum(run.peaks) for run in runs],
            "predicted_bytes": [sum(peaks) for peaks in predicted],
            "activation_error": errors["reserved, ahead"],
        }
    )
    save_csv(folder / "gpipe_reserved.csv", frame, "%.4f")


if __name__ == "__main__":
    write_pages(main, __doc__)
