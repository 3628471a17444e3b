"""Where the commands print their results, and in which form."""

import sys
from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.console import Console

from memtrade.errors import MemtradeError
from memtrade.results.sheets import Sheet, to_csv, to_html_page

Form = Literal["terminal", "markdown", "csv", "latex", "html"]

# Wide enough for every table: into a file or a pipe, nothing is folded.
_FILE_WIDTH = 160


def stdout() -> Console:
    """A console for results: cells are text, never markup."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def show(sheets: Sequence[Sheet], form: Form = "terminal", *, title: str = "") -> None:
    """Prints tables. `title` is of a page in HTML."""
    if form == "markdown":
        print("\n".join(sheet.to_markdown() for sheet in sheets), end="")
    elif form == "csv":
        print(to_csv(sheets), end="")
    elif form == "latex":
        print("\n".join(sheet.to_latex() for sheet in sheets), end="")
    elif form == "html":
        print(to_html_page(sheets, title=title or sheets[0].title), end="")
    else:
        console = stdout()
        for position, sheet in enumerate(sheets):
            if position:
                console.print()
            console.print(sheet.to_rich(width=console.width))


def check_form(form: Form, json: bool) -> None:
    """Raises MemtradeError where a form is asked for beside JSON, which has one."""
    if json and form != "terminal":
        raise MemtradeError(f"--json prints no table, so --format {form} says nothing: give one")


def show_json(found: object) -> None:
    """Prints it as JSON, indented, keys in order."""
    print(msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=2).decode())
