"""Sheets: a titled table of finished text with notes, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

NONE = "-"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What a command ends in.

    Attributes:
        words: so many columns from the left hold words, the others numbers.
        weak: positions of the rows that did not come to figures.
        notes: explain what the cells leave open.
        command: what made it, for Markdown.
    """

    title: str
    columns: tuple[str, ...]
    words: int
    rows: tuple[tuple[str, ...], ...]
    weak: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    command: str = ""

    def to_rich(self) -> Group:
        """For a terminal. Print it with a console without markup."""
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        for position, name in enumerate(self.columns):
            justify = "left" if position < self.words else "right"
            table.add_column(name.replace(" / ", " /\n"), justify=justify, overflow="fold")
        for position, row in enumerate(self.rows):
            table.add_row(*row, style="yellow" if position in self.weak else None)
        return Group(
            Text(self.title, style="bold"), table, "", *(Text(note) for note in self.notes)
        )

    def to_markdown(self) -> str:
        """With its title, its notes, and the command that made it."""
        dashes = ("---" if i < self.words else "--:" for i in range(len(self.columns)))
        lines = [
            f"**{self.title}**",
            "",
            markdown_row(self.columns),
            markdown_row(dashes),
            *map(markdown_row, self.rows),
        ]
        for note in self.notes:
            lines += ["", note]
        if self.command:
            lines += ["", "Made by:", "", f"    {self.command}"]
        return "\n".join(lines) + "\n"


def markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
