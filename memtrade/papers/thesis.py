"""The thesis's tables: its figures beside ours, measured and predicted.

The thesis prints host memory, peak and step time by depth for each strategy (ResNet at batch 32,
and two strategies at 128), one table for InceptionV4, and the largest batch of ResNet-50. The same
tables are made here out of `Figure`s: a column per source, ratios to `original` of the same
source, and out of memory as what it is. Records of other steps are not part of them.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from memtrade.measure.max_batch import MaxBatchRecord
from memtrade.measure.records import Record
from memtrade.models import make_model
from memtrade.papers.published import published_lines
from memtrade.results.figures import (
    SOURCES,
    Figure,
    Ran,
    Source,
    by_variant,
    figures_frame,
    make_figures,
    make_max_batches,
)
from memtrade.results.machines import machine_labels
from memtrade.results.max_batches import max_batch_sheet
from memtrade.results.report import make_report
from memtrade.results.sheets import DASH, Sheet
from memtrade.results.words import (
    beside,
    beside_note,
    device_label,
    joined,
    plural,
    ratio,
    seconds,
    status_text,
    step_conditions,
)
from memtrade.units import megabytes

# Further down than this, the notes on slips of the source stay in its CSV files.
_NOTES_SHOWN = 4

_MAX_BATCHES_IN = "the thesis, memtrade/papers/published/thesis_max_batch.csv"

_STATUS = {"out_of_memory": "OOM", "out_of_host_memory": "host OOM"}


class ThesisStep(NamedTuple):
    """A training step of the thesis: one table. `title` is of its table."""

    name: str
    title: str
    family: str
    batch_size: int
    published_in: str

    def includes(self, figure: Figure) -> bool:
        of_figure = figure.family, figure.batch_size, figure.conditions
        return of_figure == (self.family, self.batch_size, "")


STEPS = (
    ThesisStep("resnet-32", "ResNet by depth, batch 32", "resnet", 32, "thesis_resnet.csv"),
    ThesisStep("resnet-128", "ResNet by depth, batch 128", "resnet", 128, "thesis_resnet.csv"),
    ThesisStep(
        "inception-v4", "InceptionV4, batch 32", "inception-v4", 32, "thesis_inception_v4.csv"
    ),
)


class ColumnGroup(NamedTuple):
    """A group of columns: how a figure's attribute is written, and who can have it.

    Predicted ratios are left out: they follow from the columns beside them, and the table has to
    fit a page.
    """

    name: str
    attribute: str
    text: Callable[..., str]
    sources: tuple[Source, ...] = SOURCES


_SEEN: tuple[Source, ...] = ("published", "measured")
QUANTITIES = (
    ColumnGroup("peak MB", "peak_bytes", megabytes),
    ColumnGroup("host MB", "host_bytes", lambda size_bytes: f"{size_bytes / 1e6:,.0f}", _SEEN),
    ColumnGroup("step s", "step_seconds", seconds),
    ColumnGroup("relative peak", "relative_peak", ratio, _SEEN),
    ColumnGroup("relative time", "relative_time", ratio, _SEEN),
)


def figures_beside(records: Sequence[Record]) -> list[Figure]:
    """The figures of all records, and the thesis's."""
    tables = ("thesis_resnet", "thesis_inception_v4")
    published = [_figure(line) for table in tables for line in published_lines(table)]
    return make_figures(records, published)


def max_batches_beside(
    searches: Sequence[MaxBatchRecord], trials: Sequence[Record]
) -> list[Figure]:
    """The largest batches of all searches, and the thesis's."""
    lines = published_lines("thesis_max_batch")
    published = [
        Figure(**_base(line), batch_size=line["max_batch"], searched=True) for line in lines
    ]
    return make_max_batches(searches, trials, published)


def _figure(line: dict[Any, Any]) -> Figure:
    host_gb = line["host_gb"]
    return Figure(
        **_base(line),
        batch_size=line["batch_size"],
        status=line["status"],
        host_bytes=None if host_gb is None else round(host_gb * 1e9),
    )


def _base(line: dict[Any, Any]) -> dict[str, Any]:
    """What a line says in whichever table."""
    layers, peak_mb = line.get("layers"), line["peak_mb"]
    model = make_model(line["model"], {} if layers is None else {"layers": layers})
    return {
        "source": "published",
        "where": "thesis",  # as plots and tables title it
        "model": model.name,
        "family": model.family,
        "layers": layers,
        "strategy": line["strategy"],
        "variant": line["strategy"],
        "peak_bytes": None if peak_mb is None else round(peak_mb * 1e6),
        "step_seconds": line["step_seconds"],
        "origin": line["provenance"],
        "note": line["note"],
    }


def thesis_sheets(
    records: Sequence[Record], searches: Sequence[MaxBatchRecord] = ()
) -> list[Sheet]:
    """The tables for which there is any figure, in the thesis's order.

    Their frames have a row per figure, in bytes and seconds, and the column `table` names the
    table. In the one of the largest batches, `batch_size` is the largest and `relative_batch`
    relates it to the original's.

    `searches` are those for the largest batch; `records` has their trials, too.
    """
    return _sheets(figures_beside(records), max_batches_beside(searches, records), records)


def _sheets(
    figures: Sequence[Figure], searched: Sequence[Figure], records: Sequence[Record]
) -> list[Sheet]:
    sheets = []
    for step in STEPS:
        chosen = [figure for figure in figures if step.includes(figure)]
        if chosen:
            sheets.append(_sheet(step, chosen, _records_of(step, records)))
    models = {batch.model for batch in searched if batch.source == "published"}
    if batches := [each for each in searched if each.model in models and not each.conditions]:
        sheet = max_batch_sheet(batches, published_in=_MAX_BATCHES_IN)
        frame = sheet.figures.assign(status="ok")
        frame.insert(0, "table", sheet.name)
        sheets.append(replace(sheet, frame=frame))
    return sheets


def thesis_report(
    records: Sequence[Record], searches: Sequence[MaxBatchRecord] = (), *, folder: str, command: str
) -> str:
    """The report on records, with the thesis beside them: `memtrade.results.report`."""
    printed_by = shlex.join(["memtrade", "table", "thesis", folder])
    figures, batches = figures_beside(records), max_batches_beside(searches, records)
    sheets = _sheets(figures, batches, records)
    return make_report(
        records,
        figures=figures,
        batches=batches,
        sheets=[replace(each, command=printed_by) for each in sheets],
        folder=folder,
        command=command,
    )


def _records_of(step: ThesisStep, records: Iterable[Record]) -> list[Record]:
    return [
        record
        for record in records
        if record.spec.model == step.family
        and record.spec.model_options.get("batch_size") == step.batch_size
        and not step_conditions(record.spec)
    ]


def _sheet(step: ThesisStep, figures: Sequence[Figure], records: Sequence[Record]) -> Sheet:
    columns: list[tuple[ColumnGroup, Source]] = [
        (quantity, source)
        for quantity in QUANTITIES
        for source in quantity.sources
        if any(  # under the peak there is a status at least
            f.source == source
            and (quantity.attribute == "peak_bytes" or getattr(f, quantity.attribute) is not None)
            for f in figures
        )
    ]
    by_depth = len({figure.layers for figure in figures}) > 1
    lines = [
        (title, str(layers) if by_depth else title, row)
        for title, members in by_variant(figures).items()
        for layers, row in _by_layers(members).items()
    ]
    frame = figures_frame(figures)
    frame.insert(0, "table", step.name)
    in_depth = sorted(records, key=lambda record: record.spec.model_options.get("layers") or 0)
    return Sheet(
        name=step.name,
        title=step.title,
        columns=(
            "layers" if by_depth else "strategy",
            *((quantity.name, source) for quantity, source in columns),
        ),
        rows=tuple((label, *_cells(row, columns)) for _, label, row in lines),
        sections=tuple(title for title, _, _ in lines) if by_depth else (),
        weak=frozenset(
            i
            for i, (_, _, row) in enumerate(lines)
            if "measured" in row and row["measured"].status != "ok"
        ),
        notes=tuple(_notes(step, figures, records)),
        command="\n".join(dict.fromkeys(record.command for record in in_depth)),
        expendable=("host MB", "relative time", "relative peak"),
        frame=frame,
    )


def _by_layers(figures: Iterable[Figure]) -> dict[int | None, dict[Source, Figure]]:
    rows: dict[int | None, dict[Source, Figure]] = {}
    for figure in sorted(figures, key=lambda figure: figure.layers or 0):
        rows.setdefault(figure.layers, {})[figure.source] = figure
    return rows


def _cells(
    figures: dict[Source, Figure], columns: Sequence[tuple[ColumnGroup, Source]]
) -> Iterator[str]:
    for quantity, source in columns:
        if (figure := figures.get(source)) is None:
            yield DASH
            continue
        name, value = quantity.attribute, getattr(figure, quantity.attribute)
        text = DASH if value is None else quantity.text(value)
        if name == "peak_bytes":
            if value is None and figure.status != "ok":
                text = _STATUS.get(figure.status, status_text(figure.status))
            yield text + "*" * bool(figure.note)
        else:  # what trials at a time disturbed
            both = {
                "step_seconds": figure.jobs,
                "relative_time": max(figure.jobs, figure.original_jobs),
            }
            yield beside(text, both.get(name, 1)) if value is not None else text


def _notes(step: ThesisStep, figures: Sequence[Figure], records: Sequence[Record]) -> list[str]:
    notes = []
    sources = {figure.source for figure in figures}
    if "published" in sources:
        notes.append(f"published: the thesis, memtrade/papers/published/{step.published_in}")
    if records:
        notes.append(f"measured: {conditions(records)}")
        if (jobs := max(record.jobs for record in records)) > 1:
            notes.append(beside_note(jobs))
    if "predicted" in sources:
        profiles = sorted({f.origin for f in figures if f.source == "predicted"})
        notes.append(f"predicted: {', '.join(profiles)}")
    notes.append("MB: 10⁶ bytes; host MB: without that of an idle process")
    if any(figure.relative_peak is not None for figure in figures):
        notes.append("relative: to original of the same source")
    if any(figure.status == "out_of_memory" for figure in figures):
        notes.append("OOM: out of memory")
    slips = [figure for figure in figures if figure.note]
    if len(slips) > _NOTES_SHOWN:
        notes.append(f"*: slips of the source, told row by row in {step.published_in}")
    else:
        rows = (joined(f.variant, f"{f.layers} layers" if f.layers else "") for f in slips)
        notes += [f"* {row}: {figure.note}" for row, figure in zip(rows, slips, strict=True)]
    return notes


def conditions(records: Sequence[Record]) -> str:
    """Where and how `records` were measured, in one line."""
    steps = plural((record.spec.steps for record in records), "step")
    at_a_time = max(record.jobs for record in records)
    beside = f", up to {at_a_time} trials at a time" if at_a_time > 1 else ""
    return f"{machines_text(records)}; step s is the median of {steps}{beside}"


def machines_text(records: Sequence[Ran]) -> str:
    """On what, under what limit and with which TensorFlow and optimizer `records` were made."""
    machines = machine_labels(record.machine for record in records)
    devices = {device_label(r.spec.device, r.spec.memory_limit_bytes) for r in records}
    versions = {f"TensorFlow {record.machine.tensorflow_version}" for record in records}
    optimizers = {record.spec.optimizer for record in records}
    texts = (set(machines.values()), devices, versions, optimizers)
    return ", ".join("; ".join(sorted(each)) for each in texts)
