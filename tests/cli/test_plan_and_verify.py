"""The command line on plans, verification, lists and records."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import memtrade
from memtrade.commands import profiles
from memtrade.errors import InfeasibleBudgetError
from memtrade.graph import StepGraph
from memtrade.measure import flags
from memtrade.measure.records import load_records
from memtrade.plan import load_plan
from tests.cli.conftest import Shell, checkout


def test_plan_shows_decisions_with_reasons(shell: Shell, graph: StepGraph) -> None:
    status, out, _ = shell.run("plan", "--strategy", "original,lms")
    assert status == 0
    assert "original on toy" in out
    assert "lms on toy" in out
    assert "square:0" in out
    assert "64×64" in out
    assert "as TensorFlow does" in out


def test_plan_is_saved_and_printed_as_json(shell: Shell, graph: StepGraph) -> None:
    status, out, _ = shell.run("plan", "--strategy", "lms", "--output", "p.json", "--json")
    assert status == 0
    saved = load_plan(Path("p.json"))
    assert saved.strategy == "lms"
    assert saved.fingerprint == graph.fingerprint
    assert json.loads(out) == [json.loads(Path("p.json").read_text())]


def test_a_saved_plan_is_run_and_verified(shell: Shell, graph: StepGraph) -> None:
    shell.run("plan", "--strategy", "lms", "--option", "lb=2", "--output", "p.json")
    for command in ("run", "verify"):
        shell.started_file.unlink()
        assert shell.run(command, "--plan", "p.json")[0] == 0
        assert shell.started() == ["lms"]
    [record] = load_records("runs")
    assert record.spec.strategy_options["lb"] == 2
    for said in ("--strategy ome", "--budget 1MB", "--order dataflow", "--host-memory-limit 1GB"):
        status, _, err = shell.run("run", "--plan", "p.json", *said.split())
        assert (status, f"leave {said.split()[0]} out" in err) == (2, True)


def test_a_name_that_is_no_text_is_refused(shell: Shell, graph: StepGraph) -> None:
    shell.run("plan", "--strategy", "lms", "--output", "\udcff.json")
    status, _, err = shell.run("run", "--plan", "\udcff.json")
    assert (status, err.count("\n")) == (2, 1 + err.count("[1/1]"))
    assert r"\udcff.json' is not of this locale: rename it, or set PYTHONUTF8=1" in err


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"strategy": "omee"}, "unknown strategy 'omee': did you mean 'ome'?"),
        ({"strategy": "xla"}, "xla has no plan"),
        ({"options": {"lbb": 2}}, "unknown option of lms 'lbb': did you mean 'lb'?"),
        ({"options": {"lb": [2]}}, "option 'lb' must be a whole number, not [2]"),
    ],
)
def test_a_saved_plan_of_no_strategy_is_refused(
    shell: Shell, graph: StepGraph, change: dict[str, object], why: str
) -> None:
    shell.run("plan", "--strategy", "lms", "--output", "p.json")
    shell.started_file.unlink()
    saved = json.loads(Path("p.json").read_text()) | change
    Path("p.json").write_text(json.dumps(saved))
    for command in ("run", "verify"):
        status, out, err = shell.run(command, "--plan", "p.json")
        assert (status, out, shell.started()) == (2, "", [])
        assert err.startswith(f"memtrade: cannot read a plan from 'p.json': {why}")


def test_a_plan_that_reaches_no_budget_exits_with_3(
    shell: Shell, graph: StepGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_fits(*arguments: object) -> None:
        raise InfeasibleBudgetError(2_000_000, 1_000_000, "square")

    monkeypatch.setattr(profiles.Foresight, "plan", none_fits)
    status, out, err = shell.run("plan")
    assert (status, out) == (3, "")
    assert err.splitlines()[-1].startswith("memtrade: no plan fits a budget of 1.0 MB")


def test_a_step_that_cannot_be_traced_is_said_in_one_line(shell: Shell) -> None:
    status, out, err = shell.run("plan", trick="infeasible")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == (
        "memtrade: the step could not be traced: infeasible: no plan fits"
    )


def test_a_step_that_no_device_holds_is_refused_before_anything_is_asked(
    shell: Shell, graph: StepGraph
) -> None:
    tensors = [msgspec.structs.replace(each, size_bytes=1 << 46) for each in graph.tensors]
    huge = StepGraph(msgspec.structs.replace(graph.data, tensors=tuple(tensors)))
    (shell.tools / "graph").write_bytes(huge.to_bytes())
    status, out, err = shell.run("predict")
    assert (status, out) == (2, "")
    assert "toy has x:0 of 67,108,864 MiB, which no device holds: give a smaller batch" in err
    assert "ask" not in err


# verify


def test_verify_says_equal(shell: Shell) -> None:
    status, out, err = shell.run("verify", "--strategy", "ome,lms", "--steps", "4")
    assert status == 0
    assert out.count("equal") == 2
    assert "0 (to the bit)" in out
    assert "[1/2] ome: equal" in err
    assert list(shell.folder.iterdir()) == []


def test_verify_exits_with_1_where_a_strategy_differs(shell: Shell) -> None:
    status, out, _ = shell.run("verify", "--strategy", "lms,ome", trick="wrong")
    assert status == 1
    assert "differs" in out
    assert "w0 by 0.5" in out
    assert "and 2 more" in out
    assert "the original differs from itself by 0.25" in " ".join(out.split())


def test_verify_exits_with_1_where_it_could_not_compare(shell: Shell) -> None:
    status, out, _ = shell.run("verify", "--strategy", "lms", trick="kill")
    assert status == 1
    assert "crashed: killed by SIGKILL" in out


def test_verify_as_json(shell: Shell) -> None:
    status, out, _ = shell.run("verify", "--strategy", "lms,ome", "--json", trick="wrong")
    assert status == 1
    assert [row["verified"]["equal"] for row in json.loads(out)] == [True, False]


# The lists, the tables, the help.


def test_lists_name_everything_with_its_options(shell: Shell) -> None:
    for command, expected in (
        ("models", ["resnet", "inception-v4", "image_size", "18, 34, 50, 101, 152, 200"]),
        ("strategies", ["original", "checkpoints", "lms", "ome", "n_tensors", "select"]),
        ("devices", ["arena", "gtx-1070"]),
    ):
        status, out, err = shell.run(command)
        assert (status, err) == (0, "")
        for word in expected:
            assert word in out


def test_table_reads_what_run_wrote(shell: Shell) -> None:
    shell.run("run")
    for name in ("terminal", "markdown", "csv"):
        status, out, _ = shell.run("table", "runs", "--format", name)
        assert status == 0
        for strategy in flags.DEFAULT_STRATEGIES:
            assert strategy in out


def test_table_names_damaged_records(shell: Shell) -> None:
    shell.run("run", "--strategy", "ome")
    (shell.folder / "runs" / "bad.json").write_text("{")
    status, _, err = shell.run("table")
    assert status == 0
    assert err.startswith("memtrade: warning: left out runs/bad.json, which is not a record:")
    assert err.count("\n") == 1


def test_help_and_version(shell: Shell) -> None:
    assert "--memory-limit" in shell.run("run", "--help")[1]
    assert shell.run("--version")[1].strip() == memtrade.__version__


def test_the_help_of_a_command_says_which_strategies_are_its_default(shell: Shell) -> None:
    for command in ("run", "verify", "max-batch", "plan", "predict", "pareto", "timeline", "trace"):
        told = " ".join(shell.run(command, "--help")[1].split())
        assert "Unless --strategy is given, it is " in told, command
    for command in ("summary", "explain", "pipeline run", "pipeline predict"):
        told = " ".join(shell.run(*command.split(), "--help")[1].split())
        assert "nless --strategy is given, " in told, command


def test_the_help_says_the_status_of_no_plan_and_how_keys_are_spelled(shell: Shell) -> None:
    for command, word in (("plan", "status is 3"), ("predict", "status is 3"), ("sweep", "with _")):
        assert word in " ".join(shell.run(command, "--help")[1].split()), command


def test_the_command_line_imports_nothing_that_takes_long() -> None:
    slow = {"tensorflow", "numpy", "pandas", "importlib.metadata"}
    code = f"import sys, memtrade.cli; sys.exit(bool({slow} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, env=checkout())
