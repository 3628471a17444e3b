"""The commands that only read records: `memtrade table`, `report`, `accuracy` and `compare`."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cyclopts import App

from memtrade.commands.progress import say
from memtrade.commands.reading import check_folder, read_records, read_searches, write_output
from memtrade.commands.screen import Form, show
from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.files import shown_apart, shown_path
from memtrade.measure.flags import CommandLine, Flag
from memtrade.measure.records import Record
from memtrade.models import make_model
from memtrade.papers.published import load_published, published_sheet, views_sheet
from memtrade.papers.thesis import thesis_report, thesis_sheets
from memtrade.papers.thesis_log import thesis_log
from memtrade.papers.thesis_tools import tools_sheets
from memtrade.results import accuracy as foretold
from memtrade.results import tables
from memtrade.results.compare import TOLERANCE, changes_sheet, compare_results, unlike_notes

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
        show(tables.compare(found), format)
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
    found = _all_of(folders)
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
    show(tools_sheets(_all_of((results, *more))), format)
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


def report(
    results: Path = Path("runs"),
    /,
    *,
    output: Path = Path("report.html"),
    command_line: CommandLine = "",
) -> int:
    """Write a report: one HTML page that opens offline.

    Which strategy for which need, then plots that answer to the pointer, the tables, the
    environment, and the commands behind every figure.

    Parameters
    ----------
    results
        A folder of records.
    output
        The page, a file in .html.
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise MemtradeError(f"a report is a file in .html, not {output.name!r}: name another")
    check_folder(output)
    records, searches = read_records(results), read_searches(results)
    page = thesis_report(records, searches, folder=shown_path(results), command=command_line)
    write_output(output, page.encode(), alone=True)
    return 0


def accuracy(results: Path = Path("runs"), /, *more: Path, format: Form = "terminal") -> int:
    """Show what was predicted of each trial beside what it took, and by how much that was off.

    Trials that did not run, or that nothing was predicted of, are left out; so are the times of
    trials that ran beside others.

    Parameters
    ----------
    results
        A folder of records.
    more
        Further folders.
    format
        csv has bytes, seconds and shares, and the budgets.
    """
    folders = (results, *more)
    rows = foretold.accuracy(_all_of(folders))
    words = ["memtrade", "accuracy", *map(shown_path, folders), "--format", "markdown"]
    show([foretold.to_sheet(rows, command=shlex.join(words))], format)
    return 0


def compare(
    before: Path,
    after: Path,
    /,
    *,
    tolerance: float = TOLERANCE,
    across_machines: Flag = False,
    all: Flag = False,
    format: Form = "terminal",
) -> int:
    """Compare two sets of results: which trials changed, by how much, beyond noise.

    Trials are the same if all but the versions is. Peaks are compared to the byte (in dataflow
    order, beyond their spread from step to step), step times beyond three standard deviations of a
    step or the tolerance, whichever is more. A warning names what else differs: the CPU's features,
    threads, oneDNN, memtrade's source. The exit status is 1 where anything got worse.

    Parameters
    ----------
    before
        A folder of records.
    after
        Another one.
    tolerance
        The least relative difference of step times that counts: 0.05 is 5 %.
    across_machines
        Compare records of unlike machines: their peaks; times are shown, and not judged.
    all
        Show the trials that did not change, too.
    format
        csv has one row per trial and quantity, in bytes and seconds.
    """
    found = read_records(before), read_records(after)
    changes = compare_results(*found, tolerance=tolerance, across_machines=across_machines)
    if format == "csv":
        for note in unlike_notes(changes):  # which the tables have below them
            say(note)
    shown = shown_apart(before, after)
    sheet = changes_sheet(changes, before=shown[0], after=shown[1], unchanged=all)
    show([sheet], format)
    return 1 if changes.worse else 0


def _all_of(folders: Iterable[Path]) -> list[Record]:
    return [record for folder in folders for record in read_records(folder)]


def _step_names(record: Record) -> tuple[str, str]:
    """How a title begins: the model, and the model with its batch size."""
    options = record.spec.model_options
    name = make_model(record.spec.model, options).name
    return name, f"{name}, batch {options.get('batch_size')}"
