"""`memtrade table`: the records of a folder, side by side. Only reads."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Literal

from memtrade.commands.screen import show
from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.models import make_model
from memtrade.results.records import DamagedRecordWarning, Record, load_records
from memtrade.results.tables import compare, to_csv, to_markdown


def table(
    results: Path = Path("runs"),
    /,
    *,
    step: str | None = None,
    format: Literal["terminal", "markdown", "csv"] = "terminal",
) -> int:
    """Show the records of a folder side by side, one table per model and size.

    Parameters
    ----------
    results
        A folder of records.
    step
        Only this step's records, by its name in the titles, such as resnet-50.
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
    if step is not None:
        names = {_step_name(record) for record in records}
        if step not in names:
            raise UnknownNameError("step", step, names)
        records = [record for record in records if _step_name(record) == step]
    if format == "csv":
        print(to_csv(records), end="")
        return 0
    if format == "markdown":
        print("\n".join(to_markdown(comparison) for comparison in compare(records)), end="")
    else:
        show(compare(records))
    return 0


def _step_name(record: Record) -> str:
    return make_model(record.spec.model, record.spec.model_options).name
