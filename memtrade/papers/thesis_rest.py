"""What the thesis prints beside its tables, beside ours: lists, runs of its logs, single figures.

    python -m memtrade.papers.thesis_rest results/predicted

Reads results/predicted/thesis.csv and the records of results/measured and results/thesis, measures
an idle process, and writes thesis_rest.md into the folder.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from memtrade.measure.records import Record, load_records
from memtrade.papers.pages import save_page, write_pages
from memtrade.papers.published import load_published
from memtrade.papers.thesis_log import STEPS
from memtrade.papers.thesis_nets import ORDER
from memtrade.results.sheets import NONE, Sheet

COMMAND = "python -m memtrade.papers.thesis_rest results/predicted"
RESULTS = Path("results")
_IDLE = (
    "import psutil, tensorflow as tf; tf.constant(0.0); print(psutil.Process().memory_info().rss)"
)

Key = tuple[int | None, int, str]  # layers, batch size, strategy


def predicted_rows(path: Path) -> dict[Key, Any]:
    """The rows of thesis.csv but those of largest batches."""
    frame: Any = pd.read_csv(path)
    rows = frame[frame["table"] != "max batch"].to_dict("records")
    return {(_layers(row), int(row["batch_size"]), row["strategy"]): row for row in rows}


def _layers(row: dict[str, Any]) -> int | None:
    return None if pd.isna(row["layers"]) else int(row["layers"])


def host_bytes(records: Sequence[Record]) -> dict[Key, int]:
    """Host memory of ResNets in records, without that of an idle process; the newest counts."""
    found: dict[Key, int] = {}
    for record in sorted(records, key=lambda record: record.created):
        options = record.spec.model_options
        if record.spec.model == "resnet" and record.measured is not None:
            key = options["layers"], options["batch_size"], record.spec.strategy
            found[key] = record.measured.host_bytes
    return found


def lists_sheet(predicted: dict[Key, Any], hosts: dict[Key, int], idle_gb: float) -> Sheet:
    """The plain lists below the thesis' tables."""
    tables: Any = load_published("thesis_resnet").to_dict("records")
    beside = {(_layers(row), row["batch_size"], row["strategy"]): row for row in tables}
    rows = []
    for row in load_published("thesis_resnet_lists").to_dict("records"):
        key = _layers(row), int(row["batch_size"]), row["strategy"]
        table, ours, host = beside[key], predicted[key], hosts.get(key)
        with_idle = row["host_with_idle_gb"]
        rows.append(
            (
                f"{row['strategy']}, ResNet-{row['layers']}, batch {row['batch_size']}",
                _text(row["peak_mb"], ",.2f"),
                _text(table["peak_mb"], ",.2f"),
                _text(ours["predicted_peak_mb"], ",.0f"),
                _error(ours["predicted_peak_mb"], row["peak_mb"]),
                _text(row["step_seconds"], ".3f"),
                _text(ours["predicted_seconds"], ".3f"),
                _error(ours["predicted_seconds"], row["step_seconds"]),
                _text(with_idle, ".2f"),
                _text(with_idle - idle_gb, ".2f"),
                _text(table["host_gb"], ".2f"),
                NONE if host is None else f"{host / 1e9:.2f}",
            )
        )
    return Sheet(
        title="The plain lists",
        columns=(
            "list", "peak MB: list", "table", "predicted", "error %",
            "step s: list", "predicted", "error %",
            "host GB: list", f"less {idle_gb:g}", "table", "measured here",
        ),
        rows=tuple(rows),
        notes=(
            "error: predicted less the list's, of the list's; predicted for the thesis' networks "
            "and card, measured of memtrade's own networks and rules (results/measured), whose "
            "host memory is without that of an idle process",
        ),
    )  # fmt: skip


def runs_sheet(predicted: dict[Key, Any]) -> Sheet:
    """The runs of the two logs: what their counter said, and what they took."""
    memory: Any = load_published("thesis_log_memory")
    costs: Any = load_published("thesis_log_steps")
    rows = []
    for run in load_published("thesis_log_runs").to_dict("records"):
        key = _layers(run), int(run["batch_size"]), run["strategy"]
        lines, steps = (_of_run(frame, run) for frame in (memory, costs))
        last = lines.iloc[-1]
        own = last["mem_used_mb"] + steps["memory_cost_mb"].max() if len(steps) else None
        ours = predicted[key]
        fits = "ok" if ours["fits"] else "out of memory"
        rows.append(
            (
                f"{run['strategy']}, " + ("InceptionV4" if key[0] is None else f"ResNet-{key[0]}"),
                run["status"].replace("_", " "),
                fits,
                f"{run['memory_lines']} / {run['steps']}",
                f"{last['max_mem_mb']:,.1f}" + ("" if run["max_mem_is_own"] is True else "*"),
                NONE if own is None else f"{own:,.1f}",
                f"{ours['predicted_peak_mb']:,.0f}",
                NONE if own is None else _error(ours["predicted_peak_mb"], own),
            )
        )
    return Sheet(
        title="The runs of the logs",
        columns=(
            "run", "ended", "predicted", "memory lines / steps", "max_mem at its end, MB",
            "the run's own peak, MB", "predicted", "error %",
        ),
        words=3,
        rows=tuple(rows),
        notes=(
            "*: the counter was never reset, and is an earlier run's (or no step ended)",
            "the run's own peak: mem_used and the highest memory_cost",
            f"memtrade run --log thesis prints {STEPS + 2} memory lines and {STEPS} steps; its "
            "max_mem is the run's own",
        ),
    )  # fmt: skip


def _of_run(frame: Any, run: dict[str, Any]) -> Any:
    same = (frame["model"] == run["model"]) & (frame["strategy"] == run["strategy"])
    if not pd.isna(run["layers"]):
        same &= frame["layers"] == run["layers"]
    return frame[same]


def single_figures() -> dict[str, str]:
    lines = load_published("thesis_other").to_dict("records")
    return {line["quantity"]: line["value"] for line in lines}


def figures_sheet(records: Sequence[Record], idle_bytes: int) -> Sheet:
    """The notes' single figures."""
    theirs = single_figures()
    ome = [
        len(record.plan.checkpoints)
        for record in records
        if record.plan is not None
        and record.plan.checkpoints
        and (record.spec.model, record.spec.strategy) == ("inception-v4", "ome")
        and record.spec.order == ORDER
    ]
    full = [record.reason for record in records if record.status == "out_of_memory"]
    rows = (
        ("host memory of an idle process, GB", theirs["idle_host_gb"], f"{idle_bytes / 1e9:.2f}"),
        (
            "checkpoints of InceptionV4 under OME",
            theirs["ome_checkpoints_disconnected"],
            str(ome[-1]) if ome else NONE,
        ),
        (
            "where original of ResNet-200 runs out of memory",
            theirs["cuda_out_of_memory_message"],
            full[-1] if full else NONE,
        ),
    )
    return Sheet(
        title="Single figures",
        columns=("what", "published", "here"),
        words=3,
        rows=rows,
        notes=(
            "idle: TensorFlow 1 with CUDA there, TensorFlow on two cores here",
            "checkpoints: of the variant that is measured; which variants have 12, the table of "
            "variants tells",
        ),
        command=COMMAND,
    )


def _text(value: Any, form: str) -> str:
    return NONE if pd.isna(value) else format(value, form)


def _error(predicted: float, published: Any) -> str:
    return NONE if pd.isna(published) else f"{100 * (predicted / published - 1):+.1f}"


def idle_process_bytes() -> int:
    """Resident bytes of a process that has imported TensorFlow, and does nothing."""
    said = subprocess.run([sys.executable, "-c", _IDLE], capture_output=True, text=True, check=True)
    return int(said.stdout)


def main(folder: Path) -> None:
    predicted = predicted_rows(folder / "thesis.csv")
    measured = load_records(RESULTS / "measured")
    records = [*load_records(RESULTS / "thesis"), *measured]
    idle_gb = float(single_figures()["idle_host_gb"])
    sheets = [
        lists_sheet(predicted, host_bytes(measured), idle_gb),
        runs_sheet(predicted),
        figures_sheet(records, idle_process_bytes()),
    ]
    save_page(folder / "thesis_rest.md", _INTRODUCTION, *sheets)


_INTRODUCTION = f"""# The thesis' lists, runs and single figures

What the thesis' notes print beside their tables, beside ours. Made by

    {COMMAND}
"""


if __name__ == "__main__":
    write_pages(main, __doc__)
