"""What is left within the control groups: the least from the own one up to the root."""

from pathlib import Path

import psutil
import pytest

from memtrade.measure import cgroup, host

GB = 10**9


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own = tmp_path / "own"
    own.write_text("4:memory:/jobs/mine\n0::/jobs/mine\n")
    monkeypatch.setattr(cgroup, "ROOT", tmp_path / "fs")
    monkeypatch.setattr(cgroup, "OWN", own)
    return tmp_path / "fs"


def group(folder: Path, limit: str, used: int, cached: int = 0, *, version: int = 2) -> None:
    """Writes what the kernel shows of a group. Half of the cached files have been read lately."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current")
    names = names if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, str(used)), strict=True):
        (folder / name).write_text(value + "\n")
    of = "" if version == 2 else "total_"
    lines = (f"{of}{each}_file {cached // 2}" for each in ("active", "inactive"))
    (folder / "memory.stat").write_text("anon 1\n" + "\n".join(lines) + "\n")


def free(available: int, monkeypatch: pytest.MonkeyPatch) -> int:
    memory = psutil.virtual_memory()._replace(available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    return host.free_memory_bytes()


def test_a_neighbour_in_the_parents_group_counts(root, monkeypatch):
    group(root / "jobs/mine", str(8 * GB), GB)
    group(root / "jobs", str(10 * GB), 7 * GB)
    assert free(20 * GB, monkeypatch) == 3 * GB
    assert free(2 * GB, monkeypatch) == 2 * GB


def test_cached_files_are_given_up(root, monkeypatch):
    group(root / "jobs/mine", str(8 * GB), 6 * GB, cached=4 * GB)
    assert free(20 * GB, monkeypatch) == 6 * GB


def test_version_1_says_no_limit_by_a_number(root, monkeypatch):
    group(root / "memory/jobs/mine", str((1 << 63) - 4096), 6 * GB, version=1)
    assert free(20 * GB, monkeypatch) == 20 * GB
    group(root / "memory/jobs", str(5 * GB), 4 * GB, cached=GB, version=1)
    assert free(20 * GB, monkeypatch) == 2 * GB


def test_within_a_container_the_group_lies_at_the_root(root, monkeypatch):
    group(root, str(4 * GB), GB)
    assert free(20 * GB, monkeypatch) == 3 * GB


def test_a_group_that_is_full_leaves_nothing(root, monkeypatch):
    group(root / "jobs/mine", str(GB), 2 * GB)
    assert free(20 * GB, monkeypatch) == 0


def test_without_control_groups_the_machine_decides(root, monkeypatch):
    assert cgroup.limited_groups() == []
    assert free(20 * GB, monkeypatch) == 20 * GB
