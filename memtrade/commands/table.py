"""`memtrade table`: the records of a folder, side by side. Only reads."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Literal

from memtrade.commands.screen import show
from memtrade.errors import MemtradeError
from memtrade.results.records import DamagedRecordWarning, load_records
from memtrade.results.tables import compare, to_csv, to_markdown


def table(
    results: Path = Path("runs"),
    /,
    *,
    format: Literal["terminal", "markdown", "csv"] = "terminal",
) -> int:
    """Show the records of a folder side by side, one table per model and size.

    Parameters
    ----------
    results
        A folder of records.
    format
        csv has all columns, in bytes and seconds.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamagedRecordWarning)
        records = load_records(results)
    for warning in caught:
        print(f"memtrade: warning: {warning.message}", file=sys.stderr)
    if not records:
        raise MemtradeError(f"there are no records in {str(results)!r}: make some: memtrade run")
    if format == "csv":
        print(to_csv(records), end="")
        return 0
    if format == "markdown":
        print("\n".join(to_markdown(comparison) for comparison in compare(records)), end="")
    else:
        show(compare(records))
    return 0
