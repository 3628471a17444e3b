"""Sheets: the one table of all views, and what it looks like in each form.

A view makes sheets of records; this module lays them out for a terminal, as Markdown, HTML, LaTeX
and CSV. Out of LaTeX's packages, `booktabs` is all that it needs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, TypeVar

import jinja2
import pandas as pd
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

NONE = "-"
# The same in tables that are printed in a paper.
DASH = "–"

# A column's name, or its group's ("peak MB") and its own in it ("measured").
Heading = str | tuple[str, str]

T = TypeVar("T")

# Where there is little room, in narrow terminals and on paper.
_SHORT = {"published": "publ.", "measured": "meas.", "predicted": "pred.", "relative": "rel."}
_SECTION_WIDTH = 16
_GROUP_WIDTH = 8  # longer names of groups take a line for each word
_LATEX_LABEL_LENGTH = 20  # rows with longer labels take several lines

_LATEX = {
    "\\": r"\textbackslash{}",
    "⁶": r"\textsuperscript{6}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "×": r"$\times$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "≈": r"$\approx$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\to$",
    "●": r"$\bullet$",
    "◄": r"$\triangleleft$",
    "√": r"$\surd$",
} | {character: "\\" + character for character in "&%$#_{}"}


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table of finished text.

    Attributes:
        words: so many columns from the left hold words, the others numbers.
        sections: for each row the heading that it stands under; none in a plain table.
        sectioned_by: what these headings are.
        weak: positions of the rows that did not come to figures.
        notes: explain what the cells leave open.
        command: what made it; several have a line each.
        name: unique among the tables of a page.
        expendable: columns or groups that a narrow terminal leaves out, in this order, until the
            rest fits.
        frame: what CSV writes: the same figures in bytes and seconds; None writes the cells.
    """

    title: str
    columns: tuple[Heading, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    sections: tuple[str, ...] = ()
    sectioned_by: str = "strategy"
    weak: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    command: str = ""
    name: str = ""
    expendable: tuple[str, ...] = ()
    frame: pd.DataFrame | None = None

    @classmethod
    def of(
        cls,
        items: Sequence[T],
        columns: Iterable[tuple[Heading, Callable[[T], str]]],
        *,
        weak: Callable[[T], object] = lambda _: False,
        **about: Any,
    ) -> Sheet:
        """A row for each item. `columns` say what stands over a cell and how it is written, `weak`
        whether the item did not come to figures; `about` is what else there is to a sheet."""
        columns = list(columns)
        return cls(
            columns=tuple(heading for heading, _ in columns),
            rows=tuple(tuple(text(item) for _, text in columns) for item in items),
            weak=frozenset(i for i, item in enumerate(items) if weak(item)),
            **about,
        )

    @property
    def headings(self) -> list[tuple[str, str]]:
        """Each column's group, or "", and its name."""
        return [("", each) if isinstance(each, str) else each for each in self.columns]

    @property
    def figures(self) -> pd.DataFrame:
        """What CSV writes."""
        if self.frame is not None:
            return self.frame
        return pd.DataFrame(self.rows, columns=pd.Index(self.names))

    @property
    def names(self) -> list[str]:
        """Each column's group and name, in one line."""
        return [f"{group} {name}".strip() for group, name in self.headings]

    @property
    def grouped(self) -> bool:
        return any(group for group, _ in self.headings)

    @property
    def groups(self) -> list[tuple[str, int, int]]:
        """Neighbouring columns of one group: its name, its first and last column from 0. A column
        without a group stands alone."""
        spans = []
        for _, pairs in groupby(enumerate(self.headings), lambda pair: pair[1][0] or pair[0]):
            members = list(pairs)
            spans.append((members[0][1][0], members[0][0], members[-1][0]))
        return spans

    @property
    def blocks(self) -> list[tuple[str, list[tuple[int, tuple[str, ...]]]]]:
        """Neighbouring rows of one section, each with its position: the section's heading first."""
        titles = self.sections or ("",) * len(self.rows)
        lines = enumerate(zip(titles, self.rows, strict=True))
        return [
            (title, [(position, row) for position, (_, row) in members])
            for title, members in groupby(lines, key=lambda line: line[1][0])
        ]

    def to_rich(self, *, width: int | None = None) -> Group:
        """For a terminal, of `width` columns if that is given. Print it without markup.

        What does not fit gets headings of a word a line, then leaves out columns, and what is too
        wide even so goes on below, with its words again.
        """
        stacked, missing = self._fit(width)
        gap = 0 if stacked and self._width(1, missing=missing) > (width or 0) else 1
        shown = [i for i, names in enumerate(self.headings) if not missing & set(names)]
        abreast = self._abreast(shown, gap, width, stacked=stacked)
        tables = [self._table(columns, gap, stacked=stacked) for columns in abreast if self.rows]
        notes = list(self.notes)
        if missing:
            left_out = [name for name in self.expendable if name in missing]
            notes.append(f"a wider terminal also shows: {', '.join(left_out)}")
        parts = [part for table in tables for part in ("", table)][1:]
        below = ["", *map(Text, notes)] if parts and notes else map(Text, notes)
        return Group(Text(self.title, style="bold"), *parts, *below)

    def _table(self, shown: Sequence[int], gap: int, *, stacked: bool) -> Table:
        """Of these columns, with all rows."""
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
        for i in shown:
            table.add_column(
                "\n".join(self._heading(i, stacked=stacked)),
                justify="left" if i < self.words else "right",
                overflow="fold",
                min_width=self._stub_width if self.sections and i == 0 else None,
            )
        for position, (title, members) in enumerate(self.blocks):
            if position:
                table.add_section()
            if title:
                table.add_row(title, style="bold")
            for i, row in members:
                cells = [row[column] for column in shown]
                cells[0] = f"  {cells[0]}" if title else cells[0]
                table.add_row(*cells, style="yellow" if i in self.weak else None)
        return table

    def _fit(self, width: int | None) -> tuple[bool, set[str]]:
        """Whether headings are stacked, and which columns and groups are left out."""
        missing: set[str] = set()
        if width is None or self._width(1, stacked=False) <= width:
            return False, missing
        for name in self.expendable:
            if self._width(0, missing=missing) <= width:
                break
            missing.add(name)
        return True, missing

    def _abreast(
        self, shown: Sequence[int], gap: int, width: int | None, *, stacked: bool
    ) -> list[list[int]]:
        """The columns that stand beside each other: all of them, or as many as fit with those of
        words in front. What is too wide alone is left to rich, which folds cells."""
        widths = {i: self._column_width(i, stacked=stacked) + gap + 1 for i in shown}
        if width is None or sum(widths.values()) - 1 <= width:
            return [list(shown)]
        words = [i for i in shown if i < self.words]
        while len(words) > 1 and sum(widths[i] for i in words) > width / 2:
            words.pop()
        found = [list(words)]
        for i in shown[len(words) :]:
            if sum(widths[each] for each in (*found[-1], i)) - 1 > width and found[-1] != words:
                found.append(list(words))
            found[-1].append(i)
        return found

    def _width(self, gap: int, *, stacked: bool = True, missing: Iterable[str] = ()) -> int:
        """Of all columns that are not missing, with a space and `gap` more between them."""
        shown = [i for i, names in enumerate(self.headings) if not set(missing) & set(names)]
        return sum(self._column_width(i, stacked=stacked) + 1 + gap for i in shown) - 1

    def _column_width(self, i: int, *, stacked: bool) -> int:
        lines = [*self._heading(i, stacked=stacked), *(row[i] for row in self.rows)]
        return max([*map(len, lines), *[self._stub_width] * (i == 0)])

    @property
    def _stub_width(self) -> int:
        """Of the first column, where sections stand in it."""
        title = max(map(len, self.sections), default=0)
        label = max((len(row[0]) for row in self.rows), default=0)
        return max(min(title, _SECTION_WIDTH), label + 2) if title else 0

    def _heading(self, column: int, *, stacked: bool) -> list[str]:
        """The lines of a heading: its words, or all in one but for what a group divides."""
        group, name = self.headings[column]
        if stacked and group:
            group, name = short_name(group), short_name(name)
        above = group.split(" ") if len(group) > _GROUP_WIDTH else [group] * bool(group)
        return [*above, *re.split(" (?!/)" if stacked and not group else "(?<= /) ", name)]

    def to_markdown(self) -> str:
        """With its title, its notes, and the commands that made it.

        Markdown has neither grouped columns nor sections: a section is a column of its own.
        """
        heads = self.names
        dashes = ["---" if i < self.words else "--:" for i in range(len(heads))]
        rows = list(map(list, self.rows))
        if self.sections:
            heads, dashes = [self.sectioned_by, *heads], ["---", *dashes]
            rows = [[title, *row] for title, row in zip(self.sections, rows, strict=True)]
        lines = [f"**{self.title}**", "", *map(_markdown_row, (heads, dashes, *rows))]
        for note in self.notes:
            lines += ["", note.replace("*", "\\*")]
        if self.command:
            lines += ["", "Made by:", "", *(f"    {each}" for each in self.command.split("\n"))]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """A `<figure>` that can stand in any page; classes and no colours."""
        return templates().get_template("sheet.html").render(sheet=self)

    def to_latex(self) -> str:
        """A `table` environment with a caption and the label `tab:NAME`.

        The preamble must load `booktabs`. At 8 points, twelve columns fit the text of an A4 page.
        """
        longest = max((len(row[0]) for row in self.rows), default=0)
        folded = longest > _LATEX_LABEL_LENGTH
        return templates().get_template("sheet.tex").render(sheet=self, folded=folded) + "\n"


def to_csv(sheets: Sequence[Sheet]) -> str:
    """The figures of all sheets, those of the later ones below those of the first."""
    frames = [sheet.figures for sheet in sheets]
    if len(frames) > 1:  # a name that comes again ("step s", "step s.1") is one column of the whole
        frames = [each.set_axis(_numbered(each.columns), axis=1) for each in frames]
    whole = pd.concat([each for each in frames if len(each)] or frames, ignore_index=True)
    return whole.to_csv(index=False, lineterminator="\n")


def _numbered(names: Iterable[str]) -> list[str]:
    """With numbers behind those that come again, as pandas reads them."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def to_html_page(sheets: Sequence[Sheet], *, title: str) -> str:
    """A page of sheets, in the reader's colours."""
    return templates().get_template("sheets.html").render(sheets=sheets, title=title)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(re.sub(r"([|*])", r"\\\1", cell) for cell in cells) + " |"


def cell(text: Callable[[Any], str], value: Any) -> str:
    """The value's text; of what there is not, `NONE`."""
    return NONE if value is None else text(value)


def short_name(name: str) -> str:
    """The name of a column or a group where there is little room.

    >>> short_name("relative peak"), short_name("published")
    ('rel. peak', 'publ.')
    """
    return " ".join(_SHORT.get(word, word) for word in name.split(" "))


def latex_text(text: str) -> str:
    """`text` with LaTeX's special characters escaped.

    >>> print(latex_text("resnet_50: 10 % – 3 × faster, ≈ 5 MB"))
    resnet\\_50: 10 \\% -- 3 $\\times$ faster, $\\approx$ 5 MB
    """
    return "".join(_LATEX.get(character, character) for character in text)


@cache
def templates() -> jinja2.Environment:
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
