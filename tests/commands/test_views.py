"""The commands that only read: what they print, what they write, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from memtrade.commands import plot
from memtrade.commands.records import published, records, report, thesis
from memtrade.commands.run import run as measure
from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.measure.flags import DEFAULT_STRATEGIES

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "results" / "measured"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Run) -> Run:
    """Runs a command in a folder whose `runs` holds four records of ResNet-50: exit status, stdout,
    stderr."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "empty").mkdir()
    for strategy in DEFAULT_STRATEGIES:
        [path] = (ROOT / "results" / "measured").glob(f"resnet-50_b32_{strategy}_*.json")
        shutil.copy(path, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return typed


def change(path: Path, **fields: object) -> None:
    """Sets fields of a record's measurement, or of its machine."""
    record = json.loads(path.read_text())
    for name, value in fields.items():
        part = "machine" if name in record["machine"] else "measured"
        record[part][name] = value
    path.write_text(json.dumps(record))


def record_of(strategy: str, folder: str = "runs") -> Path:
    [path] = Path(folder).glob(f"*_{strategy}_*.json")
    return path


VIEWS = [
    "table FOLDER",
    "table thesis FOLDER",
    "plot peak FOLDER --output f.pdf",
    "plot time FOLDER --output f.pdf",
    "plot pareto FOLDER --output f.pdf",
    "plot max-batch FOLDER --output f.pdf",
    "report FOLDER",
    "accuracy FOLDER",
    "compare FOLDER FOLDER",
]


@pytest.mark.parametrize("view", VIEWS)
def test_an_empty_folder_says_what_to_run(run: Run, view: str) -> None:
    Path("a_file").touch()
    for folder, message in (
        ("empty", "there are no records in 'empty': make some: memtrade run"),
        ("nowhere", "there is no folder of records 'nowhere': make some: memtrade run"),
        ("a_file", "'a_file' is a file: name the folder of records that it is in"),
    ):
        before = sorted(Path().rglob("*"))
        status, out, err = run(*view.replace("FOLDER", folder).split())
        assert (status, out) == (2, "")
        assert err.startswith(f"memtrade: {message}")
        assert err.count("\n") == 1
        assert sorted(Path().rglob("*")) == before


def test_a_page_that_cannot_be_written_leaves_the_one_before(run: Run) -> None:
    Path("r.html").write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # as a full disk
    try:
        status, out, err = run("report", "runs", "--output", "r.html")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (status, out, err) == (2, "", "memtrade: cannot write r.html: File too large\n")
    assert Path("r.html").read_text() == "before"
    Path("link.html").symlink_to("r.html")
    assert run("report", "runs", "--output", "link.html")[0] == 0
    assert Path("link.html").is_symlink()
    assert Path("r.html").read_text() != "before"


@pytest.mark.parametrize("view", VIEWS)
def test_a_half_written_record_is_named_and_left_out(run: Run, view: str) -> None:
    text = record_of("ome").read_bytes()
    Path("runs/broken.json").write_bytes(text[: len(text) // 2])
    status, _, err = run(*view.replace("FOLDER", "runs").split())
    assert status == 0
    [line] = {each for each in err.splitlines() if "no search is in" not in each}
    assert line.startswith("memtrade: warning: left out runs/broken.json, which is not a record")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("plot peak runs --output f.jpg", "a plot is a file in .pdf, .svg or .png, not 'f.jpg'"),
        ("plot peak runs --output nowhere/f.pdf", "there is no folder 'nowhere': make it"),
        ("plot peak runs --output f.pdf --batch-size 7", "no records of batch size 7"),
        ("plot peak runs --output f.pdf --source guessed", 'Invalid value "guessed" for --source'),
        (
            "plot peak flat --output f.pdf",
            "there is nothing measured to plot by depth in 'flat': make it: memtrade run --layers",
        ),
        (
            "plot peak small --output f.pdf --source published",
            "nothing was published of the steps in 'small'",
        ),
        ("plot pareto flat --output f.pdf", "no step has been run with two strategies in 'flat'"),
        ("plot pareto runs --output f.pdf --step resnet-5", "did you mean 'resnet-50'?"),
        ("plot sideways runs", "unknown command of memtrade plot 'sideways': The choices are"),
        ("report runs --output report.pdf", "a report is a file in .html, not 'report.pdf'"),
        ("compare runs", "takes AFTER: give one"),
        ("compare runs runs --tolerance=-1", "the tolerance must be at least 0, not -1"),
        ("table thesis runs --format xls", 'Invalid value "xls" for --format'),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(run: Run, command: str, message: str) -> None:
    Path("flat").mkdir()  # where a model without depths ran, once
    record = json.loads(record_of("ome").read_text())
    record["spec"] |= {"model": "inception-v4", "model_options": {"batch_size": 32}}
    Path("flat/record.json").write_text(json.dumps(record | {"model": "inception-v4"}))
    Path("small").mkdir()
    record["spec"] |= {"model": "resnet", "model_options": {"layers": 50, "image_size": 64}}
    Path("small/record.json").write_text(json.dumps(record))
    before = sorted(Path().rglob("*"))
    status, _, err = run(*command.split())
    assert status == 2
    assert message in err
    assert sorted(Path().rglob("*")) == before


def test_the_thesis_tables_in_every_format(run: Run) -> None:
    status, terminal, _ = run("table", "thesis")
    assert status == 0
    assert "ResNet by depth, batch 32" in terminal
    assert "Largest batch of resnet-50" in terminal
    assert (
        "| strategy | layers | peak MB published |"
        in run("table", "thesis", "--format=markdown")[1]
    )
    assert run("table", "thesis", "--format=latex")[1].count(r"\begin{table}") == 4
    html = run("table", "thesis", "--format=html")[1]
    assert html.count("<table>") == 4
    assert "Made by <code>memtrade table thesis runs</code>" in html
    rows = list(csv.DictReader(io.StringIO(run("table", "thesis", "--format=csv")[1])))
    assert {row["source"] for row in rows} >= {"published", "measured"}
    measured = [row for row in rows if row["source"] == "measured" and row["strategy"] == "ome"]
    expected = json.loads(record_of("ome").read_text())["measured"]["peak_bytes"]
    assert [int(row["peak_bytes"]) for row in measured] == [expected]


def test_thesis_tables_without_a_figure_of_ones_own_say_so(run: Run) -> None:
    assert run("table", "thesis")[2] == ""
    at_64_pixels("runs")
    assert run("table", "thesis")[2].startswith("memtrade: no record is of a step of the thesis")


def test_a_folder_may_be_called_thesis(run: Run) -> None:
    Path("runs").rename("thesis")
    status, out, _ = run("table", "./thesis")
    assert status == 0
    assert out.startswith("resnet-50, batch 32")


def test_two_machines_are_labelled_in_every_table(run: Run) -> None:
    shutil.copytree("runs", "runs/other")
    for path in Path("runs/other").iterdir():
        change(path, cpu_model="Another CPU")
    titles = [line for line in run("table")[1].splitlines() if line.startswith("resnet-50")]
    assert len(titles) == 2
    assert any("Another CPU, 2 cores" in title for title in titles)
    thesis = run("table", "thesis")[1]
    assert "ome, Another CPU, 2 cores" in thesis


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("peak", "pdf"), ("peak", "svg"), ("peak", "png"), ("time", "svg"), ("pareto", "png"),
     ("max-batch", "pdf")],
)  # fmt: skip
def test_plots_are_written_by_suffix(run: Run, kind: str, suffix: str) -> None:
    status, out, err = run("plot", kind, "--output", f"f.{suffix}")
    assert (status, out) == (0, f"wrote f.{suffix}\n")
    bare = "memtrade: no search is in 'runs', so all bars are published: make one by max-batch\n"
    assert err == (bare if kind == "max-batch" else "")
    first = Path(f"f.{suffix}").read_bytes()
    assert len(first) > 4_000
    assert run("plot", kind, "--output", f"g.{suffix}")[0] == 0
    assert Path(f"g.{suffix}").read_bytes() == first


def at_64_pixels(folder: str) -> None:
    """Makes steps that the thesis does not have of a folder's records."""
    for path in Path(folder).iterdir():
        record = json.loads(path.read_text())
        record["spec"]["model_options"]["image_size"] = 64
        path.write_text(json.dumps(record))


def test_steps_that_nothing_was_published_of_are_plotted_alone(run: Run) -> None:
    at_64_pixels("runs")
    said = "memtrade: nothing was published of the steps in 'runs': measured ones are alone\n"
    assert run("plot", "peak", "--output", "f.svg") == (0, "wrote f.svg\n", said)
    assert "published" not in Path("f.svg").read_text()


def test_captions_can_be_left_out(run: Run) -> None:
    run("plot", "peak", "--output", "f.svg")
    run("plot", "peak", "--output", "g.svg", "--no-caption")
    assert Path("g.svg").stat().st_size < Path("f.svg").stat().st_size


def test_the_report_is_a_page_that_names_its_command(run: Run) -> None:
    assert run("report", "--output", "page.html") == (0, "wrote page.html\n", "")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<code>memtrade report --output page.html</code>" in page
    assert "4 trials in runs, run on" in page


def test_compare_exits_with_1_where_something_got_worse(run: Run) -> None:
    shutil.copytree("runs", "now")
    status, out, _ = run("compare", "runs", "now")
    assert (status, "nothing changed beyond noise" in out) == (0, True)
    ome = record_of("ome", "now")
    change(ome, peak_bytes=600_000_000)
    status, out, _ = run("compare", "runs", "now")
    assert status == 1
    assert "507.7 → 600.0" in out
    assert "4 trials: 1 worse, 0 better, 3 as before" in out
    status, out, _ = run("compare", "now", "runs")
    assert status == 0
    assert "1 better" in out
    assert "| ome | better |" in run("compare", "now", "runs", "--format=markdown")[1]
    rows = list(csv.DictReader(io.StringIO(run("compare", "runs", "now", "--format=csv")[1])))
    assert [row["verdict"] for row in rows].count("worse") == 1


def test_compare_refuses_unlike_machines_unless_told(run: Run) -> None:
    shutil.copytree("runs", "there")
    for path in Path("there").iterdir():
        change(path, cores=64, median_seconds=0.1, step_seconds=[0.1] * 5)
    status, out, err = run("compare", "runs", "there")
    assert (status, out) == (2, "")
    assert "step times of unlike machines do not compare" in err
    status, out, _ = run("compare", "runs", "there", "--across-machines", "--all")
    assert status == 0
    assert "4 as before" in out


# As functions, on the committed records.


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
        measure(log="thesis", json=True)


def test_a_published_table_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    published("thesis_max_batch", format="csv")
    assert capsys.readouterr().out.splitlines()[1].startswith("resnet,50,original,original,87,")
    published("thesis_max_batch", format="markdown")
    assert "| resnet | 50 | lms | swap | 111 | 7282.41 |" in capsys.readouterr().out
    with pytest.raises(MemtradeError, match="did you mean 'thesis_resnet'"):
        published("thesis_resnett")
