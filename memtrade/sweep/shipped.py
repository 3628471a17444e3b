"""The sweep files that come with memtrade, `memtrade/sweeps/*.toml`, wherever a command runs.

    memtrade sweep thesis                 by name
    memtrade sweep sweeps/thesis.toml     as records and pages name it

A file of one's own under that name comes first.
"""

from pathlib import Path

from memtrade.errors import UnknownNameError
from memtrade.files import packaged_file

# In whose name pages look for them.
_NAMED_FOLDERS = (Path(), Path("sweeps"))


def sweep_names(table: str) -> tuple[str, ...]:
    """Those that have blocks [[table]]."""
    header = f"[[{table}]]"
    return tuple(
        sorted(
            file.stem
            for file in _folder().glob("*.toml")
            if header in file.read_text(encoding="utf-8").splitlines()
        )
    )


def sweep_file(path: Path, *, table: str) -> Path:
    """`path`; where no such file is, the one that comes with memtrade under its name.

    Args:
        table: which blocks the file should have, "grid" or "pipeline".

    Raises:
        UnknownNameError: a mere name, and none of those that come along.
    """
    named = path.suffix in ("", ".toml") and path.parent in _NAMED_FOLDERS
    if path.exists() or not named:
        return path
    if path.stem in sweep_names(table):
        return _folder() / f"{path.stem}.toml"
    if not path.suffix:
        raise UnknownNameError("sweep", str(path), sweep_names(table))
    return path


def _folder() -> Path:
    # Installed packages lie in folders: measuring starts children from them.
    return Path(str(packaged_file("sweeps")))
