"""`memtrade table`: the records of a folder side by side, or as the thesis's tables. Only reads."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from cyclopts import App

from memtrade.commands.reading import read_records, read_searches, shown_folder, warnings_on_stderr
from memtrade.commands.screen import show, stdout
from memtrade.errors import UnknownNameError
from memtrade.models import make_model
from memtrade.results.grids import (
    grid_to_latex,
    grid_to_markdown,
    grid_to_rich,
    grids_to_html_page,
)
from memtrade.results.records import Record
from memtrade.results.tables import compare, to_csv, to_markdown
from memtrade.results.thesis import thesis_commands, thesis_frame, thesis_grids

table = App(
    name="table", help="Show records side by side; `table thesis` lays them out as the thesis's."
)


@table.default
def records(
    results: Path = Path("runs"),
    /,
    *,
    step: str | None = None,
    format: Literal["terminal", "markdown", "csv"] = "terminal",
) -> int:
    """Show the records of a folder side by side, one table per model and size.

    Parameters
    ----------
    results
        A folder of records.
    step
        Only this step's records, by its name in the titles, such as resnet-50.
    format
        csv has all columns, in bytes and seconds.
    """
    found = read_records(results)
    if step is not None:
        names = {_step_name(record) for record in found}
        if step not in names:
            raise UnknownNameError("step", step, names)
        found = [record for record in found if _step_name(record) == step]
    if format == "csv":
        print(to_csv(found), end="")
    elif format == "markdown":
        print("\n".join(to_markdown(comparison) for comparison in compare(found)), end="")
    else:
        show(compare(found))
    return 0


@table.command
def thesis(
    results: Path = Path("runs"),
    /,
    *,
    format: Literal["terminal", "markdown", "latex", "html", "csv"] = "terminal",
) -> int:
    """Lay records out as the thesis's tables: published, measured and predicted side by side.

    ResNet by depth at batch 32 and 128, InceptionV4, and the largest batch of ResNet-50. Records of
    other steps are left out.

    Parameters
    ----------
    results
        A folder of records.
    format
        latex makes table environments that need the package booktabs; html is a page of its own;
        csv has one row per figure, in bytes and seconds, with where it comes from.
    """
    found = read_records(results)
    searches = read_searches(results)
    with warnings_on_stderr():
        grids = thesis_grids(found, searches)
        if format == "csv":
            text = thesis_frame(found).to_csv(index=False, lineterminator="\n")
        elif format == "markdown":
            text = "\n".join(
                grid_to_markdown(grid, commands=thesis_commands(grid, found, searches))
                for grid in grids
            )
        elif format == "latex":
            text = "\n".join(map(grid_to_latex, grids))
        elif format == "html":
            command = shlex.join(["memtrade", "table", "thesis", shown_folder(results)])
            text = grids_to_html_page(
                [(grid, command) for grid in grids], title="The thesis's tables"
            )
        else:
            text = ""
            console = stdout()
            for grid in grids:
                console.print(grid_to_rich(grid, width=console.width))
                console.print()
    print(text, end="")
    return 0


def _step_name(record: Record) -> str:
    return make_model(record.spec.model, record.spec.model_options).name
