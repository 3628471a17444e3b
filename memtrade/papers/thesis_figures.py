"""The thesis's figures, as the views take published ones: to stand beside records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from memtrade.measure.max_batch_records import MaxBatchRecord
from memtrade.measure.records import Record
from memtrade.models import make_model
from memtrade.papers.published import load_published
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
    tables = map(load_published, _PUBLISHED_TABLES)
    return [_figure(row) for table in tables for row in table.to_dict("records")]


def published_max_batches() -> list[Figure]:
    """The thesis's."""
    table = load_published("thesis_max_batch")
    return [_max_batch(row) for row in table.to_dict("records")]


def _figure(row: dict[Any, Any]) -> Figure:
    host_gb = _number(row, "host_gb")
    return Figure(
        **_base(row),
        batch_size=int(row["batch_size"]),
        status=row["status"],
        host_bytes=None if host_gb is None else round(host_gb * 1e9),
    )


def _max_batch(row: dict[Any, Any]) -> Figure:
    return Figure(**_base(row), batch_size=int(row["max_batch"]), searched=True)


def _base(row: dict[Any, Any]) -> dict[str, Any]:
    """What a row says in whichever table."""
    layers, peak_mb = _number(row, "layers"), _number(row, "peak_mb")
    model = make_model(row["model"], {} if layers is None else {"layers": int(layers)})
    return {
        "source": "published",
        "where": THESIS,
        "model": model.name,
        "family": model.family,
        "layers": None if layers is None else int(layers),
        "strategy": row["strategy"],
        "variant": row["strategy"],
        "peak_bytes": None if peak_mb is None else round(peak_mb * 1e6),
        "step_seconds": _number(row, "step_seconds"),
        "origin": row["provenance"],
        "note": row["note"],
    }


def _number(row: dict[Any, Any], name: str) -> Any:
    value: Any = row.get(name)
    return value if pd.notna(value) else None
