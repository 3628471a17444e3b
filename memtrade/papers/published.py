"""Published figures as pandas frames: what others measured, to stand beside our own records.

The CSV files in ``published/``, which come with the package, were copied by a parser from the
sources that their ``README.md`` names, one tidy row per figure or run. Slips of a source are kept
as printed and described in the row's ``note``; nothing is corrected and nothing is averaged.

Units are in the column names: ``_bytes`` (int), ``_mb`` (MB, 10^6 bytes), ``_gb`` (GB, 10^9
bytes), ``_seconds``, ``_ms``. A ``_printed`` column is the source's own text. Every row has a
``provenance``; ``status`` is ``ok``, ``out_of_memory`` or ``not_available``.

`VIEWS` says where each is shown beside ours. This module imports no TensorFlow.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from memtrade.errors import UnknownNameError
from memtrade.files import packaged_file, packaged_toml
from memtrade.results.sheets import NONE, Sheet

_FOLDER = packaged_file("papers/published")

# Counts, read as nullable integers: some rows have none (InceptionV4 has no `layers`).
INTEGER_COLUMNS = frozenset({
    "analysis_batch_size", "batch_size", "blocks", "channels", "cutting_edges", "depth",
    "filters_d", "layers", "layers_l", "lb_option", "line", "max_batch", "max_bytes",
    "memory_lines", "micro_batches", "n_iter", "ops_added", "order", "parameter_bytes",
    "parameters", "partition", "partition_bytes", "partitions", "peak_activation_bytes",
    "size_label", "step", "steps", "tensors_swapped", "total_bytes",
})  # fmt: skip
FLAG_COLUMNS = frozenset({"graph_valid", "max_mem_carried_over", "max_mem_is_own"})
TEXT_COLUMNS = frozenset({"note", "provenance", "status", "value"})


def published_names() -> tuple[str, ...]:
    """The names that `load_published` takes, sorted: the CSV files' stems."""
    names = (file.name for file in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in names if name.endswith(".csv")))


def load_published(name: str) -> pd.DataFrame:
    """A published table by its CSV file's stem, say "thesis_resnet", in the order of the source.

    `published/README.md` lists columns and units. What the source does not print is missing (NaN or
    NA); `note` is never missing, but may be empty. Raises UnknownNameError where there is no such
    table.
    """
    if name not in (names := published_names()):
        raise UnknownNameError("published table", name, names)
    path: Any = _FOLDER / f"{name}.csv"
    columns = pd.read_csv(path, nrows=0).columns
    types = {column: dtype for column in columns if (dtype := _dtype(column)) is not None}
    frame = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])
    return frame.fillna({"note": ""})


def published_lines(name: str, **wanted: object) -> list[dict[Any, Any]]:
    """The rows of a published table one by one, in the order of the source; what it does not print
    is None. `wanted`: only those whose columns say so."""
    found = lines(load_published(name))
    return [line for line in found if all(line[key] == value for key, value in wanted.items())]


def lines(frame: Any) -> list[dict[Any, Any]]:
    """A frame's rows one by one; what is missing is None."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _dtype(column: str) -> str | None:
    """The column's type, by its name; None leaves it to pandas (floats and plain labels)."""
    if column in INTEGER_COLUMNS:
        return "Int64"
    if column in FLAG_COLUMNS:
        return "boolean"
    if column in TEXT_COLUMNS or column.endswith("_printed"):
        return "str"
    return None


@dataclass(frozen=True)
class View:
    """`by`: a command that prints it, or a page in `results/` with both."""

    what: str
    by: str


# Published table -> what shows its figures.
VIEWS: dict[str, View] = packaged_toml("papers/published_views.toml", dict[str, View])


def views_sheet() -> Sheet:
    """All published tables, and what shows each."""
    return Sheet.of(
        published_names(),
        [
            ("table", str),
            ("what", lambda name: VIEWS[name].what),
            ("beside ours", lambda name: VIEWS[name].by),
            ("by itself", lambda name: f"memtrade table published {name}"),
            ("rows", lambda name: str(len(load_published(name)))),
        ],
        title="What was published, and what shows it",
        words=4,
        notes=("memtrade/papers/published/README.md says where each comes from",),
    )


def published_sheet(frame: Any, name: str) -> Sheet:
    """One published table, a frame of `load_published`, without columns that say nothing."""
    said = [column for column in frame if frame[column].notna().any() and column != "provenance"]
    said = [column for column in said if frame[column].astype(str).str.strip().any()]
    rows = tuple(
        tuple(NONE if pd.isna(value) or value == "" else str(value) for value in row)
        for row in frame[said].itertuples(index=False)
    )
    return Sheet(title=name, columns=tuple(map(str, said)), words=len(said), rows=rows, frame=frame)
