"""Sheets: the same cells in a terminal, as Markdown, HTML and LaTeX."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from memtrade.results.sheets import Sheet, to_csv, to_html_page

NASTY = r"50 % of_x & {y} #1 $2 ~3 ^4 \5 <b> | * – × 10⁶"
SHEET = Sheet(
    name="toy",
    title=f"A table: {NASTY}",
    columns=(
        "layers",
        ("peak MB", "published"),
        ("peak MB", "measured"),
        ("host MB", "measured"),
        ("relative time", "measured"),
    ),
    rows=(
        ("18", "843.6*", "727.1", "67", "1.00"),
        ("200", "OOM", "OOM", "–", "–"),
        ("18", "1", "2", "3", "4"),
    ),
    sections=("original", "original", "lms"),
    weak=frozenset({1}),
    notes=("a note", f"* {NASTY}"),
    expendable=("host MB", "relative time"),
    command="memtrade table <thesis>\nmemtrade run",
)


def terminal(sheet: Sheet, width: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False)
    console.print(sheet.to_rich(width=width))
    return stream.getvalue()


def test_groups_span_their_columns() -> None:
    assert SHEET.groups == [
        ("", 0, 0),
        ("peak MB", 1, 2),
        ("host MB", 3, 3),
        ("relative time", 4, 4),
    ]


def test_a_wide_terminal_shows_all_and_a_narrow_one_says_what_is_missing() -> None:
    wide = terminal(SHEET, 100)
    for expected in ("published", "843.6*", "OOM", "host MB", "1.00", "a note"):
        assert expected in wide
    assert "wider terminal" not in wide
    narrow = terminal(SHEET, 36)
    assert "publ." in narrow
    assert "a wider terminal also shows: host" in narrow
    rows = [line for line in narrow.splitlines() if line.startswith("  18")]
    assert rows[0].split() == ["18", "843.6*", "727.1", "1.00"]
    assert max(map(len, narrow.splitlines())) <= 36


def test_markdown_names_the_section_in_every_row_and_escapes_bars() -> None:
    lines = SHEET.to_markdown().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table[0] == (
        "| strategy | layers | peak MB published | peak MB measured | host MB measured "
        "| relative time measured |"
    )
    assert table[2] == r"| original | 18 | 843.6\* | 727.1 | 67 | 1.00 |"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {7}
    assert lines[-2:] == ["    memtrade table <thesis>", "    memtrade run"]


def test_html_escapes_and_groups() -> None:
    html = SHEET.to_html()
    assert '<th colspan="2" scope="colgroup">peak MB</th>' in html
    assert [len(re.findall(f'<t{k} class="words"', html)) for k in "hd"] == [SHEET.words, 0]
    assert html.count("<tbody>") == 2
    assert '<tr class="failed"><th scope="row">200</th><td>OOM</td>' in html
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "memtrade table &lt;thesis&gt;" in html
    page = to_html_page([SHEET], title="Tables")
    assert page.startswith("<!DOCTYPE html>")
    assert "prefers-color-scheme: dark" in page
    assert "http" not in page


def test_columns_without_groups_have_one_header_row() -> None:
    flat = Sheet(name="flat", title="Flat", columns=("machine", "memory"), rows=(("A", "1"),))
    assert flat.to_html().count("<tr>") == 2
    assert "memory" in terminal(flat, 80)
    assert "cmidrule" not in flat.to_latex()


def test_csv_has_the_figures_or_the_cells() -> None:
    flat = Sheet(title="Flat", columns=("machine", ("MB", "peak")), rows=(("A", "1.0"),))
    assert to_csv([flat]) == "machine,MB peak\nA,1.0\n"
    frame = pd.DataFrame({"machine": ["A"], "peak_bytes": [1_000_000]})
    told = dataclasses.replace(flat, frame=frame)
    assert to_csv([told, told]) == "machine,peak_bytes\nA,1000000\nA,1000000\n"


def test_csv_of_several_tables_keeps_columns_of_one_name_apart() -> None:
    times = Sheet(title="Times", columns=("stage", "ms", "ms"), rows=(("0", "1", "2"),))
    other = Sheet(title="Other", columns=("kind", "ms"), rows=(("b", "3"),))
    assert to_csv([times, other]) == "stage,ms,ms.1,kind\n0,1,2,\n,3,,b\n"


def test_what_does_not_fit_even_so_is_folded() -> None:
    wide = Sheet(title="Wide", columns=("a name",), rows=(("0123456789" * 3,),))
    assert max(map(len, terminal(wide, 12).splitlines())) == 12
    assert terminal(wide, 12).replace("\n", "").endswith("0123456789" * 3 + " " * 6)


def test_what_does_not_fit_goes_on_below_with_its_words() -> None:
    columns = ("strategy", "status", *(f"figure {i}" for i in range(18)))
    rows = tuple(
        (f"strategy-{k}", "ok", *(f"{k}{i:02d}{i:02d}.5" for i in range(18))) for k in "12"
    )
    wide = Sheet(title="Wide", columns=columns, rows=rows, words=2)
    lines = terminal(wide, 80).splitlines()
    assert max(map(len, lines)) <= 80
    for row in rows:
        words = [line.split() for line in lines if line.startswith(row[0])]
        assert {tuple(each[:2]) for each in words} == {row[:2]}
        assert [cell for each in words for cell in each[2:]] == list(row[2:])


def test_latex_has_a_caption_a_label_and_rules_under_groups() -> None:
    latex = SHEET.to_latex()
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
    log = compile_latex(pdflatex, SHEET.to_latex(), tmp_path)
    assert "Missing character" not in log


def test_latex_check_can_fail(pdflatex: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        compile_latex(pdflatex, SHEET.to_latex().replace(r"\_", "_"), tmp_path)


def test_the_thesis_tables_compile_and_fit_a_page(pdflatex: str, tmp_path: Path) -> None:
    from memtrade.measure.records import load_records
    from memtrade.papers.thesis import thesis_sheets

    results = Path(__file__).resolve().parents[2] / "results" / "measured"
    sheets = thesis_sheets(load_records(results))
    assert len(sheets) == 4
    log = compile_latex(pdflatex, "\n".join(sheet.to_latex() for sheet in sheets), tmp_path)
    assert "Overfull" not in log


def test_long_labels_take_several_lines_on_paper(pdflatex: str, tmp_path: Path) -> None:
    columns = ("strategy", *((f"group {i}", "published") for i in range(8)))
    cells = ("1,234.5*",) * 8
    rows = (("optimal (budget=1000MB time_limit=60.0)", *cells), ("original", *cells))
    wide = dataclasses.replace(SHEET, columns=columns, sections=(), rows=rows, notes=())
    log = compile_latex(pdflatex, wide.to_latex(), tmp_path)
    assert "Overfull" not in log
    unfolded = wide.to_latex().replace("p{2.5cm}", "l")
    assert "Overfull" in compile_latex(pdflatex, unfolded, tmp_path)
