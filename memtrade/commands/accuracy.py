"""`memtrade accuracy`: how far peaks and times were off that had been predicted. Only reads."""

import shlex
from pathlib import Path

from memtrade.commands.reading import read_records
from memtrade.commands.screen import Form, show
from memtrade.files import shown_path
from memtrade.results.accuracy import accuracy as rows_of
from memtrade.results.accuracy import to_sheet


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
    rows = rows_of([record for folder in folders for record in read_records(folder)])
    words = ["memtrade", "accuracy", *map(shown_path, folders), "--format", "markdown"]
    show([to_sheet(rows, command=shlex.join(words))], format)
    return 0
