"""Published pipelines beside our predictions of them: every row, misses included.

A TOML file says which step each published row was (`memtrade/sweeps/published_pipelines.toml`); the
figures come from `published/`. The rates of a comparison's device are fitted once, to the rows that
say `calibrate` (`fit.py`). Of those rows' speed nothing is predicted, so they are marked.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pandas as pd

from memtrade.devices import Device
from memtrade.errors import MemtradeError, UnknownNameError, reason_of
from memtrade.graph import StepGraph
from memtrade.options import Value
from memtrade.papers.fit import fit_ratios
from memtrade.papers.fused import Fusion, fused_kernels
from memtrade.papers.published import published_lines
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.predict import (
    Hosts,
    Kernels,
    PipelinePrediction,
    PipelinePredictor,
    own_kernels,
)
from memtrade.pipeline.design.schedule import CheckpointMode, make_schedule
from memtrade.target import Target

SLACK = 0.1
# Where the search for `dispatch` begins at the earliest.
SMALLEST_SECONDS = 1e-7

# Traces a model: (family, options with the batch size, optimizer) -> the step's graph.
Tracer = Callable[[str, dict[str, Value], str], StepGraph]


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published row as a step of ours. `run` is the row's name in the table `published`;
    `also_by` are other implementations whose figures of the same run the table has, too.
    """

    published: str
    run: str
    model: str
    options: dict[str, Value] = {}
    optimizer: str
    partitions: int
    micro_batches: int
    micro_batch_size: int
    checkpoint: CheckpointMode
    calibrate: bool = False
    implementation: str = "torchgpipe"
    also_by: list[str] = []


class Grid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rows of a published table that gives its settings itself."""

    published: Literal["gpipe_gpt2_runs"]
    model: str
    options: dict[str, Value] = {}
    optimizer: str
    calibrate: list[str] = []


class PublishedPipelines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of predictions beside published figures; see the TOML file for the fields."""

    name: str
    device: str
    hosts: Hosts
    balance: Literal["time", "memory"]
    fit: list[Literal["compute", "memory", "dispatch"]] = []
    relative: Literal["fused_activation_bytes", "samples_per_second"] | None = None
    notes: list[str] = []
    grid: Grid | None = None
    rows: list[PublishedRow] = msgspec.field(default_factory=list, name="row")

    def all_rows(self) -> list[PublishedRow]:
        found = [
            msgspec.structs.replace(row, implementation=by, also_by=[])
            for row in self.rows
            for by in (row.implementation, *row.also_by)
        ]
        if self.grid is not None:
            found += _rows_of_grid(self.grid)
        return found


class Figures(NamedTuple):
    """What a table says of one row; None where it does not. `relative` is a ratio that the source
    prints itself.
    """

    parameter_bytes: float | None = None
    activation_bytes: float | None = None
    total_bytes: float | None = None
    samples_per_second: float | None = None
    relative: float | None = None


class Compared(NamedTuple):
    """A comparison's outcome. `fitted`: the device with other rates; None where nothing was
    calibrated."""

    comparison: PublishedPipelines
    device: Device
    frame: pd.DataFrame
    fitted: Device | None


def load_comparison(path: Path, name: str) -> PublishedPipelines:
    """The comparison of that name in a TOML file.

    Raises:
        UnknownNameError: the file has no such comparison.
        MemtradeError: it cannot be read; the message names the field.
    """
    try:
        read = msgspec.toml.decode(path.read_bytes(), type=dict[str, list[PublishedPipelines]])
    except (OSError, ValueError) as error:  # no UTF-8, no TOML, or no comparisons
        raise MemtradeError(f"cannot read comparisons from {path}: {reason_of(error)}") from error
    found = {each.name: each for each in read.get("comparison", ())}
    if name not in found:
        raise UnknownNameError("comparison", name, found)
    return found[name]


def compare_published(comparison: PublishedPipelines, target: Target, trace: Tracer) -> Compared:
    """Predicts each row, and puts what was published beside it.

    Args:
        target: the comparison's, with the rates before they are fitted.
        trace: asked once for each model and micro-batch size.
    """
    rows = comparison.all_rows()
    oracle = _Oracle(comparison, target, trace)
    published = [figures_of(row) for row in rows]
    fitted = _calibrate(oracle, rows, published)
    if fitted is not None:
        oracle.set_device(fitted)
    lines = [
        _line(row, figures, oracle.predict(row, own_kernels), oracle.predict(row, fused_kernels))
        for row, figures in zip(rows, published, strict=True)
    ]
    frame = with_relative(pd.DataFrame(lines), comparison.relative)
    return Compared(comparison, target.device, frame, fitted)


class _Oracle:
    """Predicts rows; graphs, partitions and stages are made once for all rows that share them."""

    def __init__(self, comparison: PublishedPipelines, target: Target, trace: Tracer):
        self.comparison, self.target, self.trace = comparison, target, trace
        self.device = target.device
        self.graphs: dict[str, StepGraph] = {}
        self.predictors: dict[tuple[str, int, Kernels], PipelinePredictor] = {}

    def set_device(self, device: Device) -> None:
        """Other rates; partitions are made with those given at first."""
        self.device = device
        for predictor in self.predictors.values():
            predictor.set_device(device)

    def predict(self, row: PublishedRow, kernels: Kernels) -> PipelinePrediction:
        schedule = make_schedule(
            "gpipe",
            stages=row.partitions,
            micro_batches=row.micro_batches,
            checkpoint=row.checkpoint,
        )
        return self._predictor(row, kernels).predict(
            schedule, micro_batch_size=row.micro_batch_size, hosts=self.comparison.hosts
        )

    def _predictor(self, row: PublishedRow, kernels: Kernels) -> PipelinePredictor:
        options = row.options | {"batch_size": row.micro_batch_size}
        step = repr((row.model, sorted(options.items()), row.optimizer))
        key = (step, row.partitions, kernels)
        if key not in self.predictors:
            if step not in self.graphs:
                self.graphs[step] = self.trace(row.model, options, row.optimizer)
            graph = self.graphs[step]
            partitioner = Partitioner(graph)
            if self.comparison.balance == "memory":
                partition = partitioner.by_memory(row.partitions, slack=SLACK)
            else:
                partition = partitioner.by_time(
                    row.partitions, self.target, slack=SLACK, costs=Fusion(graph).costs
                )
            made = PipelinePredictor(graph, partition, self.target, kernels=kernels)
            made.set_device(self.device)
            self.predictors[key] = made
        return self.predictors[key]


def _calibrate(
    oracle: _Oracle, rows: list[PublishedRow], published: list[Figures]
) -> Device | None:
    """The device with rates fitted to the throughputs of the rows that say so."""
    chosen = [
        (row, figures.samples_per_second)
        for row, figures in zip(rows, published, strict=True)
        if row.calibrate and figures.samples_per_second
    ]
    if not chosen:
        return None

    def ratios(candidate: Device) -> tuple[float, ...]:
        oracle.set_device(candidate)
        return tuple(
            oracle.predict(row, fused_kernels).samples_per_second / speed for row, speed in chosen
        )

    device = oracle.target.device
    dispatch = math.log(max(device.dispatch_seconds, SMALLEST_SECONDS))
    start = {name: dispatch if name == "dispatch" else 0.0 for name in oracle.comparison.fit}
    return fit_ratios(device, ratios, start, pairs=False)


def checkpoint_of(implementation: str, strategy: str) -> CheckpointMode:
    """What a run of the GPT-2 logs recomputes: torchgpipe all but the last micro-batch."""
    if strategy != "checkpoints":
        return "never"
    return "except_last" if implementation == "torchgpipe" else "always"


def _rows_of_grid(grid: Grid) -> list[PublishedRow]:
    """The rows of the GPT-2 logs."""
    shared = ("run", "partitions", "micro_batches", "implementation")
    return [
        PublishedRow(
            published=grid.published,
            model=grid.model,
            options=grid.options,
            optimizer=grid.optimizer,
            micro_batch_size=line["batch_size"] // line["micro_batches"],
            checkpoint=checkpoint_of(line["implementation"], line["strategy"]),
            calibrate=line["run"] in grid.calibrate,
            **{name: line[name] for name in shared},
        )
        for line in published_lines(grid.published)
    ]


def figures_of(row: PublishedRow) -> Figures:
    """What the table says of the row."""
    return published_run(row.published, row.run, row.model, row.implementation)


def published_run(published: str, run: str, model: str, implementation: str) -> Figures:
    """What a published table says of one run of one of our models.

    Raises MemtradeError where the table has no such row, or is none that can be read here.
    """
    if published not in _READERS:
        raise MemtradeError(
            f"rows of the published table {published!r} cannot be compared: "
            f"those of {', '.join(_READERS)} can"
        )
    column, read = _READERS[published]
    wanted = {column: run, "implementation": implementation, "model": _SOURCES[model]}
    found = [
        line
        for line in published_lines(published)
        if all(line.get(key, value) == value for key, value in wanted.items())
    ]
    if len(found) != 1:
        raise MemtradeError(
            f"{published}.csv has {len(found)} rows {run!r} of {model} by {implementation}: "
            "name one"
        )
    return read(found[0])


def _amoebanet(line: dict[Any, Any]) -> Figures:
    model, activations = line["model_memory_mb"] * 1e6, line["peak_activation_mb"]
    if activations is None:
        return Figures(parameter_bytes=model)
    return Figures(model, activations * 1e6, model + activations * 1e6)


# For each table, the column that names its rows, and what reads one.
_READERS: dict[str, tuple[str, Callable[[dict[Any, Any]], Figures]]] = {
    "gpipe_gpt2_runs": (
        "run",
        lambda line: Figures(
            line["parameter_bytes"],
            line["peak_activation_bytes"],
            line["total_bytes"],
            line["samples_per_second"],
        ),
    ),
    "torchgpipe_unet_memory": (
        "experiment",
        lambda line: Figures(total_bytes=line["memory_mb"] * 1e6),
    ),
    "torchgpipe_amoebanetd_memory": ("experiment", _amoebanet),
    "torchgpipe_speed": (
        "experiment",
        lambda line: Figures(
            samples_per_second=line["samples_per_second"], relative=line["speedup"]
        ),
    ),
}
# What the tables call our models.
_SOURCES = {"amoebanet-d": "amoebanetd", "gpt2": "gpt2", "resnet": "resnet", "unet": "unet"}


def _line(
    row: PublishedRow, published: Figures, ops: PipelinePrediction, fused: PipelinePrediction
) -> dict[str, Any]:
    """Throughput is that of fused kernels: the published steps are not TensorFlow's."""
    line: dict[str, Any] = {
        "published_table": row.published,
        "run": row.run,
        "implementation": row.implementation,
        "model": row.model,
        "size": " ".join(f"{key}={value}" for key, value in row.options.items()),
        "partitions": row.partitions,
        "micro_batches": row.micro_batches,
        "micro_batch_size": row.micro_batch_size,
        "checkpoint": row.checkpoint,
        "calibrated": row.calibrate,
        "printed_relative": published.relative,
    }
    predicted = {
        "parameter_bytes": (published.parameter_bytes, ops.parameter_bytes),
        "activation_bytes": (published.activation_bytes, ops.activation_bytes),
        "fused_activation_bytes": (published.activation_bytes, fused.activation_bytes),
        "total_bytes": (published.total_bytes, ops.peak_bytes),
        "fused_total_bytes": (published.total_bytes, fused.peak_bytes),
        "samples_per_second": (published.samples_per_second, fused.samples_per_second),
    }
    for name, (theirs, ours) in predicted.items():
        line[f"published_{name}"] = theirs
        line[f"predicted_{name}"] = ours
        line[f"{name}_error"] = None if theirs is None else ours / theirs - 1
    line["predicted_bubble"] = fused.timing.bubble
    return line


def with_relative(frame: pd.DataFrame, name: str | None) -> pd.DataFrame:
    """With both sides' figures over those of the first row of the same step: published ones over
    the same implementation's, unless the source prints nothing but the ratio.
    """
    printed = frame.pop("printed_relative")
    if name is not None:
        step = ["published_table", "model", "size"]
        for side, keys in (("published", [*step, "implementation"]), ("predicted", step)):
            column = f"{side}_{name}"
            related = frame[column] / frame.groupby(keys)[column].transform("first")
            frame[f"{side}_relative_{name}"] = related.fillna(printed)
    return frame
