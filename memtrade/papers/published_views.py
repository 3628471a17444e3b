"""Where each published table is shown beside ours, and any of them by itself."""

from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec
import pandas as pd

from memtrade.papers.published import load_published, published_names
from memtrade.results.sheets import NONE, Sheet


@dataclass(frozen=True)
class View:
    """`by`: a command that prints it, or a page in `results/` with both."""

    what: str
    by: str


# Published table -> what shows its figures.
VIEWS = msgspec.toml.decode(
    (resources.files("memtrade.papers") / "published_views.toml").read_bytes(),
    type=dict[str, View],
)


def views_sheet() -> Sheet:
    """All published tables, and what shows each."""
    rows = []
    for name in published_names():
        count = len(load_published(name))
        view = VIEWS[name]
        alone = f"memtrade table published {name}"
        rows.append((name, view.what, view.by, alone, str(count)))
    return Sheet(
        title="What was published, and what shows it",
        columns=("table", "what", "beside ours", "by itself", "rows"),
        words=4,
        rows=tuple(rows),
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
