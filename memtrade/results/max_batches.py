"""The largest batches: how far each strategy carries a step under a memory limit, as the thesis
tables it, and searches on one step, a row each."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from memtrade.measure.max_batch import MaxBatchRecord
from memtrade.measure.protocol import Measured
from memtrade.measure.records import Record
from memtrade.results.figures import SOURCES, Figure, Source, by_variant, figures_frame
from memtrade.results.sheets import DASH, Sheet, cell
from memtrade.results.words import device_label, joined, ratio, seconds, step_text, strategy_label
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
        for label, members in by_variant(own).items():
            by_source = {batch.source: batch for batch in members}
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
            bounds.setdefault(batch.bound, []).append(joined(batch.variant, batch.where))
    if len(bounds) > 1 or (bounds and "device memory" not in bounds):
        notes += [f"bound by {bound}: {', '.join(labels)}" for bound, labels in bounds.items()]
    notes.append("peak and step time at that batch; relative: to original of the same source")
    return notes


SearchAndBest = tuple[MaxBatchRecord, Measured | None]


def searches_sheet(searches: Sequence[MaxBatchRecord], trials: Sequence[Record]) -> Sheet:
    """Searches on one step and device, side by side. `trials` holds the records of their trials."""
    measured = {record.id: record.measured for record in trials}
    found: list[SearchAndBest] = [(each, measured.get(each.best_trial or "")) for each in searches]
    original = next((s.batch_size for s in searches if s.spec.strategy == "original"), 0)
    first = searches[0]
    notes = [
        "largest batch and fails at: by trials"
        + (f", multiples of {first.step}" if first.step > 1 else "")
        + "; predicted batch: by the simulator, before them; peak MB, host MB, step s, examples/s: "
        "measured at the largest batch",
        f"{first.machine.cpu_model}, {first.machine.cores} cores, "
        f"TensorFlow {first.machine.tensorflow_version}",
        *(
            f"{strategy_label(s.spec)} at {s.failing_batch_size}: {s.bound}: "
            + " ".join(s.reason.split())
            for s in searches
            if s.failing_batch_size is not None and s.bound != "device memory"
        ),
    ]
    return Sheet.of(
        found,
        [
            ("strategy", lambda it: strategy_label(it[0].spec)),
            ("bound", lambda it: it[0].bound),
            ("largest batch", lambda it: f"{it[0].batch_size:,}"),
            ("relative", lambda it: ratio(it[0].batch_size / original if original else None)),
            ("fails at", lambda it: cell("{:,}".format, it[0].failing_batch_size)),
            ("predicted batch", lambda it: cell("{:,}".format, it[0].predicted_batch_size)),
            ("peak MB", lambda it: cell(lambda m: megabytes(m.peak_bytes), it[1])),
            ("host MB", lambda it: cell(lambda m: megabytes(m.host_bytes), it[1])),
            ("step s", lambda it: cell(lambda m: seconds(m.median_seconds), it[1])),
            (
                "examples/s",
                lambda it: cell(lambda m: f"{it[0].batch_size / m.median_seconds:,.2f}", it[1]),
            ),
            ("trials", lambda it: str(len(it[0].trials))),
        ],
        title=f"Largest batch: {step_text(first.spec)}, "
        f"{device_label(first.spec.device, first.spec.memory_limit_bytes)}",
        words=2,
        weak=lambda it: not it[0].batch_size,
        notes=tuple(notes),
        command=first.command,
        frame=pd.DataFrame([_row(*each) for each in found]),
    )


def _row(search: MaxBatchRecord, measured: Measured | None) -> dict[str, Any]:
    """Bytes and seconds."""
    return {
        "id": search.id,
        "model": search.model,
        "strategy": search.spec.strategy,
        "label": strategy_label(search.spec),
        "device": search.spec.device,
        "memory_limit_bytes": search.spec.memory_limit_bytes,
        "batch_size": search.batch_size,
        "failing_batch_size": search.failing_batch_size,
        "bound": search.bound,
        "predicted_batch_size": search.predicted_batch_size,
        "peak_bytes": measured and measured.peak_bytes,
        "host_bytes": measured and measured.host_bytes,
        "median_seconds": measured and measured.median_seconds,
        "trials": len(search.trials),
    }
