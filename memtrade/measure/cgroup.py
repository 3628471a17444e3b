"""The control groups that this process is in: what memory they may take, and what is left of it.

    /sys/fs/cgroup/system.slice/docker-1a2b.scope    memory.max, memory.current, memory.stat
                  /system.slice                      the same: counts all that is below it
                  /                                  no limit

Linux kills within the group whose limit is reached first, so the least that is left anywhere from
the own group up to the root is what there is. Version 2 and, under /sys/fs/cgroup/memory, version 1
(the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).
"""

from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


class _Version(NamedTuple):
    """Where one version keeps what, and what it calls cached files, which are given up first."""

    controller: str  # the folder below ROOT
    limit: str
    used: str
    given_up: tuple[str, ...]


_VERSIONS = (
    _Version("", "memory.max", "memory.current", ("active_file", "inactive_file")),
    _Version(
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
)


class Group(NamedTuple):
    """A group with a limit, and what it uses beside cached files."""

    limit_bytes: int
    used_bytes: int


def limited_groups() -> list[Group]:
    """The groups with a limit that this process counts for, its own first. None elsewhere than on
    Linux, and none that cannot be read."""
    return [
        group
        for version in _VERSIONS
        for folder in (own_folder(version.controller) / version.limit).parents
        if folder.is_relative_to(ROOT / version.controller)
        if (group := _read(folder, version))
    ]


def own_folder(controller: str) -> Path:
    """The folder of this process's group: of version 2 for "", else of a version 1 controller."""
    root = ROOT / controller
    try:
        lines = OWN.read_text(encoding="utf-8").splitlines()
    except OSError:
        return root
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            # Within a container, the path is the host's, and the group is mounted at the root.
            own = root / path.lstrip("/")
            return own if own.is_dir() else root
    return root


def numbers(path: Path) -> dict[str, int]:
    """What a file of lines such as "oom_kill 3" says; nothing where it cannot be read."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(" ") for line in lines)
    return {name: int(value) for name, _, value in pairs if value.strip().isdigit()}


def _read(folder: Path, version: _Version) -> Group | None:
    try:
        limit, used = (
            (folder / name).read_text(encoding="ascii").strip()
            for name in (version.limit, version.used)
        )
    except OSError:
        return None
    # "max", or, in version 1, a number near 2^63.
    if not limit.isdigit() or int(limit) >= 1 << 60:
        return None
    told = numbers(folder / "memory.stat")
    given_up = sum(told.get(name, 0) for name in version.given_up)
    return Group(int(limit), max(int(used) - given_up, 0))
