"""Published figures as pandas frames: what others measured, to stand beside our own records.

The CSV files under ``results/published/`` were copied by a parser from the sources that their
``README.md`` names, one tidy row per figure or run. Slips of a source are kept as printed and
described in the row's ``note``; nothing is corrected and nothing is averaged.

Units are in the column names: ``_bytes`` (int), ``_mb`` (MB, 10^6 bytes), ``_gb`` (GB, 10^9
bytes), ``_seconds``, ``_ms``. A ``_printed`` column is the source's own text. Every row has a
``provenance``; ``status`` is ``ok``, ``out_of_memory`` or ``not_available``.

This module imports no TensorFlow.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pandas as pd

from memtrade.errors import MemtradeError

__all__ = ["UnknownPublishedError", "load_published", "published_names"]

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]

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


class UnknownPublishedError(MemtradeError):
    """No published table has this name.

    Attributes: ``name`` as asked for, ``valid_names``, ``nearest`` (or None).
    """

    def __init__(self, name: str, valid_names: tuple[str, ...]) -> None:
        close = difflib.get_close_matches(name, valid_names, n=1, cutoff=0.4)
        self.name = name
        self.valid_names = valid_names
        self.nearest = close[0] if close else None
        hint = f" Did you mean {self.nearest!r}?" if self.nearest else ""
        super().__init__(
            f"no published table is named {name!r}.{hint} Valid names: {', '.join(valid_names)}"
        )


def published_names(*, results_dir: str | Path = "results") -> tuple[str, ...]:
    """Return the names that `load_published` accepts, sorted: the CSV files' stems."""
    return tuple(sorted(path.stem for path in _published_dir(results_dir).glob("*.csv")))


def load_published(name: str, *, results_dir: str | Path = "results") -> pd.DataFrame:
    """Return one published table as a frame, rows in the order of the source.

    Parameters
    ----------
    name
        The CSV file's stem, such as ``"thesis_resnet"``.
    results_dir
        The folder that holds ``published/``. A relative one is looked for under the working
        directory, then under the repository's root.

    Returns
    -------
    A frame whose columns and units ``results/published/README.md`` lists. What the source does
    not print is missing (NaN or NA); ``note`` is never missing, but may be empty.

    Raises
    ------
    UnknownPublishedError
        No such table; the message lists the valid names and the nearest.
    FileNotFoundError
        ``results_dir`` holds no ``published/`` folder.
    """
    folder = _published_dir(results_dir)
    valid_names = published_names(results_dir=folder.parent)
    if name not in valid_names:
        raise UnknownPublishedError(name, valid_names)
    path = folder / f"{name}.csv"
    columns = pd.read_csv(path, nrows=0).columns
    frame = pd.read_csv(
        path,
        dtype={column: dtype for column in columns if (dtype := _dtype(column)) is not None},
        keep_default_na=False,
        na_values=[""],
        encoding="utf-8",
    )
    return frame.fillna({"note": ""})


def _dtype(column: str) -> str | None:
    """The column's type, by its name; None leaves it to pandas (floats and plain labels)."""
    if column in INTEGER_COLUMNS:
        return "Int64"
    if column in FLAG_COLUMNS:
        return "boolean"
    if column in TEXT_COLUMNS or column.endswith("_printed"):
        return "str"
    return None


def _published_dir(results_dir: str | Path) -> Path:
    # Joining an absolute path to a base yields the absolute path itself.
    tried = [base / results_dir / "published" for base in (Path.cwd(), REPOSITORY_ROOT)]
    for folder in tried:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        "the published figures live in <results_dir>/published, but none of these is a folder: "
        f"{', '.join(map(str, dict.fromkeys(tried)))}; pass results_dir="
    )
