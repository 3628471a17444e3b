"""How the commands that only read get their records, and write what they made of them."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from memtrade.commands.progress import say
from memtrade.errors import MemtradeError
from memtrade.files import leads_elsewhere, write_whole
from memtrade.measure.max_batch import MaxBatchRecord
from memtrade.measure.records import DamagedRecordWarning, Record, load_records
from memtrade.results.series import FORMATS

T = TypeVar("T")

HOW_TO_MAKE_SOME = "make some: memtrade run, or memtrade sweep thesis"


def read_records(folder: Path) -> list[Record]:
    """The records of a folder; damaged ones are named on stderr and left out.

    Raises MemtradeError where there is no such folder, or no record in it.
    """
    return read_kind(folder, load_records, "records", HOW_TO_MAKE_SOME)


def read_kind(folder: Path, load: Callable[[Path], list[T]], kind: str, how: str) -> list[T]:
    """What `load` finds in a folder: records of a kind, and how to make some; see above."""
    if folder.is_file():
        raise MemtradeError(f"{str(folder)!r} is a file: name the folder of {kind} that it is in")
    if not folder.is_dir():
        raise MemtradeError(f"there is no folder of {kind} {str(folder)!r}: {how}")
    with warnings_on_stderr():
        records = load(folder)
    if not records:
        raise MemtradeError(f"there are no {kind} in {str(folder)!r}: {how}")
    return records


def read_searches(folder: Path) -> list[MaxBatchRecord]:
    """The searches for the largest batch in a folder, which may have none."""
    with warnings_on_stderr():
        return MaxBatchRecord.load(folder)


@contextlib.contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Shows what the views had to leave out, one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamagedRecordWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"memtrade: warning: {' '.join(message.split())}", file=sys.stderr)


def check_folder(path: Path) -> None:
    """Raises MemtradeError unless the file can be written; it is tried, and leaves no trace."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise MemtradeError(f"there is no folder {str(path.parent)!r}: make it, or name another")
    with _that_can_be_written(path):
        if path.exists():
            path.open("ab").close()
        if not leads_elsewhere(path):
            TemporaryFile(dir=folder).close()


def picture_format(path: Path | None, what: str = "a plot", *, pages: bool = False) -> str:
    """The format that a picture's suffix asks for: one of `FORMATS` or, where there are `pages`,
    html; "" where none is wanted.

    Raises:
        MemtradeError: none of these, and `what` is the file's; or the folder is not there.
    """
    if path is None:
        return ""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in (*FORMATS, *["html"] * pages):
        raise MemtradeError(
            f"{what} is a file in {'.html, ' * pages}.pdf, .svg or .png, not {path.name!r}: "
            "name another"
        )
    check_folder(path)
    return kind


def write_output(path: Path, content: bytes, *, alone: bool = False) -> None:
    """Writes a file whole and says where: on stderr, or on stdout if the file is `alone` and no
    table is printed there. Raises MemtradeError where it cannot be written.
    """
    with _that_can_be_written(path):
        write_whole(path, content)
    (print if alone else say)(f"wrote {path}")


@contextlib.contextmanager
def _that_can_be_written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MemtradeError(f"cannot write {path}: {error.strerror}") from error
