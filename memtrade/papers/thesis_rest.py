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
from memtrade.papers.published import lines, published_lines
from memtrade.papers.thesis_log import STEPS
from memtrade.papers.thesis_nets import ORDER, net_name
from memtrade.results.sheets import NONE, Sheet, cell
from memtrade.results.words import status_text

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
    frame: Any = pd.read_csv(path).astype({"layers": "Int64"})
    return {_key(line): line for line in lines(frame[frame["table"] != "max batch"])}


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
    # A row of the lists, and beside it the table's, what is predicted and our host memory.
    rows = [
        (row, beside[key], predicted[key], hosts.get(key))
        for row in published_lines("thesis_resnet_lists")
        for key in [_key(row)]
    ]
    two, three = "{:,.2f}".format, "{:.3f}".format
    return Sheet.of(
        rows,
        [
            ("list", lambda it: "{2}, ResNet-{0}, batch {1}".format(*_key(it[0]))),
            ("peak MB: list", lambda it: cell(two, it[0]["peak_mb"])),
            ("table", lambda it: cell(two, it[1]["peak_mb"])),
            ("predicted", lambda it: f"{it[2]['predicted_peak_mb']:,.0f}"),
            ("error %", lambda it: _error(it[2]["predicted_peak_mb"], it[0]["peak_mb"])),
            ("step s: list", lambda it: cell(three, it[0]["step_seconds"])),
            ("predicted", lambda it: three(it[2]["predicted_seconds"])),
            ("error %", lambda it: _error(it[2]["predicted_seconds"], it[0]["step_seconds"])),
            ("host GB: list", lambda it: cell(two, it[0]["host_with_idle_gb"])),
            (
                f"less {idle_gb:g}",
                lambda it: cell(lambda gb: two(gb - idle_gb), it[0]["host_with_idle_gb"]),
            ),
            ("table", lambda it: cell(two, it[1]["host_gb"])),
            ("measured here", lambda it: cell(lambda size: two(size / 1e9), it[3])),
        ],
        title="The plain lists",
        notes=(
            "error: predicted less the list's, of the list's; predicted for the thesis' networks "
            "and card, measured of memtrade's own networks and rules (results/measured), whose "
            "host memory is without that of an idle process",
        ),
    )


def runs_sheet(predicted: dict[Key, Any]) -> Sheet:
    """The runs of the two logs: what their counter said, and what they took."""
    rows = []
    for run in published_lines("thesis_log_runs"):
        same = {name: run[name] for name in ("model", "layers", "strategy")}
        last = published_lines("thesis_log_memory", **same)[-1]
        costs = [line["memory_cost_mb"] for line in published_lines("thesis_log_steps", **same)]
        own = last["mem_used_mb"] + max(costs) if costs else None
        rows.append((run, predicted[_key(run)], last["max_mem_mb"], own))
    one = "{:,.1f}".format
    return Sheet.of(
        rows,
        [
            ("run", lambda it: f"{it[0]['strategy']}, {net_name(it[0]['layers'])}"),
            ("ended", lambda it: status_text(it[0]["status"])),
            ("predicted", lambda it: "ok" if it[1]["fits"] else "out of memory"),
            ("memory lines / steps", lambda it: f"{it[0]['memory_lines']} / {it[0]['steps']}"),
            (
                "max_mem at its end, MB",
                lambda it: one(it[2]) + ("" if it[0]["max_mem_is_own"] is True else "*"),
            ),
            ("the run's own peak, MB", lambda it: cell(one, it[3])),
            ("predicted", lambda it: f"{it[1]['predicted_peak_mb']:,.0f}"),
            ("error %", lambda it: _error(it[1]["predicted_peak_mb"], it[3])),
        ],
        title="The runs of the logs",
        words=3,
        notes=(
            "*: the counter was never reset, and is an earlier run's (or no step ended)",
            "the run's own peak: mem_used and the highest memory_cost",
            f"memtrade run --log thesis prints {STEPS + 2} memory lines and {STEPS} steps; its "
            "max_mem is the run's own",
        ),
    )


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
