"""Holds device profiles against published training speeds of ResNet-50.

    python -m memtrade.papers.device_check results/predicted

Writes devices.csv and devices.md into the folder. The profiles' shares of the peak rates were
chosen with these figures in view: this says how far off they are, not how well they predict.
"""

from pathlib import Path

import pandas as pd

from memtrade.models.resnet import ResNet
from memtrade.papers.pages import save_csv, save_page, trace_model, write_pages
from memtrade.papers.published import load_published
from memtrade.results.sheets import Sheet
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import profile_target

COLUMNS = ("device", "precision", "batch_size", "published_images_per_second",
           "predicted_images_per_second", "error")  # fmt: skip


def compare() -> list[tuple[str, str, int, float, float, float]]:
    rows = []
    for given in load_published("nvidia_resnet50").itertuples():
        batch_size = int(given.batch_size)
        # As NVIDIA trains it: channels first, with momentum.
        model = ResNet(layers=50, batch_size=batch_size, data_format="NCHW")
        simulator = TimeSimulator(trace_model(model, "momentum"), profile_target(given.device))
        speed = batch_size / simulator.step_seconds(())
        error = speed / given.images_per_second - 1
        rows.append((given.device, given.precision, batch_size, float(given.images_per_second),
                     round(speed, 1), round(error, 4)))  # fmt: skip
    return rows


def main(folder: Path) -> None:
    rows = compare()
    save_csv(folder / "devices.csv", pd.DataFrame(rows, columns=pd.Index(COLUMNS)))
    sheet = Sheet(
        title="ResNet-50 v1.5, images per second on one GPU: NVIDIA's with XLA, ours without",
        columns=("device", "precision", "batch", "published", "predicted", "difference"),
        words=2,
        rows=tuple((*map(str, cells), f"{100 * error:+.0f}%") for *cells, error in rows),
        notes=("by the hours that its README prints, XLA gains a sixth",),
        command="python -m memtrade.papers.device_check results/predicted",
    )
    save_page(folder / "devices.md", speeds=sheet)


if __name__ == "__main__":
    write_pages(main, __doc__)
