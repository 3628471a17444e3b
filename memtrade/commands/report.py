"""`memtrade report`: the records of a folder as one HTML page. Only reads."""

from pathlib import Path

from memtrade.commands.reading import (
    check_folder,
    read_records,
    read_searches,
    write_output,
)
from memtrade.errors import MemtradeError
from memtrade.files import shown_path
from memtrade.measure.flags import CommandLine
from memtrade.papers.thesis import thesis_report


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
