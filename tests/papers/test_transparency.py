"""Training in several ways, without training: what the page says of the runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from memtrade.papers import transparency
from memtrade.papers.transparency import GPIPE, WAYS, TrainedRun, is_same, known_runs, main


def trained(way: str, *, last: float = 0.1, digest: str = "a") -> TrainedRun:
    return TrainedRun(way, [2.0, last], [0.5, 0.975], digest, 700_000_000, 1438)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def run(way: str) -> TrainedRun:
        asked.append(way)
        return trained(way, last=0.2, digest="b") if way == GPIPE else trained(way)

    monkeypatch.setattr(transparency, "run", run)
    return asked


def test_a_page_a_picture_and_what_was_run_already(ran: list[str], tmp_path: Path):
    words = [str(tmp_path / "out"), str(tmp_path / "curves.png")]
    assert main(words) == 0
    assert ran == list(WAYS)
    page = (tmp_path / "out" / "transparency.md").read_text()
    assert "| optimal | 700.0 | 2.0000 | 0.1000 | 2.50 | yes |" in page
    assert "| gpipe | 700.0 | 2.0000 | 0.2000 | 2.50 | not promised |" in page
    assert "| ImageNet, batch 256, published | 21.99 ± 0.13 | 22.02 ± 0.11 | 22.08 ± 0.06 |" in page
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert main(words) == 0
    assert len(ran) == len(WAYS)  # none again
    assert "not run yet" not in page


def test_the_page_says_what_is_missing(tmp_path: Path):
    transparency.show([trained("plain"), trained("ome")], tmp_path, tmp_path / "curves.png")
    page = (tmp_path / "transparency.md").read_text()
    assert "not run yet: gpipe, checkpoints, lms, optimal" in page
    assert "| digits, batch 48, here | - | 2.50 | - |" in page


def test_other_settings_are_run_anew(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    transparency.save([trained("plain")], tmp_path)
    assert list(known_runs(tmp_path)) == ["plain"]
    monkeypatch.setattr(transparency, "SETTINGS", transparency.SETTINGS | {"epochs": 1})
    assert known_runs(tmp_path) == {}


def test_a_strategy_that_breaks_its_promise_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        transparency, "run", lambda way: trained(way, digest="b" if way == "ome" else "a")
    )
    assert main([str(tmp_path), str(tmp_path / "curves.png")]) == 1
    assert "| 2.50 | NO |" in (tmp_path / "transparency.md").read_text()


def test_losses_and_variables_both_count():
    one = trained("plain")
    assert is_same(one, trained("lms"))
    assert not is_same(one, trained("lms", last=0.3))
    assert not is_same(one, dataclasses.replace(one, digest="c"))
