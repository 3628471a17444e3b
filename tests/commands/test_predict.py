"""`memtrade predict`, `summary`, `timeline` and `trace`: nothing runs, bad input writes nothing."""

from __future__ import annotations

import csv
import io
import json
import re
from importlib import resources
from pathlib import Path

import pandas as pd
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # pyright: ignore[reportMissingImports]
    Trace,
)

from memtrade.devices import load_device
from memtrade.facts import CPU, Fact
from memtrade.graph import Op, StepGraph
from memtrade.measure.protocol import TrialSpec
from memtrade.results.predictions import Prediction, to_sheet
from memtrade.results.sheets import NONE
from memtrade.simulate.memory import Simulator
from memtrade.strategies import PLANNED
from tests import graphs
from tests.commands.conftest import SMALL, Run

ARENA = (resources.files("memtrade") / "devices" / "arena.toml").read_text()


def rows(table: str) -> dict[str, dict[str, object]]:
    frame = pd.read_csv(io.StringIO(table))
    return {str(row["strategy"]): row for row in frame.to_dict("records")}  # pyright: ignore[reportReturnType]


def test_the_table_says_that_nothing_was_measured_and_for_which_profile(run: Run) -> None:
    status, out, err = run("predict", *SMALL, "--device", "gtx-1070")
    assert status == 0
    title = "Predicted, not measured: resnet-18, batch 16, 32 × 32 pixels, num_classes=10, sgd; "
    limit_mib = load_device("gtx-1070").memory_bytes / 2**20
    assert out.startswith(title + f"device profile gtx-1070, {limit_mib:,.0f} MiB\n")
    for word in ("original", "checkpoints", "lms", "ome", "peak MB", "stall s", "yes"):
        assert word in out
    assert "profile gtx-1070: GeForce GTX 1070 specifications" in out
    assert "[4/4] ome: predicted peak" in err


def test_csv_has_the_simulators_figures(run: Run) -> None:
    status, out, _ = run("predict", *SMALL, "--format", "csv")
    assert status == 0
    found = rows(out)
    original, lms = found["original"], found["lms"]
    assert original["relative_time"] == 1.0
    assert lms["predicted_peak_bytes"] < original["predicted_peak_bytes"]  # pyright: ignore[reportOperatorIssue]
    assert lms["predicted_host_bytes"] > 0  # pyright: ignore[reportOperatorIssue]
    relative = lms["predicted_step_seconds"] / original["predicted_step_seconds"]  # pyright: ignore[reportOperatorIssue]
    assert lms["relative_time"] == pytest.approx(relative)


def test_times_relate_to_the_original_even_if_it_was_not_asked_for(run: Run) -> None:
    both = rows(run("predict", *SMALL, "--strategy", "original,lms", "--format", "csv")[1])
    alone = rows(run("predict", *SMALL, "--strategy", "lms", "--format", "csv")[1])
    assert alone["lms"]["relative_time"] == both["lms"]["relative_time"] > 1.0  # pyright: ignore[reportOperatorIssue]


def test_a_tight_limit_shows_who_fits(run: Run) -> None:
    figures = rows(run("predict", *SMALL, "--strategy", "original,lms", "--format", "csv")[1])
    peaks = [figures[name]["predicted_peak_bytes"] for name in ("original", "lms")]
    between = f"{sum(peaks) // 2}B"  # pyright: ignore[reportArgumentType, reportCallIssue]
    limited = ("--strategy", "original,lms", "--memory-limit", between)
    status, out, _ = run("predict", *SMALL, *limited, "--json")
    assert status == 0
    original, lms = json.loads(out)
    assert not original["predicted"]["fits"]
    assert lms["predicted"]["fits"]
    assert original["predicted"]["peak_bytes"] == peaks[0]
    _, out, _ = run("predict", *SMALL, *limited, "--format", "markdown")
    assert "| original | no |" in out
    assert "| lms | yes |" in out
    assert "what it would take" in out
    assert "    memtrade predict --layers 18" in out


def test_a_budget_that_no_plan_reaches_is_a_row_with_the_floor(run: Run) -> None:
    """Planned in a process of its own, beside others, and here, where it is the only one."""
    refused = "--strategy", "optimal", "--budget", "1MB"
    status, out, _ = run("predict", *SMALL, *refused, "--json")
    floor_bytes = json.loads(out)[0]["floor_bytes"]
    assert (status, floor_bytes > 1_000_000) == (3, True)
    both = "--strategy", "original,optimal", "--budget", "1MB"
    status, out, _ = run("predict", *SMALL, *both, "--format", "markdown")
    assert status == 3
    assert "| original | yes |" in out
    assert "| optimal (budget=1MB) | no plan | - | - |" in out
    assert "optimal (budget=1MB): infeasible: no plan fits a budget of 1.0 MB" in out
    assert f"the smallest peak found is {floor_bytes / 1e6:,.1f} MB, bound by " in out


def test_a_profile_of_ones_own(run: Run) -> None:
    text = ARENA.replace('name = "arena"', 'name = "mine"')
    Path("mine.toml").write_text(text)
    status, out, _ = run("predict", *SMALL, "--strategy", "original", "--device", "mine.toml")
    assert status == 0
    assert "device profile mine" in out


BAD = [
    ("predict --device gtx-107", "unknown device 'gtx-107': did you mean 'gtx-1070'?"),
    ("predict --device nowhere.toml", "cannot read the device profile 'nowhere.toml'"),
    ("predict --device missing.toml", "missing.toml has no flops_per_s"),
    ("predict --device binary.toml", "cannot read the device profile 'binary.toml'"),
    ("pipeline sweep binary.toml", "binary.toml is no grid of pipelines"),
    ("predict --device negative.toml", "memory_bytes must be positive, not -1"),
    ("predict --json --format csv", "--json prints no table, so --format csv says nothing"),
    ("predict --strategy omee", "unknown strategy 'omee'"),
    ("predict --strategy xla", "xla has no plan"),
    ("predict --memory-limit 5KB", "--memory-limit must be at least 3MiB"),
    ("predict --layers 19", "--layers must be one of"),
    ("timeline --output t.txt", "a timeline is a file in .html, .pdf, .svg or .png, not 't.txt'"),
    ("timeline --output nowhere/t.html", "there is no folder 'nowhere'"),
    ("timeline --device gpu:0", "unknown device 'gpu:0'"),
    ("trace --output nowhere/t.pftrace", "there is no folder 'nowhere'"),
    ("trace --output /proc/t.pickle", "cannot write /proc/t.pickle: No such file or directory"),
    ("timeline --output folder.html", "cannot write folder.html: Is a directory"),
    ("trace --strategy lms --option lb=0", "'lb' must be at least 1"),
]


@pytest.mark.parametrize(("command", "message"), BAD, ids=[each[0] for each in BAD])
def test_bad_input_is_one_line_and_writes_nothing(run: Run, command: str, message: str) -> None:
    Path("missing.toml").write_text(ARENA.replace("flops_per_s", "# flops_per_s", 1))
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    Path("negative.toml").write_text(ARENA.replace("memory_bytes = 7", "memory_bytes = -1 # 7"))
    Path("folder.html").mkdir()
    before = sorted(Path().iterdir())
    status, out, err = run(*command.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(Path().iterdir()) == before


def test_a_line_goes_from_the_smallest_peak_to_the_originals(run: Run) -> None:
    step = (*SMALL, "--strategy", "original,optimal", "--budgets", "2", "--format", "csv")
    points = pd.read_csv(io.StringIO(run("pareto", *step)[1])).to_dict("records")
    assert [point["strategy"] for point in points] == ["optimal", "optimal", "original"]
    least, most, original = points
    assert original["bound"] == "≈"
    assert most["budget_bytes"] == original["peak_bytes"]
    assert least["peak_bytes"] < most["peak_bytes"] <= original["peak_bytes"]


def test_a_timeline_is_written_in_each_format(run: Run) -> None:
    strategies = ("--strategy", "original,lms", "--device", "gtx-1070")
    for name, start in (("t.html", b"<!DOCTYPE html>"), ("t.png", b"\x89PNG"), ("t.pdf", b"%PDF")):
        status, out, err = run("timeline", *SMALL, *strategies, "--output", name)
        assert (status, out) == (0, f"wrote {name}\n")
        assert "[2/2] lms: predicted peak" in err
        assert Path(name).read_bytes().startswith(start)
    page = Path("t.html").read_text()
    assert "memtrade timeline --layers 18" in page
    assert '"lms: peak ' in page  # the title of its picture


def test_a_trace_is_one_that_perfetto_reads(run: Run) -> None:
    assert run("trace", *SMALL, "--strategy", "original,lms")[:2] == (0, "wrote step.pftrace\n")
    trace = Trace.FromString(Path("step.pftrace").read_bytes())
    processes = [
        packet.track_descriptor.process.process_name
        for packet in trace.packet
        if packet.track_descriptor.HasField("process")
    ]
    assert processes == [
        "resnet-18, original, predicted for arena",
        "resnet-18, lms, predicted for arena",
    ]


def test_all_is_every_strategy_that_plans(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from memtrade.commands import plan

    monkeypatch.setattr(plan, "find_planned", lambda name: PLANNED["original"])  # in no time
    status, out, _ = run("predict", *SMALL, "--strategy", "all", "--format", "csv")
    assert status == 0
    assert list(rows(out)) == list(PLANNED)


def test_kernels_that_nobody_could_ask_are_named() -> None:
    """Their margin is no more than a guess."""

    class Guessed(graphs.HandMade):
        def of(self, op: Op, graph: StepGraph) -> Fact:
            return super().of(op, graph)._replace(margin_bytes=4096 * (op.type == "Sin"))

    target = graphs.ARENA.replace(facts=Guessed(CPU))
    simulator = Simulator(graphs.chain(3), target)
    assert simulator.unasked == ["Sin"]
    shown = [Prediction(label="original", spec=TrialSpec(), status="unsupported")]
    notes = to_sheet(shown, target, ["Cos", "Sin"], simulator.unasked, command="").notes
    assert any(note.endswith("were never traced: Cos") for note in notes)
    assert any(note.endswith("could not be asked by themselves: Sin") for note in notes)
    assert Simulator(graphs.chain(3), graphs.ARENA).unasked == []


# summary, and what else is told by layer or by line.


def test_bytes_by_layer(run: Run) -> None:
    status, out, _ = run("summary", *SMALL, "--optimizer", "momentum", "--format", "csv")
    assert status == 0
    layers = {row["name"]: row for row in csv.DictReader(out.splitlines())}
    heaviest = max(layers.values(), key=lambda row: int(row["weight_bytes"]))
    assert heaviest["name"].endswith("/conv")
    assert int(heaviest["weight_bytes"]) == int(heaviest["slot_bytes"]) == 4 * 3 * 3 * 512 * 512
    assert sum(row["at_peak"] == "True" for row in layers.values()) == 1


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
