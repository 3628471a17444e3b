"""Figures: one row per step, strategy and source, which the tables, plots and the report arrange.

A record gives a `measured` figure and, where it has a prediction, a `predicted` one; `published`
ones are handed in. They stand beside each other and are never mixed: each figure has one source,
and its ratios relate it to `original` of the same source and place.

`where` is empty as long as all records were measured in the same place. Where they were not, it
names what differs: the machine, the device and its limit, the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, Protocol

import pandas as pd

from memtrade.measure.host import Machine
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import Record, options_text, unusual_model_options
from memtrade.models import MODELS, options_of
from memtrade.results.machines import hardware, machine_labels
from memtrade.results.tables import strategy_label
from memtrade.strategies import STRATEGIES

Source = Literal["published", "measured", "predicted"]
SOURCES: tuple[Source, ...] = ("published", "measured", "predicted")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What one source says of one step under one strategy.

    Attributes:
        where: see above; of a published one, what published it.
        model: the display name ("resnet-50"). family: the registered one ("resnet").
        layers: the depth, or None where the model has no such option.
        strategy: the registered name. variant: with what is not the default ("lms (lb=3)").
        conditions: what else about the step is not the default.
        status: of the trial; of a prediction, whether the step fits under the limit.
        host_bytes: of host memory, without that of an idle process.
        relative_peak, relative_time: to `original` of the same source, place and step.
        jobs, original_jobs: if measured, how many trials ran at a time, this one and the original.
            Above 1 they disturbed each other's times.
        origin: the command that measured it, the device profile, or where it is published.
        note: slips of the published source.
    """

    source: Source
    where: str
    model: str
    family: str
    layers: int | None
    batch_size: int | None
    strategy: str
    variant: str
    conditions: str = ""
    status: str = "ok"
    peak_bytes: int | None = None
    host_bytes: int | None = None
    step_seconds: float | None = None
    relative_peak: float | None = None
    relative_time: float | None = None
    jobs: int = 1
    original_jobs: int = 1
    origin: str = ""
    note: str = ""

    @property
    def step(self) -> tuple[str, int | None, str]:
        """What two figures must share to be of the same training step."""
        return self.model, self.batch_size, self.conditions


def make_figures(records: Sequence[Record], published: Iterable[Figure] = ()) -> list[Figure]:
    """The figures of all records beside published ones: published, then measured, then predicted.

    Of two records of the same step, strategy and place (two versions, say), the newer one counts.
    """
    found: dict[tuple[object, ...], Figure] = {}
    for figure in published:
        found[_identity(figure)] = figure
    pairs = sorted(zip(records, places(records), strict=True), key=lambda pair: pair[0].created)
    for record, where in pairs:
        for figure in _of_record(record, where):
            found.pop(_identity(figure), None)
            found[_identity(figure)] = figure
    ordered = sorted(found.values(), key=_order)
    return _with_ratios(ordered)


def figures_frame(figures: Iterable[Figure]) -> pd.DataFrame:
    """One row per figure, units in the columns' names; what a figure does not have is missing."""
    names = [field.name for field in fields(Figure)]
    frame = pd.DataFrame([asdict(figure) for figure in figures], columns=pd.Index(names))
    integers = dict.fromkeys(("layers", "batch_size", "peak_bytes", "host_bytes"), "Int64")
    numbers = dict.fromkeys(("step_seconds", "relative_peak", "relative_time"), "Float64")
    return frame.astype(integers | numbers)


class Ran(Protocol):
    """A record of whatever ran somewhere: of a trial, or of a search for the largest batch."""

    @property
    def machine(self) -> Machine: ...
    @property
    def spec(self) -> TrialSpec: ...


def places(records: Sequence[Ran]) -> list[str]:
    """For each record, what of its machine, device and optimizer differs among them all."""
    machines = machine_labels(record.machine for record in records)
    described = [
        (
            machines[hardware(record.machine)],
            device_label(record.spec.device, record.spec.memory_limit_bytes),
            record.spec.optimizer,
        )
        for record in records
    ]
    varying = [len(set(values)) > 1 for values in zip(*described, strict=True)]
    return [
        ", ".join(text for text, varies in zip(each, varying, strict=True) if varies and text)
        for each in described
    ]


def step_conditions(spec: TrialSpec) -> str:
    """The model's options that are not the default, without depth and batch size."""
    unusual = unusual_model_options(spec)
    defaults = {each.name: each.default for each in options_of(MODELS[spec.model])}
    size = spec.model_options.get("image_size")
    if size != defaults.get("image_size"):
        unusual = {"image_size": size} | unusual
    return options_text(unusual)


def strategy_rank(name: str) -> int:
    """The position in the registry; a saved plan's own strategy comes last."""
    return list(STRATEGIES).index(name) if name in STRATEGIES else len(STRATEGIES)


def device_label(device: str, limit_bytes: int | None) -> str:
    """The device with its limit: "arena of 7,254 MiB"."""
    return f"{device} of {limit_bytes / 2**20:,.0f} MiB" if limit_bytes else device


def _of_record(record: Record, where: str) -> list[Figure]:
    spec = record.spec
    base = Figure(
        source="measured",
        where=where,
        model=record.model,
        family=spec.model,
        layers=spec.model_options.get("layers"),
        batch_size=spec.model_options.get("batch_size"),
        strategy=spec.strategy,
        variant=strategy_label(record),
        conditions=step_conditions(spec),
        status=record.status,
        jobs=record.jobs,
        origin=record.command,
    )
    figures = [base]
    if (measured := record.measured) is not None:
        figures = [
            replace(
                base,
                peak_bytes=measured.peak_bytes,
                host_bytes=measured.host_bytes,
                step_seconds=measured.median_seconds,
            )
        ]
    if (predicted := record.shown_prediction) is not None:
        afterwards = f" (after the run, by memtrade {by})" if (by := record.predicted_by) else ""
        figures.append(
            replace(
                base,
                source="predicted",
                status="ok" if predicted.fits else "out_of_memory",
                peak_bytes=predicted.peak_bytes,
                host_bytes=predicted.host_bytes,
                step_seconds=predicted.step_seconds,
                jobs=1,
                origin=f"device profile {predicted.device_profile or 'none'}{afterwards}",
            )
        )
    return figures


def _identity(figure: Figure) -> tuple[object, ...]:
    return figure.source, figure.where, figure.step, figure.variant


def _order(figure: Figure) -> tuple[object, ...]:
    return (
        SOURCES.index(figure.source),
        figure.where,
        figure.family,
        figure.layers or 0,
        figure.model,
        figure.batch_size or 0,
        figure.conditions,
        strategy_rank(figure.strategy),
        figure.variant,
    )


def _with_ratios(figures: Sequence[Figure]) -> list[Figure]:
    originals = {
        (figure.source, figure.where, figure.step): figure
        for figure in figures
        if figure.strategy == "original"
    }
    related = []
    for figure in figures:
        original = originals.get((figure.source, figure.where, figure.step))
        if original is not None:
            figure = replace(
                figure,
                relative_peak=_ratio(figure.peak_bytes, original.peak_bytes),
                relative_time=_ratio(figure.step_seconds, original.step_seconds),
                original_jobs=original.jobs,
            )
        related.append(figure)
    return related


def _ratio(value: float | None, reference: float | None) -> float | None:
    return value / reference if value is not None and reference else None
