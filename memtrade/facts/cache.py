"""The facts that were learned, in the user's cache folder: one file for each surroundings.

    facts/3f2a….jsonl     {"surroundings": ...}      the first line
                          {"key": ..., ...}          one line a kernel; of two, the later one counts

Lines are appended under a lock, whole, so that two processes that learn at once lose nothing. What
cannot be read is set aside under another name and learned anew. A folder that cannot be written to
costs only the keeping.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec
import platformdirs

from memtrade.facts.asking import CopyRates
from memtrade.facts.learned import Learned
from memtrade.facts.surroundings import Surroundings

try:
    import fcntl
except ImportError:  # no locks on Windows: there, one process at a time
    fcntl = None

log = logging.getLogger("memtrade")


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A file's first line."""

    surroundings: Surroundings


class CachedFacts(msgspec.Struct):
    """What is kept of one surroundings."""

    table: dict[str, Learned] = {}
    rates: CopyRates | None = None


def folder() -> Path:
    return platformdirs.user_cache_path("memtrade") / "facts"


class FactsFile:
    """The file of one surroundings. Opens nothing until it is read or added to."""

    def __init__(self, where: Surroundings, parent: Path | None = None):
        self.where = where
        self.path = (parent or folder()) / f"{where.key}.jsonl"

    def read(self) -> CachedFacts:
        """What is kept; nothing where there is no file, or a damaged one, which is set aside."""
        try:
            with self.path.open("rb") as file, _locked(file, exclusive=False):
                lines = file.read().splitlines()
        except OSError:
            return CachedFacts()
        try:
            return _decode(lines, self.where)
        except (msgspec.DecodeError, ValueError) as error:
            aside = self.path.with_suffix(".damaged")
            with contextlib.suppress(OSError):
                self.path.replace(aside)
            log.warning("the facts in %s are damaged (%s): set aside, learned anew", aside, error)
            return CachedFacts()

    def add(self, learned: Iterable[Learned], rates: CopyRates | None = None) -> None:
        """Keeps more facts. Says so in one line where it cannot."""
        lines = [msgspec.json.encode(each) for each in (*filter(None, [rates]), *learned)]
        if not lines:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file, _locked(file, exclusive=True):
                # Another process may have written since it was opened; and all must be in the file
                # before the lock is given back.
                if not file.seek(0, os.SEEK_END):
                    lines.insert(0, msgspec.json.encode(Head(surroundings=self.where)))
                file.write(b"".join(line + b"\n" for line in lines))
                file.flush()
        except OSError as error:
            log.warning(
                "what was learned of kernels is not kept: %s (%s)", error.strerror, self.path.parent
            )


def all_files() -> list[tuple[Path, Surroundings, CachedFacts]]:
    """Every readable file, by name."""
    found = []
    for path in sorted(folder().glob("*.jsonl")):
        try:
            lines = path.read_bytes().splitlines()
            where = msgspec.json.decode(lines[0], type=Head).surroundings
            found.append((path, where, _decode(lines, where)))
        except (OSError, msgspec.DecodeError, ValueError, IndexError):
            log.warning("the facts in %s cannot be read", path)
    return found


def _decode(lines: list[bytes], where: Surroundings) -> CachedFacts:
    facts = CachedFacts(table={})
    if not lines:
        return facts
    if msgspec.json.decode(lines[0], type=Head).surroundings != where:
        raise ValueError("its first line names other surroundings")
    for line in lines[1:]:
        if b'"type":"rates"' in line:
            facts.rates = msgspec.json.decode(line, type=CopyRates)
        else:
            learned = msgspec.json.decode(line, type=Learned)
            facts.table[learned.key] = learned
    return facts


@contextlib.contextmanager
def _locked(file: IO[bytes], *, exclusive: bool) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
