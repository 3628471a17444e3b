"""Holds device profiles against published training speeds of ResNet-50.

    python -m memtrade.papers.device_check results/predicted

Writes devices.csv and devices.md into the folder. The profiles' shares of the peak rates were
chosen with these figures in view: this says how far off they are, not how well they predict.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict
from pathlib import Path

from memtrade.graph import StepGraph
from memtrade.measure.extract import extract_graph
from memtrade.measure.protocol import TrialSpec
from memtrade.models.resnet import ResNet
from memtrade.papers.published import load_published
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import profile_target

COLUMNS = ("device", "precision", "batch_size", "published_images_per_second",
           "predicted_images_per_second", "error")  # fmt: skip
TIMEOUT_SECONDS = 600.0


def step(batch_size: int) -> StepGraph:
    """As NVIDIA trains it: channels first, with momentum."""
    spec = TrialSpec(
        model="resnet",
        model_options=asdict(ResNet(layers=50, batch_size=batch_size, data_format="NCHW")),
        optimizer="momentum",
        task="extract",
        memory_limit_bytes=1 << 34,  # of a child that allocates nothing
    )
    return extract_graph(spec, timeout_seconds=TIMEOUT_SECONDS)


def compare() -> list[tuple[str, str, int, float, float, float]]:
    rows = []
    for given in load_published("nvidia_resnet50").itertuples():
        batch_size = int(given.batch_size)
        simulator = TimeSimulator(step(batch_size), profile_target(given.device))
        speed = batch_size / simulator.step_seconds(())
        error = speed / given.images_per_second - 1
        rows.append((given.device, given.precision, batch_size, float(given.images_per_second),
                     round(speed, 1), round(error, 4)))  # fmt: skip
    return rows


def main(folder: Path) -> None:
    rows = compare()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "devices.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *rows])
    lines = [
        "# Device profiles against published training speeds",
        "",
        "ResNet-50 v1.5, images per second on one GPU. NVIDIA's are with XLA, ours without; by",
        "the hours that its README prints, XLA gains a sixth. Made by",
        "",
        "    python -m memtrade.papers.device_check results/predicted",
        "",
        "| device | precision | batch | published, with XLA | predicted, without | difference |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for *cells, error in rows:
        lines.append(f"| {' | '.join(map(str, cells))} | {100 * error:+.0f}% |")
    (folder / "devices.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
