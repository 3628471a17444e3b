"""The data files that come with memtrade, by their paths in the package."""

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import msgspec


def packaged_file(path: str) -> Traversable:
    """A file or a folder, such as "devices/arena.toml"."""
    return resources.files("memtrade") / path


def packaged_toml(path: str, kind: Any = dict[str, Any]) -> Any:
    """What a TOML file holds, as `kind`."""
    return msgspec.toml.decode(packaged_file(path).read_bytes(), type=kind)
