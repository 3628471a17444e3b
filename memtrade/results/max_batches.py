"""The largest batches as a table: how far each strategy carries a step under a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memtrade.results.figures import SOURCES, Figure, Source, figures_frame
from memtrade.results.sheets import DASH, Sheet
from memtrade.results.words import joined, ratio, seconds, strategy_rank
from memtrade.units import megabytes

MAX_BATCH_SHEET = "max-batch"

_QUANTITIES: tuple[tuple[str, str, Callable[..., str]], ...] = (
    ("largest batch", "batch_size", str),
    ("relative batch", "relative_batch", ratio),
    ("peak MB", "peak_bytes", megabytes),
    ("step s", "step_seconds", seconds),
)


def max_batch_sheet(batches: Sequence[Figure], *, published_in: str = "") -> Sheet:
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
        frame=figures_frame(batches),
    )


def _rows(batches: Sequence[Figure]) -> dict[str, dict[Source, Figure]]:
    """By label; what is published stands beside each place of ours with the same strategy."""
    published = {batch.variant: batch for batch in batches if batch.source == "published"}
    rows: dict[str, dict[Source, Figure]] = {}
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


def _label(batch: Figure) -> str:
    return joined(batch.variant, batch.where)


def _cell(batch: Figure | None, attribute: str, text: Callable[..., str]) -> str:
    value = getattr(batch, attribute, None)
    return DASH if value is None else text(value)


def _notes(batches: Sequence[Figure], published_in: str) -> list[str]:
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
