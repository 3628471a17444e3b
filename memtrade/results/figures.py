"""Figures: one row per step, strategy and source, which the tables, plots and the report arrange.

A record gives a `measured` figure and, where it has a prediction, a `predicted` one; `published`
ones are handed in. They stand beside each other and are never mixed: each figure has one source,
and its ratios relate it to `original` of the same source and place. A search for the largest batch
gives figures likewise.

`where` is empty as long as all records were measured in the same place. Where they were not, it
names what differs: the machine, the device and its limit, the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import pandas as pd

from memtrade.measure.max_batch import MaxBatchRecord
from memtrade.measure.protocol import Measured
from memtrade.measure.records import Record
from memtrade.results.machines import hardware, machine_labels
from memtrade.results.words import (
    device_label,
    joined,
    optimizer_text,
    step_conditions,
    strategy_label,
    strategy_rank,
)

Source = Literal["published", "measured", "predicted"]
SOURCES: tuple[Source, ...] = ("published", "measured", "predicted")
Ran = Record | MaxBatchRecord


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What one source says of one model under one strategy: what a step took or takes, or how far
    a search came.

    Attributes:
        where: see above; of a published one, what published it.
        model: the display name ("resnet-50"). family: the registered one ("resnet").
        layers: the depth, or None where the model has no such option.
        batch_size: of a search, the largest that runs, 0 where none does.
        strategy: the registered name. variant: with what is not the default ("lms (lb=3)").
        conditions: what else about the step is not the default.
        origin: the command that measured it, the device profile, or where it is published.
        note: slips of the published source.
        status: of the trial; of a prediction, whether the step fits under the limit.
        host_bytes: of host memory, without that of an idle process.
        relative_peak, relative_time, relative_batch: to `original` of the same source, place and
            step.
        jobs, original_jobs: if measured, how many trials ran at a time, this one and the original.
            Above 1 they disturbed each other's times.
        searched: whether it is a search's; then `bound` is in the way of a larger batch.
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
    status: str = "ok"
    host_bytes: int | None = None
    relative_peak: float | None = None
    relative_time: float | None = None
    jobs: int = 1
    original_jobs: int = 1
    bound: str = ""
    relative_batch: float | None = None
    searched: bool = False

    @property
    def step(self) -> tuple[str, int | None, str]:
        """What two of them must share to be of the same training step."""
        return self.model, None if self.searched else self.batch_size, self.conditions

    @property
    def step_name(self) -> str:
        """As people name it: "resnet-50, batch 32"."""
        _, batch, _ = self.step
        return joined(self.model, f"batch {batch}" if batch else "", self.conditions)

    def related_to(self, original: Figure) -> Figure:
        """The same with its ratios to the original of the same source, place and step."""
        if self.searched:
            return replace(self, relative_batch=_over(self.batch_size, original.batch_size))
        return replace(
            self,
            relative_peak=_over(self.peak_bytes, original.peak_bytes),
            relative_time=_over(self.step_seconds, original.step_seconds),
            original_jobs=original.jobs,
        )


# What only a search has, and only a step.
_OF_SEARCHES = ("bound", "relative_batch")
_OF_STEPS = ("status", "host_bytes", "relative_peak", "relative_time", "jobs", "original_jobs")
_TYPES = dict.fromkeys(("layers", "batch_size", "peak_bytes", "host_bytes"), "Int64") | (
    dict.fromkeys(("step_seconds", "relative_peak", "relative_time", "relative_batch"), "Float64")
)


def make_figures(records: Sequence[Record], published: Iterable[Figure] = ()) -> list[Figure]:
    """The figures of all records beside published ones: published, then measured, then predicted.

    Of two records of the same step, strategy and place (two versions, say), the newer one counts.
    """
    return _beside(published, records, _of_record)


def make_max_batches(
    searches: Sequence[MaxBatchRecord], trials: Sequence[Record], published: Iterable[Figure] = ()
) -> list[Figure]:
    """The same of searches; `trials` has the records of theirs."""
    measured = {record.id: record.measured for record in trials}
    return _beside(
        published,
        searches,
        lambda search, where: _of_search(search, where, measured.get(search.best_trial or "")),
    )


def by_variant(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    """What stands in one section, by its title: a variant of a strategy in one place.

    The published figures stand beside each place of ours that has the same strategy.
    """
    ordered = sorted(figures, key=lambda f: (strategy_rank(f.strategy), f.variant))
    sections = {}
    for variant in dict.fromkeys(figure.variant for figure in ordered):
        published = [f for f in figures if f.variant == variant and f.source == "published"]
        ours = [f for f in figures if f.variant == variant and f.source != "published"]
        for where in dict.fromkeys(figure.where for figure in ours) or [""]:
            sections[joined(variant, where)] = published + [f for f in ours if f.where == where]
    return sections


def figures_frame(found: Sequence[Figure]) -> pd.DataFrame:
    """One row each, units in the columns' names; what there is not is missing."""
    searched = any(each.searched for each in found)
    left_out = ("searched", *(_OF_STEPS if searched else _OF_SEARCHES))
    names = [each.name for each in fields(Figure) if each.name not in left_out]
    frame = pd.DataFrame([asdict(each) for each in found], columns=pd.Index(names))
    return frame.astype({name: kind for name, kind in _TYPES.items() if name in frame})


def places(records: Sequence[Ran], *, optimizer: bool = True) -> list[str]:
    """For each record, what of its machine, device and `optimizer` differs among them all."""
    machines = machine_labels(record.machine for record in records)
    described = [
        (
            machines[hardware(record.machine)],
            device_label(record.spec.device, record.spec.memory_limit_bytes),
            optimizer_text(record.spec) if optimizer else "",
        )
        for record in records
    ]
    varying = [len(set(values)) > 1 for values in zip(*described, strict=True)]
    return [
        joined(*(text for text, varies in zip(each, varying, strict=True) if varies))
        for each in described
    ]


def _beside(
    published: Iterable[Figure],
    records: Sequence[Any],
    of_record: Callable[[Any, str], list[Figure]],
) -> list[Figure]:
    """What `of_record` says of each record and its place, beside what is published, in order and
    with ratios. Of two that say the same thing, that of the newer record counts."""
    found = {(*_place(each), each.variant): each for each in published}
    pairs = sorted(zip(records, places(records), strict=True), key=lambda pair: pair[0].created)
    for record, where in pairs:
        found |= {(*_place(each), each.variant): each for each in of_record(record, where)}
    originals = {_place(each): each for each in found.values() if each.strategy == "original"}
    return [
        each.related_to(originals[_place(each)]) if _place(each) in originals else each
        for each in sorted(found.values(), key=_rank)
    ]


def _of_record(record: Record, where: str) -> list[Figure]:
    base = replace(_base(record, where), status=record.status, jobs=record.jobs)
    figures = [replace(base, **_took(record.measured))]
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


def _of_search(search: MaxBatchRecord, where: str, best: Measured | None) -> list[Figure]:
    """What was predicted is the batch alone: nothing was of the peak and time of that step."""
    base = replace(_base(search, where), batch_size=search.batch_size, searched=True)
    figures = [replace(base, bound=search.bound, **_took(best))]
    if (batch := search.predicted_batch_size) is not None:
        bound = search.predicted_bound or ""
        figures.append(replace(base, source="predicted", batch_size=batch, bound=bound))
    return figures


def _base(record: Ran, where: str) -> Figure:
    spec = record.spec
    return Figure(
        source="measured",
        where=where,
        model=record.model,
        family=spec.model,
        layers=spec.model_options.get("layers"),
        batch_size=spec.model_options.get("batch_size"),
        strategy=spec.strategy,
        variant=strategy_label(spec),
        conditions=step_conditions(spec),
        origin=record.command,
    )


def _took(measured: Measured | None) -> dict[str, Any]:
    """What a trial took, if it came so far, as a figure has it."""
    return (
        {}
        if measured is None
        else {
            "peak_bytes": measured.peak_bytes,
            "host_bytes": measured.host_bytes,
            "step_seconds": measured.median_seconds,
        }
    )


def _place(found: Figure) -> tuple[object, ...]:
    return found.source, found.where, found.step


def _rank(found: Figure) -> tuple[object, ...]:
    """Where it stands among others: by source, place, model and strategy."""
    model, batch, conditions = found.step
    return (
        *(SOURCES.index(found.source), found.where, found.family, found.layers or 0),
        *(model, batch or 0, conditions, strategy_rank(found.strategy), found.variant),
    )


def _over(value: float | None, reference: float | None) -> float | None:
    """None where one of them is not there, or the reference is nothing."""
    return value / reference if value is not None and reference else None
