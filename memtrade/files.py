"""Files: there whole or not at all, how they are named, and those that come with memtrade."""

import os
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import msgspec


def packaged_file(path: str) -> Traversable:
    """A file or a folder that comes with memtrade, such as "devices/arena.toml"."""
    return resources.files("memtrade") / path


def packaged_toml(path: str, kind: Any = dict[str, Any]) -> Any:
    """What a TOML file that comes with memtrade holds, as `kind`."""
    return msgspec.toml.decode(packaged_file(path).read_bytes(), type=kind)


def write_whole(path: Path, data: bytes) -> None:
    """Makes the file and its folder; whoever reads meanwhile sees the old file or the new one. What
    is no file of its own, such as a pipe, is written to as it is.

    Raises:
        OSError: it cannot be written. Then nothing is left behind.
    """
    if leads_elsewhere(path):
        path.write_bytes(data)
        return
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def leads_elsewhere(path: Path) -> bool:
    """Whether it is a link, or there and no file."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def shown_apart(one: Path, other: Path) -> tuple[str, str]:
    """Two folders as `shown_path` has them, with as many folders above as tell them apart.

    >>> shown_apart(Path("/old/runs"), Path("/new/runs"))
    ('old/runs', 'new/runs')
    """
    shown = shown_path(one), shown_path(other)
    parts = [path.resolve().parts for path in (one, other)]
    for count in range(2, max(map(len, parts)) + 1):
        if shown[0] != shown[1]:
            break
        shown = str(Path(*parts[0][-count:])), str(Path(*parts[1][-count:]))
    return shown


def shown_path(path: Path) -> str:
    """A file or folder as pages and records name it: without where this machine keeps it."""
    if not path.is_absolute():
        return str(path)
    inside = path.is_relative_to(Path.cwd())
    return str(path.relative_to(Path.cwd())) if inside else path.name
