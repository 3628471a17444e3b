"""Notebooks run, show what the records say now, and hold no figure of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from notebooks.run import execute

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# A number that could be a result: with a decimal point, or of three digits and more. What may stand
# in a cell is listed: batch sizes, widths and resolutions of pictures, 100 that makes percent, and
# the sizes of an allocator and of a device.
RESULT = re.compile(r"(?<![\w.])(?:\d+\.\d+|\d{3,})(?![\w.])")
ALLOWED = {"128", "100", "110", "132", "512", "780"}


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["explore", "keras_batch_size", "thesis_tables"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_what_is_stored_is_what_it_shows(path: Path) -> None:
    fresh = execute(path)
    stored = nbformat.read(path, as_version=4)
    for position, (old, new) in enumerate(zip(stored.cells, fresh.cells, strict=True)):
        assert texts(old) == texts(new), f"cell {position} shows old figures: make notebooks"
    assert any(shown for cell in fresh.cells for shown in texts(cell))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_holds_no_figures_of_its_own(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert set(RESULT.findall(cell.source)) <= ALLOWED, cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_without_warnings(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        streams = [o.name for o in cell.get("outputs", []) if o.output_type == "stream"]
        assert "stderr" not in streams


def test_a_cell_that_fails_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "failing.ipynb"
    cell = nbformat.v4.new_code_cell("raise ValueError('planted')")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    with pytest.raises(CellExecutionError, match="planted"):
        execute(path)


def texts(cell: Any) -> list[str]:
    """What a cell shows as text or tables. Pictures differ with the fonts of a machine.

    What is printed is one text, in however many pieces it came.
    """
    outputs = cell.get("outputs", [])
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    shown = [printed] if printed else []
    for output in outputs:
        data = output.get("data", {})
        if "image/png" not in data:
            shown += [str(data[kind]) for kind in sorted(data)]
    return shown
