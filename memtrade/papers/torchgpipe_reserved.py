"""What torchgpipe's published bytes of U-Net and AmoebaNet-D count, beside what is predicted.

    python -m memtrade.papers.torchgpipe_reserved results/predicted

Writes torchgpipe_reserved.md and .csv into the folder. A minute; nothing is traced or run. What was
measured comes from results/pipeline/torchgpipe_at_size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from memtrade.devices import load_device
from memtrade.models import make_model
from memtrade.options import Value
from memtrade.papers.pages import save_csv, save_page, write_pages
from memtrade.papers.pipelines import published_run
from memtrade.papers.torch_allocator import MIB
from memtrade.papers.torch_pipeline import Update, reserved
from memtrade.papers.torch_tape import FLOAT, Tape, TapeOp, draw
from memtrade.pipeline.measure.protocol import PipelineMeasured
from memtrade.pipeline.measure.trial import PipelineRecord
from memtrade.pipeline.results.tables import about_notes, mib
from memtrade.results.sheets import NONE, Sheet, cell
from memtrade.results.words import status_text
from memtrade.units import megabytes

COMMAND = "python -m memtrade.papers.torchgpipe_reserved results/predicted"
CARD = "p40"
MEASURED = Path("results") / "pipeline" / "torchgpipe_at_size"


@dataclass(frozen=True)
class ReservedRow:
    """A published row as a step. `balance`: modules of each stage; none for the plain net."""

    table: str
    run: str
    model: str
    options: dict[str, Value]
    batch: int
    balance: tuple[int, ...] = ()

    @property
    def is_unet(self) -> bool:
        return self.model == "unet"

    @property
    def micro_batches(self) -> int:
        return self.batch if self.balance else 1

    @property
    def values(self) -> int:
        """Per parameter, as the benchmarks count: values, gradients, of AmoebaNet-D slots."""
        return 2 if self.is_unet else 3

    @property
    def update(self) -> Update:
        return "sgd" if self.is_unet else "rmsprop"

    def is_of(self, record: PipelineRecord) -> bool:
        given = record.trial.model_options
        return record.trial.model == self.model and self.options.items() <= given.items()

    @property
    def size(self) -> str:
        return "{} ({}, {})".format(self.model, *self.options.values())

    def tape(self) -> Tape:
        given = {"data_format": "NCHW", "batch_size": self.batch // self.micro_batches}
        modules: Literal["blocks", "layers"] = "layers" if self.is_unet else "blocks"
        return draw(make_model(self.model, self.options | given), modules)


def _unet(run: str, blocks: int, channels: int, *balance: int) -> ReservedRow:
    options: dict[str, Value] = {"num_convs": blocks, "base_channels": channels}
    return ReservedRow("torchgpipe_unet_memory", run, "unet", options, 32, balance)


def _amoebanet(run: str, layers: int, filters: int, *balance: int) -> ReservedRow:
    options: dict[str, Value] = {"layers": layers, "filters": filters}
    return ReservedRow("torchgpipe_amoebanetd_memory", run, "amoebanet-d", options, 128, balance)


# Sizes, batches and balances of benchmarks/unet-memory and benchmarks/amoebanetd-memory.
ROWS = (
    _unet("baseline", 6, 72),
    _unet("pipeline-1", 11, 128, 505),
    _unet("pipeline-2", 24, 128, 526, 551),
    _unet("pipeline-4", 24, 160, 472, 54, 36, 515),
    _unet("pipeline-8", 48, 160, 800, 140, 62, 36, 36, 36, 36, 987),
    _amoebanet("baseline", 18, 208),
    _amoebanet("pipeline-1", 18, 416, 24),
    _amoebanet("pipeline-2", 18, 544, 16, 8),
    _amoebanet("pipeline-4", 36, 544, 16, 12, 7, 7),
    _amoebanet("pipeline-8", 72, 512, 23, 16, 11, 6, 6, 5, 5, 6),
)


# What is counted, and less what: the columns of the errors.
COUNTED = [
    f"{less}_{what}_error" for less in ("total", "activation") for what in ("reserved", "in_use")
]


def figures_of(row: ReservedRow) -> dict[str, Any]:
    """Bytes on all devices, published and predicted, and predicted over published less 1; None
    where a card has no more. `kernel_bytes` are of the largest parameter; `segments`: MiB reserved
    on each device."""
    tape = row.tape()
    weights = [size for op in tape.events if isinstance(op, TapeOp) for size in op.weights]
    limit_bytes = load_device(CARD).memory_bytes
    balance = row.balance or (len(tape.ends),)
    try:
        devices = reserved(tape, balance, row.micro_batches, row.update, limit_bytes=limit_bytes)
    except MemoryError:
        devices = []
    published = published_run(row.table, row.run, row.model, "torchgpipe").total_bytes
    predicted = {
        "reserved": sum(each.most_reserved_bytes for each in devices) or None,
        "in_use": sum(each.peak_bytes for each in devices) or None,
    }
    parameter_bytes = row.values * sum(weights)
    lesses = {"total": 0, "activation": parameter_bytes}
    return {
        "family": row.model, "model": row.size, "run": row.run,
        "parameters": sum(weights) // FLOAT, "parameter_bytes": parameter_bytes,
        "kernel_bytes": max(weights), "published_bytes": published,
        **{f"predicted_{what}_bytes": size for what, size in predicted.items()},
        **{
            f"{name}_{what}_error": published and size and (size - less) / (published - less) - 1
            for name, less in lesses.items()
            for what, size in predicted.items()
        },
        "segments": [each.most_reserved_bytes // MIB for each in devices],
    }  # fmt: skip


def rows_sheet(found: Sequence[dict[str, Any]]) -> Sheet:
    def mb(name: str, *, less: bool = False) -> Callable[[dict[str, Any]], str]:
        def text(it: dict[str, Any]) -> str:
            size = it[name]
            return "OOM" if size is None else megabytes(round(size - less * it["parameter_bytes"]))

        return text

    def error(name: str) -> tuple[str, Callable[[dict[str, Any]], str]]:
        return "error %", lambda it: cell(lambda share: f"{100 * share:+.1f}", it[name])

    def missing(it: dict[str, Any]) -> str:
        published, kept = it["published_bytes"], it["predicted_reserved_bytes"]
        if published is None or kept is None:
            return NONE
        return f"{(published - kept) / len(it['segments']) / it['kernel_bytes']:+.1f}"

    return Sheet.of(
        found,
        [
            ("run", lambda it: it["run"]),
            ("model", lambda it: it["model"]),
            ("parameters", lambda it: f"{it['parameters']:,}"),
            ("total MB: published", mb("published_bytes")),
            ("reserved, predicted", mb("predicted_reserved_bytes")),
            error("total_reserved_error"),
            ("in use, predicted", mb("predicted_in_use_bytes")),
            error("total_in_use_error"),
            ("activation MB: published", mb("published_bytes", less=True)),
            ("reserved, predicted", mb("predicted_reserved_bytes", less=True)),
            error("activation_reserved_error"),
            ("error %, in use", error("activation_in_use_error")[1]),
            ("missing on a device, in largest kernels", missing),
            (
                "MiB reserved on each device, predicted",
                lambda it: " + ".join(f"{each:,}" for each in it["segments"]) or NONE,
            ),
        ],
        title="torchgpipe's memory: what is reserved on all devices",
        words=2,
        notes=(
            "reserved: PyTorch's segments; in use: most that tensors take at once",
            "activation: the total less 2 (U-Net) or 3 (AmoebaNet-D) values a parameter",
            f"a device has {load_device(CARD).memory_bytes / 1e9:g} GB; OOM: it has no more",
        ),
        command=COMMAND,
    )


def errors_sheet(frame: pd.DataFrame) -> Sheet:
    rows = []
    for model, errors in frame.groupby("family", sort=False)[COUNTED]:
        medians = errors.abs().median()
        rows.append((str(model), str(errors[COUNTED[0]].count()), *map("{:.1%}".format, medians)))
    return Sheet(
        title="Median error by what is counted",
        columns=("model", "rows", "total: reserved", "in use", "activation: reserved", "in use"),
        rows=tuple(rows),
    )


def measured_sheet(records: Sequence[PipelineRecord]) -> Sheet:
    """The published nets that were run here, stage by stage."""

    def measured(seen: PipelineMeasured) -> str:
        return " + ".join(mib(stage.peak_bytes) for stage in seen.stages)

    def predicted(record: PipelineRecord) -> str:
        stages = record.predicted.stages
        return " + ".join(mib(stage.peak_bytes, stage.bound) for stage in stages)

    ordered = sorted(records, key=lambda record: (record.model, record.predicted.parameter_bytes))
    missing = [row.size for row in ROWS if not any(row.is_of(each) for each in records)]
    return Sheet.of(
        ordered,
        [
            ("model", lambda it: it.model),
            ("parameters", lambda it: cell(lambda seen: f"{seen.parameters:,}", it.measured)),
            ("pixels", lambda it: str(it.trial.model_options["image_size"])),
            ("batch", lambda it: str(it.trial.batch_size)),
            ("K", lambda it: str(it.trial.partitions)),
            ("M", lambda it: str(it.trial.micro_batches)),
            ("status", lambda it: status_text(it.status)),
            ("MiB by stage: measured", lambda it: cell(measured, it.measured)),
            ("predicted", predicted),
            (
                "worst error %",
                lambda it: cell(
                    lambda _: f"{100 * max(it.peak_errors, key=abs):+.2f}", it.measured
                ),
            ),
        ],
        title="With their published parameters, measured here in arenas",
        weak=lambda it: it.measured is None,
        notes=(
            "images and batches are scaled down, parameters are not; peaks by each stage's own "
            "allocator, beside what was predicted of it before it ran",
            "a stage ran at a time, with zeros for what others would send, as all of them together "
            "take more than this machine has",
            *about_notes(records),
            *([f"not run: {', '.join(missing)}"] if missing else []),
        ),
        command="\n".join(dict.fromkeys(record.command for record in ordered)),
    )


def main(folder: Path) -> None:
    found = [figures_of(row) for row in ROWS]
    frame = pd.DataFrame(found).astype(dict.fromkeys(COUNTED, float))
    sheets = [errors_sheet(frame), rows_sheet(found)]
    if MEASURED.is_dir():
        sheets.append(measured_sheet(PipelineRecord.load(MEASURED)))
    save_page(folder / "torchgpipe_reserved.md", command=COMMAND, sheets=sheets)
    told = ["published_bytes", "predicted_reserved_bytes", "predicted_in_use_bytes"]
    save_csv(folder / "torchgpipe_reserved.csv", frame[["model", "run", *told]], "%.0f")


if __name__ == "__main__":
    write_pages(main, __doc__)
