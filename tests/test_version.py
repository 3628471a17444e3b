"""Which source it is: in a checkout, with changes, without git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import memtrade
from memtrade import version


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a repository of its own."""
    made = tmp_path / "memtrade"
    made.mkdir()
    (made / "a.py").write_text("a = 1")
    (tmp_path / "pyproject.toml").write_text("")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return made


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e")
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "c")


def test_a_checkout_is_its_last_commit_that_touched_the_package(package: Path) -> None:
    head = git(package.parent, "rev-parse", "--short=9", "HEAD")
    assert version.version_of(package).endswith(f"+g{head}")
    (package.parent / "results.md").write_text("figures")
    commit(package.parent)
    assert version.version_of(package).endswith(f"+g{head}")
    (package / "a.py").write_text("a = 2")
    commit(package.parent)
    assert not version.version_of(package).endswith(f"+g{head}")


def test_changes_that_are_not_committed_are_told_apart(package: Path) -> None:
    seen = [version.version_of(package)]
    for name, text in (("a.py", "a = 2"), ("a.py", "a = 3"), ("b.py", "b = 1"), ("b.py", "b = 2")):
        (package / name).write_text(text)
        seen.append(version.version_of(package))
    assert len(set(seen)) == len(seen)
    (package / "b.py").unlink()
    (package / "a.py").write_text("a = 1")
    assert version.version_of(package) == seen[0]


def test_a_folder_without_git_has_what_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    monkeypatch.setattr(version, "_built", lambda: "0.1+g0123456")
    assert version.version_of(tmp_path / "elsewhere" / "memtrade") == "0.1+g0123456"
    monkeypatch.setenv("PATH", "")
    assert version.version_of(package) == "0.1+g0123456"


def test_the_package_says_its_version() -> None:
    assert memtrade.__version__ == version.version()
