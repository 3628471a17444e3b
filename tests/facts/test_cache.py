"""The cache of learned facts: kept, shared between processes, never in the way."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import stat
from pathlib import Path

import msgspec
import pytest

from memtrade.facts import cache
from memtrade.facts.asking import CopyRates
from memtrade.facts.cache import FactsFile
from memtrade.facts.learned import Learned
from memtrade.facts.surroundings import Surroundings, surroundings

HERE = Surroundings(
    device="cpu", tensorflow="2.21.0", cpu="a", onednn="1", instructions="", threads=2
)
RATES = CopyRates(
    overhead_seconds=1e-5,
    device_to_host_bytes_per_s=1e9,
    host_to_device_bytes_per_s=2e9,
    onednn=True,
)


def learned(key: str, seconds: float = 1.0) -> Learned:
    return Learned(
        key=key, kernel="Relu 2x2", requests=((16, 0),), seconds=seconds, source="asked",
        on="2026-01-01",
    )  # fmt: skip


def test_what_is_added_is_read_and_the_later_of_two_counts(tmp_path):
    file = FactsFile(HERE, tmp_path)
    assert not file.read().table
    file.add([learned("a"), learned("b")], RATES)
    file.add([learned("a", seconds=2.0)])
    kept = FactsFile(HERE, tmp_path).read()
    assert kept.table == {"a": learned("a", seconds=2.0), "b": learned("b")}
    assert kept.rates == RATES


@pytest.mark.parametrize(
    "change", [{"onednn": "0"}, {"threads": 1}, {"cpu": "b"}, {"instructions": "SSE41"}]
)
def test_other_surroundings_know_nothing_of_it(tmp_path, change):
    FactsFile(HERE, tmp_path).add([learned("a")])
    other = msgspec.structs.replace(HERE, **change)
    assert not FactsFile(other, tmp_path).read().table


@pytest.mark.parametrize("damage", [b'{"key": "a', b"\x00\xff", b'{"key": 1}\n'])
def test_a_damaged_file_is_set_aside_named_and_begun_anew(tmp_path, caplog, damage):
    file = FactsFile(HERE, tmp_path)
    file.add([learned("a")])
    with file.path.open("ab") as opened:
        opened.write(damage)
    with caplog.at_level(logging.WARNING, "memtrade"):
        assert not file.read().table
    aside = file.path.with_suffix(".damaged")
    assert aside.exists()
    assert str(aside) in caplog.text
    assert len(caplog.records) == 1
    file.add([learned("b")])
    assert file.read().table == {"b": learned("b")}


def test_a_folder_that_cannot_be_written_to_costs_one_line(tmp_path, caplog):
    folder = tmp_path / "facts"
    folder.write_text("a file where the folder should be")
    file = FactsFile(HERE, folder)
    with caplog.at_level(logging.WARNING, "memtrade"):
        assert not file.read().table
        file.add([learned("a")])
    assert len(caplog.records) == 1
    assert "not kept" in caplog.text
    assert not stat.S_ISDIR(folder.stat().st_mode)


def _add_many(folder: Path, name: str) -> None:
    for i in range(200):
        FactsFile(HERE, folder).add([learned(f"{name}{i}")])


def test_two_processes_that_learn_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_add_many, args=(tmp_path, name)) for name in "ab"]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert len(FactsFile(HERE, tmp_path).read().table) == 400


def test_a_file_that_another_process_began_meanwhile_has_one_head(tmp_path, monkeypatch):
    """Both found it empty, and waited for the lock."""
    locked, late = cache._locked, iter([True])

    @contextlib.contextmanager
    def later(file, *, exclusive):
        if next(late, False):
            FactsFile(HERE, tmp_path).add([learned("first")])
        with locked(file, exclusive=exclusive):
            yield

    monkeypatch.setattr(cache, "_locked", later)
    FactsFile(HERE, tmp_path).add([learned("second")])
    assert len(FactsFile(HERE, tmp_path).read().table) == 2


def test_the_surroundings_are_those_of_the_environment():
    given = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_NUM_INTRAOP_THREADS": "3"}
    found = surroundings("cpu", "2.21.0", given)
    assert (found.onednn, found.instructions, found.threads) == ("0", "", 3)
    assert found.key != surroundings("cpu", "2.21.0", given | {"ONEDNN_MAX_CPU_ISA": "AVX"}).key
