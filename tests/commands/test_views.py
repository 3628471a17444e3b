"""The commands that only read: what they check first, and which records they choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtrade.commands import plot
from memtrade.commands.records import published, records, report, thesis
from memtrade.commands.run import run
from memtrade.errors import MemtradeError, UnknownNameError

MEASURED = Path(__file__).resolve().parents[2] / "results" / "measured"


@pytest.mark.parametrize("command", [plot.peak, plot.time, plot.pareto, plot.max_batch, report])
def test_a_page_into_a_folder_that_is_not_there(command, tmp_path: Path) -> None:
    suffix = "html" if command is report else "pdf"
    with pytest.raises(MemtradeError, match=r"there is no folder .*: make it, or name another"):
        command(MEASURED, output=tmp_path / "none" / f"page.{suffix}")


def test_a_step_is_chosen_by_its_model_or_with_its_batch_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records(MEASURED, step="resnet-50, batch 32", format="markdown")
    alone = capsys.readouterr().out
    assert alone.count("**resnet-50, batch 32, 224") == 1
    assert "batch 128" not in alone
    records(MEASURED, step="resnet-50", format="markdown")
    assert alone.strip() in capsys.readouterr().out
    with pytest.raises(UnknownNameError, match="did you mean 'resnet-50, batch 32'"):
        records(MEASURED, step="resnet-50, batch 31")


def test_the_thesis_tables_take_several_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MemtradeError, match="no records in"):
        thesis(MEASURED, tmp_path)
    thesis(MEASURED, MEASURED.parent / "max_batch", format="markdown")
    table = capsys.readouterr().out
    assert "largest batch measured" in table
    assert "peak MB measured" in table


def test_records_from_before_the_log_say_why_they_have_none() -> None:
    with pytest.raises(MemtradeError, match="does not say what was in use between its steps"):
        records(MEASURED, format="log")


def test_one_thing_is_printed() -> None:
    with pytest.raises(MemtradeError, match="--log and --json both say what is printed"):
        run(log="thesis", json=True)


def test_a_published_table_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    published("thesis_max_batch", format="csv")
    assert capsys.readouterr().out.splitlines()[1].startswith("resnet,50,original,original,87,")
    published("thesis_max_batch", format="markdown")
    assert "| resnet | 50 | lms | swap | 111 | 7282.41 |" in capsys.readouterr().out
    with pytest.raises(MemtradeError, match="did you mean 'thesis_resnet'"):
        published("thesis_resnett")
