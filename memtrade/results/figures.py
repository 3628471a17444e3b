"""Figures: one row per step, strategy and source, which the tables, plots and the report arrange.

A record gives a `measured` figure and, where it has a prediction, a `predicted` one; `published`
ones are handed in. They stand beside each other and are never mixed: each figure has one source,
and its ratios relate it to `original` of the same source and place.

`where` is empty as long as all records were measured in the same place. Where they were not, it
names what differs: the machine, the device and its limit, the optimizer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Protocol, Self, TypeVar

import pandas as pd

from memtrade.measure.host import Machine
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import Record
from memtrade.results.machines import hardware, machine_labels
from memtrade.results.words import device_label, step_conditions, strategy_label, strategy_rank

Source = Literal["published", "measured", "predicted"]
SOURCES: tuple[Source, ...] = ("published", "measured", "predicted")


@dataclass(frozen=True, kw_only=True)
class Claim(ABC):
    """What one source says of one model under one strategy.

    Attributes:
        where: see above; of a published one, what published it.
        model: the display name ("resnet-50"). family: the registered one ("resnet").
        layers: the depth, or None where the model has no such option.
        strategy: the registered name. variant: with what is not the default ("lms (lb=3)").
        conditions: what else about the step is not the default.
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
    peak_bytes: int | None = None
    step_seconds: float | None = None
    origin: str = ""
    note: str = ""

    @property
    def step(self) -> tuple[str, int | None, str]:
        """What two of them must share to be of the same training step."""
        return self.model, self.batch_size, self.conditions

    @property
    def order(self) -> tuple[object, ...]:
        """Where it stands among others: by source, place, model and strategy."""
        return (
            *(SOURCES.index(self.source), self.where, self.family, self.layers or 0),
            *(self.step[0], self.step[1] or 0, self.step[2]),
            *(strategy_rank(self.strategy), self.variant),
        )

    @abstractmethod
    def related_to(self, original: Any) -> Self:
        """The same with its ratios to the original of the same source, place and step."""


@dataclass(frozen=True, kw_only=True)
class Figure(Claim):
    """A step: what it took or takes.

    Attributes:
        status: of the trial; of a prediction, whether the step fits under the limit.
        host_bytes: of host memory, without that of an idle process.
        relative_peak, relative_time: to `original` of the same source, place and step.
        jobs, original_jobs: if measured, how many trials ran at a time, this one and the original.
            Above 1 they disturbed each other's times.
    """

    status: str = "ok"
    host_bytes: int | None = None
    relative_peak: float | None = None
    relative_time: float | None = None
    jobs: int = 1
    original_jobs: int = 1

    def related_to(self, original: Any) -> Self:
        return replace(
            self,
            relative_peak=ratio_of(self.peak_bytes, original.peak_bytes),
            relative_time=ratio_of(self.step_seconds, original.step_seconds),
            original_jobs=original.jobs,
        )


AnyClaim = TypeVar("AnyClaim", bound=Claim)
AnyRan = TypeVar("AnyRan", bound="Ran")


def make_figures(records: Sequence[Record], published: Iterable[Figure] = ()) -> list[Figure]:
    """The figures of all records beside published ones: published, then measured, then predicted.

    Of two records of the same step, strategy and place (two versions, say), the newer one counts.
    """
    return beside_published(records, _of_record, published)


def beside_published(
    records: Sequence[AnyRan],
    of_record: Callable[[AnyRan, str], Iterable[AnyClaim]],
    published: Iterable[AnyClaim],
) -> list[AnyClaim]:
    """What `of_record` says of each record and its place, beside what is published, in order and
    with ratios. Of two that say the same thing, that of the newer record counts."""
    found = {_identity(each): each for each in published}
    pairs = sorted(zip(records, places(records), strict=True), key=lambda pair: pair[0].created)
    for record, where in pairs:
        for each in of_record(record, where):
            found[_identity(each)] = each
    originals = {_place(each): each for each in found.values() if each.strategy == "original"}
    return [
        each.related_to(originals[_place(each)]) if _place(each) in originals else each
        for each in sorted(found.values(), key=lambda each: each.order)
    ]


def figures_frame(found: Iterable[Claim], kind: type[Claim] = Figure) -> pd.DataFrame:
    """One row each, units in the columns' names; what there is not is missing."""
    names = [field.name for field in fields(kind)]
    frame = pd.DataFrame([asdict(each) for each in found], columns=pd.Index(names))
    integers = dict.fromkeys(("layers", "batch_size", "peak_bytes", "host_bytes"), "Int64")
    ratios = ("relative_peak", "relative_time", "relative_batch")
    numbers = dict.fromkeys(("step_seconds", *ratios), "Float64")
    types = {name: dtype for name, dtype in (integers | numbers).items() if name in names}
    return frame.astype(types)


class Ran(Protocol):
    """A record of whatever ran somewhere: of a trial, or of a search for the largest batch."""

    @property
    def created(self) -> str: ...
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
        variant=strategy_label(record.spec),
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


def _place(found: Claim) -> tuple[object, ...]:
    return found.source, found.where, found.step


def _identity(found: Claim) -> tuple[object, ...]:
    return *_place(found), found.variant


def ratio_of(value: float | None, reference: float | None) -> float | None:
    """None where one of them is not there, or the reference is nothing."""
    return value / reference if value is not None and reference else None
