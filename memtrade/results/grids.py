"""Grids: tables with grouped columns and sections of rows, and what they look like.

A grid holds finished text, no figures: `thesis.py` makes grids, this module lays them out for a
terminal, as Markdown, HTML and LaTeX. Out of LaTeX's packages, `booktabs` is all that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import jinja2
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

NONE = "–"

# Where there is little room, in narrow terminals and on paper.
_SHORT = {
    "published": "publ.",
    "measured": "meas.",
    "predicted": "pred.",
    "relative": "rel.",
}
_TITLE_WIDTH = 16
_LATEX_LABEL_LENGTH = 20  # rows with longer labels take several lines

_LATEX = {
    "\\": r"\textbackslash{}",
    "⁶": r"\textsuperscript{6}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "×": r"$\times$",
    "†": r"\dag{}",
} | {character: "\\" + character for character in "&%$#_{}"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column by its group ("peak MB") and its name in it ("measured")."""

    group: str
    name: str


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """A row's label and one cell per column; `failed` where there is nothing but a status."""

    label: str
    cells: tuple[str, ...]
    failed: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """Rows under a heading; a grid of one section may have none."""

    title: str
    rows: tuple[GridRow, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table.

    Attributes:
        name: unique among the grids of a page.
        stub: heads the rows' labels.
        expendable: groups that a narrow terminal leaves out, in this order, until the rest fits.
    """

    name: str
    title: str
    stub: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    expendable: tuple[str, ...] = ()

    @property
    def grouped(self) -> bool:
        """Whether columns have names beside their group's."""
        return any(column.name for column in self.columns)

    @property
    def groups(self) -> list[tuple[str, int, int]]:
        """Neighbouring columns of one group: its name, and its first and last column from 0."""
        spans = groupby(enumerate(self.columns), key=lambda pair: pair[1].group)
        ends = [(group, [position for position, _ in pairs]) for group, pairs in spans]
        return [(group, positions[0], positions[-1]) for group, positions in ends]


def grid_to_rich(grid: Grid, *, width: int = 120) -> Group:
    """For a terminal of `width` columns. Print it with a console without markup.

    What does not fit gets shorter names first, and then leaves out groups of columns.
    """
    short, missing = _fit(grid, width)
    table = Table(
        title=grid.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0 if short else 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    sectioned = any(section.title for section in grid.sections)
    table.add_column(grid.stub, overflow="fold", min_width=_stub_width(grid))
    shown = [i for i, column in enumerate(grid.columns) if column.group not in missing]
    for position in shown:
        header = "\n".join(_header(grid.columns[position], short=short))
        table.add_column(header, justify="right", overflow="fold")
    for position, section in enumerate(grid.sections):
        if position and sectioned:
            table.add_section()
        if section.title:
            table.add_row(section.title, style="bold")
        for row in section.rows:
            label = f"  {row.label}" if section.title else row.label
            cells = [row.cells[position] for position in shown]
            table.add_row(label, *cells, style="yellow" if row.failed else None)
    notes = list(grid.notes)
    if missing:
        notes.append(f"a wider terminal also shows: {', '.join(missing)}")
    return Group(table, "", *(Text(note) for note in notes))


def _fit(grid: Grid, width: int) -> tuple[bool, list[str]]:
    """Whether names must be short for `width` columns, and which groups do not fit even so."""
    if _width(grid, short=False, missing=[]) <= width:
        return False, []
    missing: list[str] = []
    for group in grid.expendable:
        if _width(grid, short=True, missing=missing) <= width:
            break
        missing.append(group)
    return True, missing


def _width(grid: Grid, *, short: bool, missing: Sequence[str]) -> int:
    rows = [row for section in grid.sections for row in section.rows]
    total = _stub_width(grid)
    for position, column in enumerate(grid.columns):
        if column.group not in missing:
            lines = [*_header(column, short=short), *(row.cells[position] for row in rows)]
            total += max(map(len, lines)) + (1 if short else 2)
    return total


def _stub_width(grid: Grid) -> int:
    titles = max(len(section.title) for section in grid.sections)
    labels = max(len(row.label) for section in grid.sections for row in section.rows)
    return max(min(titles, _TITLE_WIDTH), labels + (2 if titles else 0), len(grid.stub))


def _header(column: Column, *, short: bool) -> list[str]:
    """The lines of a column's header: a group of long words takes a line for each."""
    group, name = column.group, column.name
    if short:
        group, name = short_name(group), short_name(name)
    return [*(group.split(" ") if len(group) > 8 else [group]), name]


def grid_to_markdown(grid: Grid, *, commands: Iterable[str] = ()) -> str:
    """With its title, its notes, and the commands that made it, if they are given.

    Markdown has neither grouped columns nor sections: a section is a column of its own.
    """
    sectioned = any(section.title for section in grid.sections)
    stubs = ["strategy", grid.stub] if sectioned else [grid.stub]
    heads = [f"{column.group} {column.name}".strip() for column in grid.columns]
    lines = [
        f"**{grid.title}**",
        "",
        _markdown_row([*stubs, *heads]),
        _markdown_row(["---"] * len(stubs) + ["--:"] * len(heads)),
    ]
    for section in grid.sections:
        for row in section.rows:
            titles = [section.title] if sectioned else []
            lines.append(_markdown_row([*titles, row.label, *row.cells]))
    for note in grid.notes:
        lines += ["", note.replace("*", "\\*")]
    if commands := list(dict.fromkeys(commands)):
        lines += ["", "Made by:", "", *(f"    {command}" for command in commands)]
    return "\n".join(lines) + "\n"


def grid_to_html(grid: Grid, *, command: str = "") -> str:
    """A `<figure>` that can stand in any page; classes and no colours."""
    return _templates().get_template("grid.html").render(grid=grid, command=command)


def grids_to_html_page(grids: Sequence[tuple[Grid, str]], *, title: str) -> str:
    """A page of grids, each with the command that prints it or "", in the reader's colours."""
    return _templates().get_template("grids.html").render(grids=grids, title=title)


def grid_to_latex(grid: Grid) -> str:
    """A `table` environment with a caption and the label `tab:NAME`.

    The preamble must load `booktabs`. At 8 points, twelve columns fit the text of an A4 page.
    """
    longest = max((len(row.label) for each in grid.sections for row in each.rows), default=0)
    folded = longest > _LATEX_LABEL_LENGTH
    return _templates().get_template("grid.tex").render(grid=grid, folded=folded) + "\n"


def short_name(name: str) -> str:
    """The name of a column or a group where there is little room.

    >>> short_name("relative peak"), short_name("published")
    ('rel. peak', 'publ.')
    """
    return " ".join(_SHORT.get(word, word) for word in name.split(" "))


def latex_text(text: str) -> str:
    """`text` with LaTeX's special characters escaped.

    >>> print(latex_text("resnet_50: 10 % – 3 × faster"))
    resnet\\_50: 10 \\% -- 3 $\\times$ faster
    """
    return "".join(_LATEX.get(character, character) for character in text)


@cache
def _templates() -> jinja2.Environment:
    return template_environment()


def template_environment() -> jinja2.Environment:
    """The templates beside this module. HTML is escaped; LaTeX escapes by the filter `tex`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("memtrade.results"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"tex": latex_text, "short": short_name}
    return environment


def _markdown_row(cells: Iterable[str]) -> str:
    escaped = (re.sub(r"([|*])", r"\\\1", cell) for cell in cells)
    return "| " + " | ".join(escaped) + " |"
