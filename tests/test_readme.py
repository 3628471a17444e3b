"""What the README shows is what its commands print."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from docs.fill import BLOCK, fill

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tables_come_from_the_records() -> None:
    commands = [command for _, command, _ in BLOCK.findall(README)]
    assert any(command.startswith("memtrade table results/benchmark") for command in commands)
    assert any(command.startswith("memtrade table thesis") for command in commands)


def test_every_block_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    fresh = fill(README)
    for old, new in zip(BLOCK.finditer(README), BLOCK.finditer(fresh), strict=True):
        assert new[0] == old[0], f"the README shows old figures of {old[2]!r}: make readme"
    assert fresh == README


def test_a_block_gets_what_its_command_prints_and_the_rest_stays() -> None:
    text = "a\n<!-- begin: python -c 'print(6 * 7)' -->\n41\n<!-- end -->\nb\n"
    filled = "a\n<!-- begin: python -c 'print(6 * 7)' -->\n\n42\n\n<!-- end -->\nb\n"
    assert fill(text) == filled
    assert fill(filled) == filled


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        fill("<!-- begin: python -c 'raise SystemExit(1)' -->\n<!-- end -->\n")
