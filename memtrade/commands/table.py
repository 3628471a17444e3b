"""`memtrade table`: the records of a folder side by side, or as the thesis's tables. Only reads."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cyclopts import App

from memtrade.commands.reading import read_records, read_searches, shown_folder
from memtrade.commands.screen import show, stdout
from memtrade.errors import UnknownNameError
from memtrade.measure.records import Record
from memtrade.models import make_model
from memtrade.papers.published import load_published
from memtrade.papers.published_views import published_sheet, views_sheet
from memtrade.papers.thesis import thesis_commands, thesis_frame, thesis_grids
from memtrade.papers.thesis_log import thesis_log
from memtrade.papers.thesis_tools import tools_sheets
from memtrade.results.grids import (
    grid_to_latex,
    grid_to_markdown,
    grid_to_rich,
    grids_to_html_page,
)
from memtrade.results.sheets import Sheet
from memtrade.results.tables import compare, to_csv, to_markdown

table = App(
    name="table", help="Show records side by side; `table thesis` lays them out as the thesis's."
)


@table.default
def records(
    results: Path = Path("runs"),
    /,
    *,
    step: str | None = None,
    format: Literal["terminal", "markdown", "csv", "log"] = "terminal",
) -> int:
    """Show the records of a folder side by side, one table per model and size.

    Parameters
    ----------
    results
        A folder of records.
    step
        Only this step's records, by its name in the titles: resnet-50, or resnet-50, batch 32.
    format
        csv has all columns, in bytes and seconds; log is what the thesis' benchmark prints of its
        strategies, record by record.
    """
    found = read_records(results)
    if step is not None:
        names = {name for record in found for name in _step_names(record)}
        if step not in names:
            raise UnknownNameError("step", step, names)
        found = [record for record in found if step in _step_names(record)]
    if format == "csv":
        print(to_csv(found), end="")
    elif format == "log":
        print(thesis_log(found), end="")
    elif format == "markdown":
        print("\n".join(to_markdown(comparison) for comparison in compare(found)), end="")
    else:
        show(compare(found))
    return 0


@table.command
def thesis(
    results: Path = Path("runs"),
    /,
    *more: Path,
    format: Literal["terminal", "markdown", "latex", "html", "csv"] = "terminal",
) -> int:
    """Lay records out as the thesis's tables: published, measured and predicted side by side.

    ResNet by depth at batch 32 and 128, InceptionV4, and the largest batch of ResNet-50. Records of
    other steps are left out.

    Parameters
    ----------
    results
        A folder of records.
    more
        Further folders, such as one of searches for the largest batch.
    format
        latex makes table environments that need the package booktabs; html is a page of its own;
        csv has one row per figure, in bytes and seconds, with where it comes from.
    """
    folders = (results, *more)
    found = [record for folder in folders for record in read_records(folder)]
    searches = [search for folder in folders for search in read_searches(folder)]
    grids = thesis_grids(found, searches)
    if format == "csv":
        text = thesis_frame(found, searches).to_csv(index=False, lineterminator="\n")
    elif format == "markdown":
        text = "\n".join(
            grid_to_markdown(grid, commands=thesis_commands(grid, found, searches))
            for grid in grids
        )
    elif format == "latex":
        text = "\n".join(map(grid_to_latex, grids))
    elif format == "html":
        command = shlex.join(["memtrade", "table", "thesis", *map(shown_folder, folders)])
        text = grids_to_html_page([(grid, command) for grid in grids], title="The thesis's tables")
    else:
        text = ""
        console = stdout()
        for grid in grids:
            console.print(grid_to_rich(grid, width=console.width))
            console.print()
    print(text, end="")
    return 0


@table.command
def tools(
    results: Path = Path("results/thesis"),
    /,
    *,
    format: Literal["terminal", "markdown"] = "terminal",
) -> int:
    """Put the thesis' networks under the original tools' rules beside what was published.

    Columns: published; the thesis' networks and rules measured here; the same predicted for its
    GPU; the same networks under memtrade's own rules, measured here.

    Parameters
    ----------
    results
        A folder of records: memtrade sweep thesis_tools --results results/thesis.
    """
    _print(tools_sheets(read_records(results)), format)
    return 0


@table.command
def published(
    name: str | None = None, /, *, format: Literal["terminal", "markdown", "csv"] = "terminal"
) -> int:
    """Show what others published: one table, or without a name which there are and what shows them.

    Parameters
    ----------
    name
        A published table, such as thesis_resnet.
    format
        csv is the file itself.
    """
    if name is None:
        sheet = views_sheet()
    else:
        frame = load_published(name)
        if format == "csv":
            print(frame.to_csv(index=False, lineterminator="\n"), end="")
            return 0
        sheet = published_sheet(frame, name)
    _print([sheet], "terminal" if format == "csv" else format)
    return 0


def _print(sheets: Sequence[Sheet], format: Literal["terminal", "markdown"]) -> None:
    if format == "markdown":
        print("\n".join(sheet.to_markdown() for sheet in sheets), end="")
        return
    console = stdout()
    for sheet in sheets:
        console.print(sheet.to_rich())
        console.print()


def _step_names(record: Record) -> tuple[str, str]:
    """How a title begins: the model, and the model with its batch size."""
    options = record.spec.model_options
    name = make_model(record.spec.model, options).name
    return name, f"{name}, batch {options.get('batch_size')}"
