"""The report: one HTML page that needs nothing else, neither files nor the network.

Which strategy for which need comes first, then the plots, the tables, the environment and the
commands. plotly.js is part of the page; `templates/report.js` draws what `series.py` decides.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from memtrade.measure.records import Record
from memtrade.results.answers import summarize, summarize_batches
from memtrade.results.drawings import packed_plotly, within_script
from memtrade.results.figures import Figure
from memtrade.results.machines import hardware, machine_labels
from memtrade.results.series import (
    SYMBOLS,
    Panel,
    Quantity,
    by_depth,
    depth_panels,
    source_name,
    style_of,
    trade_panels,
    value_of,
)
from memtrade.results.sheets import DASH, Sheet, templates
from memtrade.results.tables import compare
from memtrade.results.words import device_label, from_to, joined, plural, status_text

_DASHES = ("solid", "dash", "dot", "dashdot")
# The page's plots: the name and the title of each, and which `memtrade plot` makes it for paper.
_PLOTS = (
    ("peak", "Peak memory by depth", "peak"),
    ("time", "Step time by depth", "time"),
    ("trade", "Memory against time", "pareto"),
    ("max-batch", "Largest batch", "max-batch"),
)


def make_report(
    records: Sequence[Record],
    *,
    figures: Sequence[Figure],
    batches: Sequence[Figure],
    sheets: Sequence[Sheet] = (),
    folder: str,
    command: str,
) -> str:
    """The page, as HTML: of records, their figures and the largest batches, published ones among
    them. `sheets`, each with the command that prints it, go before the table of all trials.
    `folder` and `command` are shown as they are given."""
    data, days = _data(figures, batches), sorted(record.created[:10] for record in records)
    return (
        templates()
        .get_template("report.html")
        .render(
            title="Memory-saving strategies, measured",
            subtitle=f"{plural([len(records)], 'trial')} in {folder}, run on {from_to(days)}",
            command=command,
            summary=[*summarize(figures), *summarize_batches(batches)],
            plots=[
                {
                    "name": name,
                    "title": title,
                    "command": shlex.join(
                        ["memtrade", "plot", kind, folder, "--output", f"{kind}.pdf"]
                    ),
                }
                for name, title, kind in _PLOTS
                if data[name.replace("-", "_")]
            ],
            sheets=[*sheets, _all_trials(records, shlex.join(["memtrade", "table", folder]))],
            environment=_environment(records),
            commands=dict.fromkeys(r.command for r in sorted(records, key=_by_model)),
            data=within_script(msgspec.json.encode(data).decode()),
            plotly=packed_plotly(),
        )
    )


def _data(figures: Sequence[Figure], batches: Sequence[Figure]) -> dict[str, Any]:
    """What `report.js` reads, in MB and seconds."""
    deep = [figure for figure in figures if figure.layers is not None]
    steps: dict[str, list[dict[str, Any]]] = {}
    for figure in figures:
        if figure.source == "measured" and figure.peak_bytes and figure.step_seconds:
            steps.setdefault(joined(figure.step_name, figure.where), []).append(_point(figure))
    chosen = by_depth(deep) if any(figure.source == "measured" for figure in deep) else []
    return {
        "peak": [_depth_data(panel, "peak") for panel in depth_panels(chosen, "peak")],
        "time": [_depth_data(panel, "time") for panel in depth_panels(chosen, "time")],
        "trade": [
            {
                "title": panel.title,
                "points": [
                    _point(figure) | {"front": on_front}
                    for figure, on_front in zip(panel.figures, panel.front, strict=True)
                ],
            }
            for panel in trade_panels(figures)
        ],
        "max_batch": _max_batch_data(batches),
        # One alone leaves nothing to choose.
        "steps": [{"name": name, "points": own} for name, own in steps.items() if len(own) > 1],
    }


def _depth_data(panel: Panel, quantity: Quantity) -> dict[str, Any]:
    unit = 1e6 if quantity == "peak" else 1.0
    return {
        "title": panel.title,
        "lines": [
            {
                **_look(strategy, variant),
                "variant": variant,
                "points": [
                    {"x": figure.layers, "y": value / unit, "origin": figure.origin}
                    for figure in line
                    if (value := value_of(figure, quantity))
                ],
                "failed": [
                    {"x": f.layers, "status": status_text(f.status), "origin": f.origin}
                    for f in line
                    if not value_of(f, quantity)
                ],
            }
            for (strategy, variant), line in panel.lines.items()
        ],
    }


def _point(figure: Figure) -> dict[str, Any]:
    return {
        **_look(figure.strategy, figure.variant),
        "variant": figure.variant,
        "peak": (figure.peak_bytes or 0) / 1e6,
        "seconds": figure.step_seconds,
        "relative_time": figure.relative_time,
        "origin": figure.origin,
    }


def _max_batch_data(batches: Sequence[Figure]) -> list[dict[str, Any]]:
    models = dict.fromkeys(batch.step_name for batch in batches)
    sources = dict.fromkeys((batch.source, batch.where) for batch in batches)
    return [
        {
            "title": model,
            "bars": [
                {
                    "name": source_name(source, where),
                    "source": source,
                    "points": [
                        {
                            **_look(batch.strategy, batch.variant),
                            "variant": batch.variant,
                            "batch": batch.batch_size,
                            "origin": batch.origin,
                        }
                        for batch in batches
                        if (batch.step_name, batch.source, batch.where) == (model, source, where)
                    ],
                }
                for source, where in sources
            ],
        }
        for model in models
    ]


def _look(strategy: str, variant: str) -> dict[str, Any]:
    """A strategy's look; with options that are not the default, its marks are hollow."""
    style = style_of(strategy)
    return {
        "colour": style.colour,
        "symbol": SYMBOLS[style.position % len(SYMBOLS)] + "-open" * (variant != strategy),
        "dash": _DASHES[style.position % len(_DASHES)],
        "size": max(11 - style.position, 7),
    }


def _all_trials(records: Sequence[Record], command: str) -> Sheet:
    comparisons = compare(sorted(records, key=_by_model))
    weak = [i in each.weak for each in comparisons for i in range(len(each.rows))]
    return Sheet(
        name="trials",
        title="All trials",
        columns=comparisons[0].columns,
        rows=tuple(row for each in comparisons for row in each.rows),
        sections=tuple(each.title for each in comparisons for _ in each.rows),
        weak=frozenset(i for i, fails in enumerate(weak) if fails),
        notes=tuple(dict.fromkeys(note for each in comparisons for note in each.notes)),
        command=command,
    )


def _by_model(record: Record) -> tuple[object, ...]:
    options = record.spec.model_options
    return record.spec.model, options.get("layers") or 0, options.get("batch_size") or 0


def _environment(records: Sequence[Record]) -> Sheet:
    labels = machine_labels(record.machine for record in records)

    def kind(record: Record) -> tuple[str, ...]:
        machine, runtime = record.machine, record.runtime
        threads = f"{runtime.intra_op_threads} + {runtime.inter_op_threads}" if runtime else DASH
        return (
            labels[hardware(machine)],
            f"{machine.memory_bytes / 2**30:,.0f} GiB",
            device_label(record.spec.device, record.spec.memory_limit_bytes),
            f"{machine.tensorflow_version}",
            ("on" if runtime.onednn else "off") if runtime else DASH,
            threads,
            machine.python_version,
            machine.platform,
            machine.memtrade_version,
        )

    kinds = Counter(map(kind, records))
    return Sheet(
        name="environment",
        title="Where the trials ran",
        columns=(
            "machine", "memory", "device", "TensorFlow", "oneDNN", "threads in and between ops",
            "Python", "platform", "memtrade", "trials",
        ),
        rows=tuple((*kind, str(count)) for kind, count in kinds.items()),
    )  # fmt: skip
