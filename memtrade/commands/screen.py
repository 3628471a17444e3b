"""Where the commands print their results."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from memtrade.results.tables import Comparison, to_rich

# Wide enough for every table: into a file or a pipe, nothing is folded.
_FILE_WIDTH = 160


def stdout() -> Console:
    """A console for results: cells are text, never markup."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def show(comparisons: Sequence[Comparison]) -> None:
    """Prints one table each."""
    console = stdout()
    for position, comparison in enumerate(comparisons):
        if position:
            console.print()
        console.print(to_rich(comparison, width=console.width))
