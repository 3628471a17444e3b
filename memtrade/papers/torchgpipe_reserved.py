"""What torchgpipe's published bytes of U-Net and AmoebaNet-D count, beside what is predicted.

    python -m memtrade.papers.torchgpipe_reserved results/predicted

Writes torchgpipe_reserved.md and .csv into the folder. A minute; nothing is traced or run. What was
measured comes from results/pipeline/torchgpipe_at_size.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from memtrade.devices import load_device
from memtrade.models import make_model
from memtrade.options import Value
from memtrade.papers.pages import save_csv, save_page, write_pages
from memtrade.papers.pipelines import published_run
from memtrade.papers.torch_allocator import MIB, CachingAllocator
from memtrade.papers.torch_pipeline import Update, reserved
from memtrade.papers.torch_tape import FLOAT, Tape, TapeOp, draw
from memtrade.pipeline.design.predict import StageMemory
from memtrade.pipeline.measure.protocol import StageMeasured
from memtrade.pipeline.measure.trial import PipelineRecord
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


@dataclass(frozen=True)
class ReservedFigures:
    """`kernel_bytes`: of the largest parameter. `published_bytes` and `devices` are None where a
    card has no more."""

    row: ReservedRow
    parameters: int
    kernel_bytes: int
    published_bytes: float | None
    devices: list[CachingAllocator] | None

    @property
    def parameter_bytes(self) -> int:
        return FLOAT * self.row.values * self.parameters

    @property
    def reserved_bytes(self) -> int | None:
        devices = self.devices
        return None if devices is None else sum(each.most_reserved_bytes for each in devices)

    @property
    def in_use_bytes(self) -> int | None:
        devices = self.devices
        return None if devices is None else sum(each.peak_bytes for each in devices)

    def total_error(self, predicted: int | None) -> float | None:
        return self._error(predicted, 0)

    def activation_error(self, predicted: int | None) -> float | None:
        return self._error(predicted, self.parameter_bytes)

    def _error(self, predicted: int | None, less_bytes: int) -> float | None:
        if predicted is None or self.published_bytes is None:
            return None
        return (predicted - less_bytes) / (self.published_bytes - less_bytes) - 1


def figures_of(row: ReservedRow) -> ReservedFigures:
    tape = row.tape()
    weights = [size for op in tape.events if isinstance(op, TapeOp) for size in op.weights]
    limit_bytes = load_device(CARD).memory_bytes
    balance = row.balance or (len(tape.ends),)
    try:
        devices = reserved(tape, balance, row.micro_batches, row.update, limit_bytes=limit_bytes)
    except MemoryError:
        devices = None
    published_bytes = published_run(row.table, row.run, row.model, "torchgpipe").total_bytes
    return ReservedFigures(row, sum(weights) // FLOAT, max(weights), published_bytes, devices)


def rows_sheet(found: Sequence[ReservedFigures]) -> Sheet:
    return Sheet(
        title="torchgpipe's memory: what is reserved on all devices",
        columns=(
            "run", "model", "parameters",
            "total MB: published", "reserved, predicted", "error %", "in use, predicted", "error %",
            "activation MB: published", "reserved, predicted", "error %", "error %, in use",
            "missing on a device, in largest kernels", "MiB reserved on each device, predicted",
        ),
        words=2,
        rows=tuple(_cells(each) for each in found),
        notes=(
            "reserved: PyTorch's segments; in use: most that tensors take at once",
            "activation: the total less 2 (U-Net) or 3 (AmoebaNet-D) values a parameter",
            f"a device has {load_device(CARD).memory_bytes / 1e9:g} GB; OOM: it has no more",
        ),
        command=COMMAND,
    )  # fmt: skip


def _cells(each: ReservedFigures) -> tuple[str, ...]:
    def mb(value: float | None) -> str:
        return "OOM" if value is None else megabytes(round(value))

    def less(value: float | None) -> float | None:
        return None if value is None else value - each.parameter_bytes

    def percent(error: float | None) -> str:
        return NONE if error is None else f"{100 * error:+.1f}"

    published, kept, used = each.published_bytes, each.reserved_bytes, each.in_use_bytes
    devices = each.devices or []
    missing = None if published is None or kept is None else published - kept
    return (
        each.row.run,
        each.row.size,
        f"{each.parameters:,}",
        mb(published),
        mb(kept),
        percent(each.total_error(kept)),
        mb(used),
        percent(each.total_error(used)),
        mb(less(published)),
        mb(less(kept)),
        percent(each.activation_error(kept)),
        percent(each.activation_error(used)),
        NONE if missing is None else f"{missing / len(devices) / each.kernel_bytes:+.1f}",
        " + ".join(f"{device.most_reserved_bytes // MIB:,}" for device in devices) or NONE,
    )


def errors_sheet(found: Sequence[ReservedFigures]) -> Sheet:
    rows = []
    for model in dict.fromkeys(each.row.model for each in found):
        own = [each for each in found if each.row.model == model]
        errors = (
            [each.total_error(each.reserved_bytes) for each in own],
            [each.total_error(each.in_use_bytes) for each in own],
            [each.activation_error(each.reserved_bytes) for each in own],
            [each.activation_error(each.in_use_bytes) for each in own],
        )
        sizes = [[abs(error) for error in each if error is not None] for each in errors]
        rows.append(
            (model, str(len(sizes[0])), *(f"{statistics.median(each):.1%}" for each in sizes))
        )
    return Sheet(
        title="Median error by what is counted",
        columns=("model", "rows", "total: reserved", "in use", "activation: reserved", "in use"),
        rows=tuple(rows),
    )


def measured_sheet(records: Sequence[PipelineRecord]) -> Sheet:
    """The published nets that were run here, stage by stage."""

    def stages(of: Sequence[StageMeasured] | Sequence[StageMemory]) -> str:
        return " + ".join(f"{each.peak_bytes / MIB:,.1f}" for each in of)

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
            ("MiB by stage: measured", lambda it: cell(lambda m: stages(m.stages), it.measured)),
            ("predicted", lambda it: stages(it.predicted.stages)),
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
            *([f"not run: {', '.join(missing)}"] if missing else []),
        ),
        command="\n".join(dict.fromkeys(record.command for record in ordered)),
    )


def main(folder: Path) -> None:
    found = [figures_of(row) for row in ROWS]
    sheets = [errors_sheet(found), rows_sheet(found)]
    if MEASURED.is_dir():
        sheets.append(measured_sheet(PipelineRecord.load(MEASURED)))
    save_page(folder / "torchgpipe_reserved.md", command=COMMAND, sheets=sheets)
    frame = pd.DataFrame(
        {
            "model": [each.row.size for each in found],
            "run": [each.row.run for each in found],
            "published_bytes": [each.published_bytes for each in found],
            "predicted_reserved_bytes": [each.reserved_bytes for each in found],
            "predicted_in_use_bytes": [each.in_use_bytes for each in found],
        }
    )
    save_csv(folder / "torchgpipe_reserved.csv", frame, "%.0f")


if __name__ == "__main__":
    write_pages(main, __doc__)
