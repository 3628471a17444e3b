"""Where the commands print their results."""

from __future__ import annotations

import sys

from rich.console import Console

# Wide enough for every table: into a file or a pipe, nothing is folded.
_FILE_WIDTH = 160


def stdout() -> Console:
    """A console for results: cells are text, never markup."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)
