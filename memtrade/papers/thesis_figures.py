"""The thesis's figures, as the views take published ones: to stand beside records."""

from collections.abc import Sequence
from typing import Any

from memtrade.measure.max_batch import MaxBatchRecord
from memtrade.measure.records import Record
from memtrade.models import make_model
from memtrade.papers.published import published_lines
from memtrade.results.figures import Figure, make_figures, make_max_batches

# Where they were measured, as plots and tables title it.
THESIS = "thesis"

_PUBLISHED_TABLES = ("thesis_resnet", "thesis_inception_v4")


def figures_beside(records: Sequence[Record]) -> list[Figure]:
    """The figures of all records, and the thesis's."""
    return make_figures(records, published_figures())


def max_batches_beside(
    searches: Sequence[MaxBatchRecord], trials: Sequence[Record]
) -> list[Figure]:
    """The largest batches of all searches, and the thesis's."""
    return make_max_batches(searches, trials, published_max_batches())


def published_figures() -> list[Figure]:
    """The thesis's figures, without ratios."""
    return [_figure(line) for table in _PUBLISHED_TABLES for line in published_lines(table)]


def published_max_batches() -> list[Figure]:
    """The thesis's."""
    lines = published_lines("thesis_max_batch")
    return [Figure(**_base(line), batch_size=line["max_batch"], searched=True) for line in lines]


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
        "where": THESIS,
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
