"""`memtrade table`: the records of a folder side by side, or as the thesis's tables. Only reads."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cyclopts import App

from memtrade.commands.progress import say
from memtrade.commands.reading import read_records, read_searches
from memtrade.commands.screen import Form, show
from memtrade.errors import UnknownNameError
from memtrade.files import shown_path
from memtrade.measure.records import Record
from memtrade.models import make_model
from memtrade.papers.published import load_published, published_sheet, views_sheet
from memtrade.papers.thesis import thesis_sheets
from memtrade.papers.thesis_log import thesis_log
from memtrade.papers.thesis_tools import tools_sheets
from memtrade.results.tables import compare

table = App(
    name="table", help="Show records side by side; `table thesis` lays them out as the thesis's."
)


@table.default
def records(
    results: Path = Path("runs"),
    /,
    *,
    step: str | None = None,
    format: Literal["terminal", "markdown", "csv", "latex", "html", "log"] = "terminal",
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
    if format == "log":
        print(thesis_log(found), end="")
    else:
        show(compare(found), format)
    return 0


@table.command
def thesis(results: Path = Path("runs"), /, *more: Path, format: Form = "terminal") -> int:
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
    sheets = thesis_sheets(found, searches)
    if all((sheet.figures["source"] == "published").all() for sheet in sheets):
        say("no record is of a step of the thesis, so all figures are published ones")
    if format == "html":
        command = shlex.join(["memtrade", "table", "thesis", *map(shown_path, folders)])
        sheets = [replace(sheet, command=command) for sheet in sheets]
    show(sheets, format, title="The thesis's tables")
    return 0


@table.command
def tools(results: Path = Path("results/thesis"), /, *more: Path, format: Form = "terminal") -> int:
    """Put the thesis' networks under the original tools' rules beside what was published.

    For each strategy: published; the thesis' networks and rules measured here; the same predicted
    for its GPU; the same networks under memtrade's own rules, measured here. Where records are of
    the original tools themselves, under TensorFlow 1, those, too.

    Parameters
    ----------
    results
        A folder of records: memtrade sweep thesis_tools --results results/thesis.
    more
        Further folders, such as one of python -m memtrade.papers.originals.
    """
    found = [record for folder in (results, *more) for record in read_records(folder)]
    show(tools_sheets(found), format)
    return 0


@table.command
def published(name: str | None = None, /, *, format: Form = "terminal") -> int:
    """Show what others published: one table, or without a name which there are and what shows them.

    Parameters
    ----------
    name
        A published table, such as thesis_resnet.
    format
        csv is the file itself.
    """
    show([views_sheet() if name is None else published_sheet(load_published(name), name)], format)
    return 0


def _step_names(record: Record) -> tuple[str, str]:
    """How a title begins: the model, and the model with its batch size."""
    options = record.spec.model_options
    name = make_model(record.spec.model, options).name
    return name, f"{name}, batch {options.get('batch_size')}"
