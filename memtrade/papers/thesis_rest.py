"""What the thesis prints beside its tables, beside ours: lists, runs of its logs, single figures.

    python -m memtrade.papers.thesis_rest results/predicted

Reads results/predicted/thesis.csv and the records of results/measured and results/thesis, measures
an idle process, and writes thesis_rest.md into the folder.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from memtrade.errors import MemtradeError
from memtrade.measure.records import Record, load_records
from memtrade.papers.pages import save_page, write_pages
from memtrade.papers.published import published_lines
from memtrade.papers.thesis_log import STEPS
from memtrade.papers.thesis_nets import ORDER, net_name
from memtrade.results.sheets import NONE, Sheet, cell

COMMAND = "python -m memtrade.papers.thesis_rest results/predicted"
RESULTS = Path("results")
_IDLE = (
    "import psutil, tensorflow as tf; tf.constant(0.0); print(psutil.Process().memory_info().rss)"
)

Key = tuple[int | None, int, str]  # layers, batch size, strategy


def predicted_rows(path: Path) -> dict[Key, Any]:
    """The rows of thesis.csv but those of largest batches. Raises MemtradeError where there is no
    such file."""
    if not path.is_file():
        raise MemtradeError(
            f"{path} does not exist: python -m memtrade.papers.thesis_prediction {path.parent} "
            "makes it"
        )
    frame: Any = pd.read_csv(path)
    rows = frame[frame["table"] != "max batch"].astype({"layers": "Int64"}).to_dict("records")
    return {
        (None if pd.isna(row["layers"]) else row["layers"], row["batch_size"], row["strategy"]): row
        for row in rows
    }


def _key(line: dict[Any, Any]) -> Key:
    return line["layers"], line["batch_size"], line["strategy"]


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
    beside = {_key(line): line for line in published_lines("thesis_resnet")}
    rows = []
    for row in published_lines("thesis_resnet_lists"):
        key = _key(row)
        table, ours = beside[key], predicted[key]
        rows.append(
            (
                f"{row['strategy']}, ResNet-{row['layers']}, batch {row['batch_size']}",
                cell("{:,.2f}".format, row["peak_mb"]),
                cell("{:,.2f}".format, table["peak_mb"]),
                f"{ours['predicted_peak_mb']:,.0f}",
                _error(ours["predicted_peak_mb"], row["peak_mb"]),
                cell("{:.3f}".format, row["step_seconds"]),
                f"{ours['predicted_seconds']:.3f}",
                _error(ours["predicted_seconds"], row["step_seconds"]),
                cell("{:.2f}".format, row["host_with_idle_gb"]),
                cell(lambda gb: f"{gb - idle_gb:.2f}", row["host_with_idle_gb"]),
                cell("{:.2f}".format, table["host_gb"]),
                cell(lambda size: f"{size / 1e9:.2f}", hosts.get(key)),
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
    rows = []
    for run in published_lines("thesis_log_runs"):
        same = {name: run[name] for name in ("model", "layers", "strategy")}
        last = published_lines("thesis_log_memory", **same)[-1]
        costs = [line["memory_cost_mb"] for line in published_lines("thesis_log_steps", **same)]
        own = last["mem_used_mb"] + max(costs) if costs else None
        ours = predicted[_key(run)]
        fits = "ok" if ours["fits"] else "out of memory"
        rows.append(
            (
                f"{run['strategy']}, {net_name(run['layers'])}",
                run["status"].replace("_", " "),
                fits,
                f"{run['memory_lines']} / {run['steps']}",
                f"{last['max_mem_mb']:,.1f}" + ("" if run["max_mem_is_own"] is True else "*"),
                cell("{:,.1f}".format, own),
                f"{ours['predicted_peak_mb']:,.0f}",
                _error(ours["predicted_peak_mb"], own),
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


def single_figures() -> dict[str, str]:
    return {line["quantity"]: line["value"] for line in published_lines("thesis_other")}


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


def _error(predicted: float, published: float | None) -> str:
    return cell(lambda printed: f"{100 * (predicted / printed - 1):+.1f}", published)


def idle_process_bytes() -> int:
    """Resident bytes of a process that has imported TensorFlow, and does nothing."""
    said = subprocess.run([sys.executable, "-c", _IDLE], capture_output=True, text=True, check=True)
    return int(said.stdout)


def main(folder: Path) -> None:
    predicted = predicted_rows(folder / "thesis.csv")
    measured = load_records(RESULTS / "measured")
    records = [*load_records(RESULTS / "thesis"), *measured]
    idle_gb = float(single_figures()["idle_host_gb"])
    save_page(
        folder / "thesis_rest.md",
        command=COMMAND,
        lists=lists_sheet(predicted, host_bytes(measured), idle_gb),
        runs=runs_sheet(predicted),
        figures=figures_sheet(records, idle_process_bytes()),
    )


if __name__ == "__main__":
    write_pages(main, __doc__)
