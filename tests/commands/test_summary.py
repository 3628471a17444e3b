"""`memtrade summary` as one types it."""

from __future__ import annotations

import csv

from tests.commands.conftest import SMALL, Run


def test_bytes_by_layer(run: Run) -> None:
    status, out, _ = run("summary", *SMALL, "--optimizer", "momentum", "--format", "csv")
    assert status == 0
    rows = {row["name"]: row for row in csv.DictReader(out.splitlines())}
    heaviest = max(rows.values(), key=lambda row: int(row["weight_bytes"]))
    assert heaviest["name"].endswith("/conv")
    assert int(heaviest["weight_bytes"]) == int(heaviest["slot_bytes"]) == 4 * 3 * 3 * 512 * 512
    assert sum(row["at_peak"] == "True" for row in rows.values()) == 1


def test_a_table_of_the_largest_and_by_line(run: Run) -> None:
    status, out, _ = run("summary", *SMALL, "--top", "3")
    assert status == 0
    assert "resnet-18, batch 16" in out
    assert "more are in the sums" in out
    _, by_line, _ = run("summary", *SMALL, "--by", "source", "--format", "markdown")
    assert "memtrade/models/resnet.py:" in by_line


def test_no_rows(run: Run) -> None:
    status, _, err = run("summary", *SMALL, "--top", "0")
    assert (status, err) == (2, "memtrade: --top must be at least 1, not 0\n")
