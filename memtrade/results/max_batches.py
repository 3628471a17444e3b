"""The largest batches: how far each strategy carries a step under a memory limit.

Published ones stand beside our own searches, source by source, as with `figures.py`; `relative` is
to `original` of the same source and place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from memtrade.measure.max_batch_records import MaxBatchRecord
from memtrade.measure.protocol import Measured
from memtrade.measure.records import Record
from memtrade.results.figures import (
    SOURCES,
    Claim,
    Source,
    beside_published,
    figures_frame,
    ratio_of,
)
from memtrade.results.sheets import DASH, Sheet
from memtrade.results.words import (
    ratio,
    seconds,
    step_conditions,
    strategy_label,
    strategy_rank,
)
from memtrade.units import megabytes

MAX_BATCH_SHEET = "max-batch"

_QUANTITIES: tuple[tuple[str, str, Callable[..., str]], ...] = (
    ("largest batch", "batch_size", str),
    ("relative batch", "relative_batch", ratio),
    ("peak MB", "peak_bytes", megabytes),
    ("step s", "step_seconds", seconds),
)


@dataclass(frozen=True, kw_only=True)
class MaxBatch(Claim):
    """The largest batch, 0 where none runs, and the step at that batch.

    Attributes:
        bound: what is in the way of a larger one; "" where that is not told.
        relative_batch: to the largest batch of `original` of the same source and place.
    """

    batch_size: int
    bound: str = ""
    relative_batch: float | None = None

    @property
    def step(self) -> tuple[str, int | None, str]:
        return self.model, None, self.conditions

    @property
    def step_name(self) -> str:
        """The model, with what about it is not the default."""
        return ", ".join(part for part in (self.model, self.conditions) if part)

    def related_to(self, original: Any) -> Self:
        return replace(self, relative_batch=ratio_of(self.batch_size, original.batch_size))


def make_max_batches(
    searches: Sequence[MaxBatchRecord], trials: Sequence[Record], published: Iterable[MaxBatch] = ()
) -> list[MaxBatch]:
    """Published, then measured, then predicted, by model and strategy.

    `trials` has the records of the searches' trials. Of two searches for the same, the newer one
    counts.
    """
    measured = {record.id: record.measured for record in trials}

    def of_search(search: MaxBatchRecord, where: str) -> list[MaxBatch]:
        return _of_search(search, where, measured.get(search.best_trial or ""))

    return beside_published(searches, of_search, published)


def _of_search(search: MaxBatchRecord, where: str, best: Measured | None) -> list[MaxBatch]:
    spec = search.spec
    batch = MaxBatch(
        source="measured",
        where=where,
        model=search.model,
        family=spec.model,
        layers=spec.model_options.get("layers"),
        strategy=spec.strategy,
        variant=strategy_label(spec),
        batch_size=search.batch_size,
        conditions=step_conditions(spec),
        bound=search.bound,
        peak_bytes=best.peak_bytes if best else None,
        step_seconds=best.median_seconds if best else None,
        origin=search.command,
    )
    if search.predicted_batch_size is None:
        return [batch]
    foreseen = replace(
        batch,
        source="predicted",
        batch_size=search.predicted_batch_size,
        bound=search.predicted_bound or "",
        peak_bytes=None,
        step_seconds=None,
    )
    return [batch, foreseen]


def max_batch_sheet(batches: Sequence[MaxBatch], *, published_in: str = "") -> Sheet:
    """The table: a section per model, a row per strategy and place, a column per source.

    `published_in` says in a note where the published ones are from.
    """
    columns: list[tuple[str, str, Callable[..., str], Source]] = [
        (group, attribute, text, source)
        for group, attribute, text in _QUANTITIES
        for source in SOURCES
        if any(b.source == source and getattr(b, attribute) is not None for b in batches)
    ]
    models = dict.fromkeys(batch.step_name for batch in batches)
    rows, sections = [], []
    for model in models:
        own = [batch for batch in batches if batch.step_name == model]
        for label, by_source in _rows(own).items():
            cells = (_cell(by_source.get(source), name, text) for _, name, text, source in columns)
            rows.append((label, *cells))
            sections.append(model)
    only = f" of {next(iter(models))}" if len(models) == 1 else ""
    return Sheet(
        name=MAX_BATCH_SHEET,
        title=f"Largest batch{only}",
        columns=("strategy", *((group, source) for group, _, _, source in columns)),
        rows=tuple(rows),
        sections=tuple(sections) if len(models) > 1 else (),
        sectioned_by="model",
        notes=tuple(_notes(batches, published_in)),
        command="\n".join(dict.fromkeys(b.origin for b in batches if b.source == "measured")),
        expendable=("relative batch", "step s"),
        frame=figures_frame(batches, MaxBatch),
    )


def _rows(batches: Sequence[MaxBatch]) -> dict[str, dict[Source, MaxBatch]]:
    """By label; what is published stands beside each place of ours with the same strategy."""
    published = {batch.variant: batch for batch in batches if batch.source == "published"}
    rows: dict[str, dict[Source, MaxBatch]] = {}
    for batch in sorted(batches, key=lambda b: (strategy_rank(b.strategy), b.variant, b.where)):
        if batch.source == "published":
            if all(b.source == "published" for b in batches if b.variant == batch.variant):
                rows[batch.variant] = {"published": batch}
            continue
        row = rows.setdefault(_label(batch), {})
        row[batch.source] = batch
        if batch.variant in published:
            row["published"] = published[batch.variant]
    return rows


def _label(batch: MaxBatch) -> str:
    return ", ".join(part for part in (batch.variant, batch.where) if part)


def _cell(batch: MaxBatch | None, attribute: str, text: Callable[..., str]) -> str:
    if batch is None:
        return DASH
    value = getattr(batch, attribute)
    return DASH if value is None else text(value)


def _notes(batches: Sequence[MaxBatch], published_in: str) -> list[str]:
    notes = []
    sources = {batch.source for batch in batches}
    if "published" in sources and published_in:
        notes.append(f"published: {published_in}")
    if "measured" in sources:
        notes.append("measured: the largest that ran, by trials")
    if "predicted" in sources:
        notes.append("predicted: by the simulator, before the trials")
    bounds: dict[str, list[str]] = {}
    for batch in batches:
        if batch.source == "measured" and batch.bound:
            bounds.setdefault(batch.bound, []).append(_label(batch))
    if len(bounds) > 1 or (bounds and "device memory" not in bounds):
        notes += [f"bound by {bound}: {', '.join(labels)}" for bound, labels in bounds.items()]
    notes.append("peak and step time at that batch; relative: to original of the same source")
    return notes
