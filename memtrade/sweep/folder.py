"""One sweep at a time writes into a folder.

Two would run the same trials, and disturb each other's times without a record that says so. The
folder itself is locked, so nothing has to be cleaned up: however a sweep ends, its lock goes with
its process.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from memtrade.errors import MemtradeError


@contextlib.contextmanager
def sole_sweep(folder: Path) -> Iterator[None]:
    """Holds the folder, which is made if it is not there, for one sweep.

    Raises:
        MemtradeError: another sweep holds it, or it cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise MemtradeError(f"cannot use the folder {str(folder)!r}: {error.strerror}") from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MemtradeError(
            f"another sweep writes into {str(folder)!r}: wait for its end, or choose another "
            "folder with --results"
        ) from None
    except OSError as error:
        raise MemtradeError(
            f"the folder {str(folder)!r} cannot be locked for one sweep ({error.strerror}): choose "
            "one on a local disk with --results"
        ) from error
