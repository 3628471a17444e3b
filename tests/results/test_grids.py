"""Grids: the same cells in a terminal, as Markdown, HTML and LaTeX."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from memtrade.results.grids import (
    Column,
    Grid,
    GridRow,
    Section,
    grid_to_html,
    grid_to_latex,
    grid_to_markdown,
    grid_to_rich,
    grids_to_html_page,
)

NASTY = r"50 % of_x & {y} #1 $2 ~3 ^4 \5 <b> | * – × 10⁶"
GRID = Grid(
    name="toy",
    title=f"A table: {NASTY}",
    stub="layers",
    columns=(
        Column(group="peak MB", name="published"),
        Column(group="peak MB", name="measured"),
        Column(group="host MB", name="measured"),
        Column(group="relative time", name="measured"),
    ),
    sections=(
        Section(
            title="original",
            rows=(
                GridRow(label="18", cells=("843.6*", "727.1", "67", "1.00")),
                GridRow(label="200", cells=("OOM", "OOM", "–", "–"), failed=True),
            ),
        ),
        Section(title="lms", rows=(GridRow(label="18", cells=("1", "2", "3", "4")),)),
    ),
    notes=("a note", f"* {NASTY}"),
    expendable=("host MB", "relative time"),
)


def terminal(grid: Grid, width: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False)
    console.print(grid_to_rich(grid, width=width))
    return stream.getvalue()


def test_groups_span_their_columns() -> None:
    assert GRID.groups == [("peak MB", 0, 1), ("host MB", 2, 2), ("relative time", 3, 3)]


def test_a_wide_terminal_shows_all_and_a_narrow_one_says_what_is_missing() -> None:
    wide = terminal(GRID, 100)
    for expected in ("published", "843.6*", "OOM", "host MB", "1.00", "a note"):
        assert expected in wide
    assert "wider terminal" not in wide
    narrow = terminal(GRID, 36)
    assert "publ." in narrow
    assert "a wider terminal also shows: host" in narrow
    rows = [line for line in narrow.splitlines() if line.startswith("  18")]
    assert rows[0].split() == ["18", "843.6*", "727.1", "1.00"]
    assert max(map(len, narrow.splitlines())) <= 36


def test_markdown_names_the_section_in_every_row_and_escapes_bars() -> None:
    lines = grid_to_markdown(GRID, commands=["memtrade run", "memtrade run"]).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table[0] == (
        "| strategy | layers | peak MB published | peak MB measured | host MB measured "
        "| relative time measured |"
    )
    assert table[2] == r"| original | 18 | 843.6\* | 727.1 | 67 | 1.00 |"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {7}
    assert lines.count("    memtrade run") == 1


def test_html_escapes_and_groups() -> None:
    html = grid_to_html(GRID, command="memtrade table <thesis>")
    assert '<th colspan="2" scope="colgroup">peak MB</th>' in html
    assert html.count("<tbody>") == 2
    assert '<tr class="failed"><th scope="row">200</th><td>OOM</td>' in html
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "memtrade table &lt;thesis&gt;" in html
    page = grids_to_html_page([(GRID, "")], title="Tables")
    assert page.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in page
    assert "http" not in page


def test_columns_without_groups_have_one_header_row() -> None:
    flat = Grid(
        name="flat",
        title="Flat",
        stub="machine",
        columns=(Column(group="memory", name=""),),
        sections=(Section(title="", rows=(GridRow(label="A", cells=("1",)),)),),
    )
    assert grid_to_html(flat).count("<tr>") == 2
    assert "memory" in terminal(flat, 80)


def test_latex_has_a_caption_a_label_and_rules_under_groups() -> None:
    latex = grid_to_latex(GRID)
    assert r"\label{tab:toy}" in latex
    assert r"\caption{A table: 50 \% of\_x" in latex
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-4}\cmidrule(lr){5-5}" in latex
    assert r"layers & publ. & meas. & meas. & meas. \\" in latex


@pytest.fixture(scope="module")
def pdflatex() -> str:
    """Where there is none, the CI fails; elsewhere the test is left out."""
    found = shutil.which("pdflatex")
    if found is None and not os.environ.get("CI"):
        pytest.skip("needs pdflatex: apt-get install texlive-latex-recommended")
    assert found is not None, "no pdflatex: apt-get install texlive-latex-recommended"
    return found


def compile_latex(pdflatex: str, body: str, folder: Path) -> str:
    """The log of a run that made a PDF."""
    source = (
        "\\documentclass[a4paper]{article}\n\\usepackage{booktabs}\n"
        "\\usepackage[margin=2.5cm]{geometry}\n"
        f"\\begin{{document}}\n{body}\n\\end{{document}}\n"
    )
    (folder / "tables.tex").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "tables.tex"],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "tables.pdf").stat().st_size > 10_000
    return done.stdout


def test_latex_compiles_whatever_the_cells_say(pdflatex: str, tmp_path: Path) -> None:
    log = compile_latex(pdflatex, grid_to_latex(GRID), tmp_path)
    assert "Missing character" not in log


def test_latex_check_can_fail(pdflatex: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        compile_latex(pdflatex, grid_to_latex(GRID).replace(r"\_", "_"), tmp_path)


def test_the_thesis_tables_compile_and_fit_a_page(pdflatex: str, tmp_path: Path) -> None:
    from memtrade.measure.records import load_records
    from memtrade.papers.thesis import thesis_grids

    results = Path(__file__).resolve().parents[2] / "results" / "measured"
    grids = thesis_grids(load_records(results))
    assert len(grids) == 4
    log = compile_latex(pdflatex, "\n".join(map(grid_to_latex, grids)), tmp_path)
    assert "Overfull" not in log


def test_long_labels_take_several_lines_on_paper(pdflatex: str, tmp_path: Path) -> None:
    columns = tuple(Column(group=f"group {i}", name="published") for i in range(8))
    cells = ("1,234.5*",) * len(columns)
    row = GridRow(label="optimal (budget=1000MB time_limit=60.0)", cells=cells)
    section = Section(title="", rows=(row, GridRow(label="original", cells=cells)))
    wide = dataclasses.replace(GRID, columns=columns, sections=(section,), notes=())
    log = compile_latex(pdflatex, grid_to_latex(wide), tmp_path)
    assert "Overfull" not in log
    unfolded = grid_to_latex(wide).replace("p{2.5cm}", "l")
    assert "Overfull" in compile_latex(pdflatex, unfolded, tmp_path)
