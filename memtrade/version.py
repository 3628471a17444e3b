"""Which source this is. Records keep it: the same trial of another source is another one.

An installed package has the version that setuptools-scm took from git when it was built. In a
checkout, files change after that, so git is asked each time: the last commit that touched the
package, and a digest of what is not committed. Commits of results and pages change no figure, and
leave it as it is.

    0.1+g37779f3ab                   built at that commit, or a checkout of it
    0.1+g37779f3ab.d4c2f0a           a checkout with changes of one's own
    0.1                              built from a folder without git
"""

import functools
import hashlib
import importlib.metadata
import subprocess
from pathlib import Path

# Where neither git nor an installation tells: a folder that was copied.
UNKNOWN = "0+unknown"

_PACKAGE = Path(__file__).resolve().parent


@functools.cache
def version() -> str:
    return version_of(_PACKAGE)


def version_of(package: Path) -> str:
    """The version of the package in this folder."""
    built = _built()
    checkout = package.parent
    if not ((checkout / ".git").exists() and (checkout / "pyproject.toml").exists()):
        return built
    try:
        commit = _git(checkout, "log", "-1", "--format=%h", "--abbrev=9", "--", package.name)
        changes = _git(checkout, "diff", "HEAD", "--", package.name)
        added = _git(checkout, "ls-files", "-o", "--exclude-standard", "--", package.name)
    except (OSError, subprocess.SubprocessError):  # no git, or not its owner's
        return built
    local = f"g{commit.decode().strip()}"
    if changes or added:
        digest = hashlib.sha256(changes)
        for name in sorted(added.split(b"\n")):
            path = checkout / name.decode()
            digest.update(name + (path.read_bytes() if path.is_file() else b""))
        local += f".d{digest.hexdigest()[:6]}"
    return f"{built.partition('+')[0]}+{local}"


def _built() -> str:
    try:
        return importlib.metadata.version("memtrade")
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


def _git(folder: Path, *words: str) -> bytes:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
