"""`memtrade summary` as one types it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from memtrade.results.sheets import NONE
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
    assert out.count("◄") in (0, 2)  # in its row and in the note, or in neither
    _, by_line, _ = run("summary", *SMALL, "--by", "source", "--format", "markdown")
    assert "memtrade/models/resnet.py:" in by_line


def test_a_plans_decisions_by_layer_and_by_line(run: Run) -> None:
    _, out, _ = run("plan", *SMALL, "--strategy", "lms", "--by", "layer")
    [row] = [line for line in out.splitlines() if line.startswith("stem/conv1/conv ")]
    kept, recomputed, swapped = row.split()[1:]
    assert (kept, recomputed) == (NONE, NONE)
    _, by_tensor, _ = run("plan", *SMALL, "--strategy", "lms")
    [stem] = [line for line in by_tensor.splitlines() if "stem/conv1/conv/Conv2D:0" in line]
    assert (stem.split()[0], stem.split()[-1]) == ("swapped", swapped)
    _, by_line, _ = run("plan", *SMALL, "--strategy", "lms", "--by", "source")
    assert "memtrade/models/resnet.py:" in by_line


def test_a_timeline_by_layer(run: Run, tmp_path: Path) -> None:
    status, _, _ = run("timeline", *SMALL, "--by", "layer", "--output", "layers.html")
    assert status == 0
    page = (tmp_path / "layers.html").read_text(encoding="utf-8")
    assert re.search(r'"name":"(stem|stage)', page)
    assert "Jump to the peak of" in page


def test_no_rows(run: Run) -> None:
    status, _, err = run("summary", *SMALL, "--top", "0")
    assert (status, err) == (2, "memtrade: --top must be at least 1, not 0\n")
