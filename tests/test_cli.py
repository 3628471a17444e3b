"""The command line: what it prints, what it exits with, and that bad input writes nothing.

No test here starts TensorFlow: trials run in a fake worker.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memtrade
from memtrade import cli
from memtrade.commands import profiles
from memtrade.errors import InfeasibleBudgetError, MemtradeError
from memtrade.graph import GraphData, Op, StepGraph, Tensor
from memtrade.measure import flags, here, host, trial
from memtrade.measure.flags import StrategyFlags, check_writable
from memtrade.measure.records import load_records
from memtrade.plan import load_plan

ROOT = Path(memtrade.__file__).resolve().parents[1]

# Answers as the real worker does, but for the trick that a test asks for.
FAKE_WORKER = """
import json, os, signal, sys, time
spec = json.loads(sys.stdin.read())
def say(type, **fields):
    print(json.dumps({"type": type, **fields}), flush=True)
strategy, trick = spec["strategy"], os.environ.get("TRICK", "")
open(os.environ["STARTED"], "a").write(strategy + "\\n")
say("progress", phase="trace")
if trick == "below":
    say("failed", status="bad_input", reason="the limit is below\\nthe variables")
elif trick == "hang" and strategy == "ome":
    open(os.environ["STARTED"] + ".pid", "w").write(str(os.getpid()))
    time.sleep(60)
elif trick == "kill" and strategy == "lms":
    os.kill(os.getpid(), signal.SIGKILL)
elif trick == "oom" and strategy == "original":
    say("failed", status="out_of_memory", reason="OOM when allocating tensor")
elif trick == "infeasible":
    say("failed", status="infeasible", reason="no plan fits")
elif spec["task"] == "extract":
    open(spec["graph_path"], "wb").write(open(os.environ["GRAPH"], "rb").read())
    say("done")
elif spec["task"] == "verify":
    wrong = trick == "wrong" and strategy == "ome"
    gap = {"max_difference": wrong / 2, "of_update": wrong / 2}
    say("verified", equal=not wrong, tolerance=0.0, steps=spec["steps"], variables=3, **gap,
        differing=[{"name": f"w{i}", **gap} for i in range(7 * wrong)])
    say("done")
else:
    say("planned", summary=dict(kept=1, recomputed=2, swapped=3, kept_bytes=10,
        recomputed_bytes=20, swapped_bytes=30, clones=4, actions=50))
    say("step_done", seconds=0.5, peak_bytes=1000000, loss=1.0)
    peak = 2000000 if strategy == "original" else 1000000
    say("done", measured=dict(peak_bytes=peak, peak_bytes_by_step=[peak], persistent_bytes=400000,
        memory_cost_bytes=600000, host_bytes=50, step_seconds=[0.5], warmup_seconds=[1.0],
        median_seconds=0.5, fastest_seconds=0.5, slowest_seconds=0.5, trace_seconds=0.1,
        plan_seconds=0.2, rewrite_seconds=0.3, losses=[1.0, 1.0]))
"""


def checkout() -> dict[str, str]:
    """The environment in which a new process finds this memtrade."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return dict(os.environ) | {"PYTHONPATH": path}


class Shell:
    """Runs commands in a folder of their own, with the fake worker in place of the real one."""

    def __init__(
        self,
        folder: Path,
        capture: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ):
        self.folder, self._capture, self._monkeypatch = folder, capture, monkeypatch
        self.tools = folder.parent / f"{folder.name}-tools"
        self.tools.mkdir()
        self.worker = self.tools / "worker.py"
        self.worker.write_text(FAKE_WORKER, encoding="utf-8")
        self.started_file = self.tools / "started"
        monkeypatch.setenv("STARTED", str(self.started_file))
        monkeypatch.setenv("GRAPH", str(self.tools / "graph"))
        monkeypatch.chdir(folder)
        monkeypatch.setattr(trial.run_child, "__kwdefaults__", self._with_worker(trial.run_child))
        monkeypatch.setattr(trial.run_trial, "__kwdefaults__", self._with_worker(trial.run_trial))

    def _with_worker(self, function: Callable[..., object]) -> dict[str, Any]:
        defaults = function.__kwdefaults__ or {}
        return defaults | {"worker": (sys.executable, str(self.worker))}

    def run(self, *tokens: str, trick: str = "") -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        self._monkeypatch.setenv("TRICK", trick)
        self._capture.readouterr()
        status = cli.main(tokens)
        out, err = self._capture.readouterr()
        return status, out, err

    def started(self) -> list[str]:
        """The strategies whose child was started."""
        return self.started_file.read_text().split() if self.started_file.exists() else []


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    folder = tmp_path / "work"
    folder.mkdir()
    return Shell(folder, capsys, monkeypatch)


# Bad input.

BAD_INPUT = [
    ("run --model resnett", "unknown model 'resnett': did you mean 'resnet'?"),
    ("run --strategy omee", "unknown strategy 'omee': did you mean 'ome'?"),
    ("run --strategy ome,lmss", "unknown strategy 'lmss': did you mean 'lms'?"),
    ("run --strategy=", "unknown strategy ''"),
    ("run --strategy lms --option lbb=3", "unknown option of lms 'lbb': did you mean 'lb'?"),
    ("run --option n_tensor=3", "unknown option of original, checkpoints, lms, ome 'n_tensor'"),
    ("run --option lms.lbb=3", "unknown option of lms 'lbb'"),
    ("run --strategy ome --option lms.lb=3", "unknown strategy in --option lms.lb=3 'lms'"),
    ("run --strategy lms --option lb=x", "'lb' must be a whole number, not 'x'"),
    ("run --strategy lms --option lb=0", "'lb' must be at least 1, not 0"),
    ("run --strategy checkpoints --option mode=fast", "there is no mode = 'fast'"),
    ("run --strategy lms --option lb", "--option takes key=value, not 'lb'"),
    ("run --model-option depth=3", "unknown option of resnet 'depth'"),
    ("run --model-option =3", "--model-option takes key=value, not '=3'"),
    ("run --layers 51", "there is no layers = 51: choose one of 18, 34, 50, 101, 152, 200"),
    ("run --layers 50.5", "--layers must be a whole number, not 50.5"),
    ("run --steps 2.5", "--steps must be a whole number, not 2.5"),
    ("pipeline run --micro-batches 4.2", "--micro-batches must be a whole number, not 4.2"),
    ("run --strategy original --option lb=3", "unknown option of original 'lb': there are none"),
    ("run --model inception_v4 --layers 50", "unknown option of inception-v4 'layers'"),
    ("run --batch-size 0", "'batch_size' must be at least 1, not 0"),
    ("run --batch-size=-4", "'batch_size' must be at least 1, not -4"),
    ("run --batch-size many", 'unable to convert "many" into int'),
    ("run --image-size 0", "'image_size' must be at least 1, not 0"),
    ("run --image-size=-224", "'image_size' must be at least 1, not -224"),
    (
        "run --image-size 1000000000",
        "images of 32 × 1,000,000,000 × 1,000,000,000 × 3 are more than 70,368,744,177,664 values",
    ),
    ("run --num-classes 1", "'num_classes' must be at least 2, not 1"),
    ("run --data-format NCWH", "there is no data_format = 'NCWH'"),
    ("run --optimizer sdg", "unknown optimizer 'sdg': did you mean 'sgd'?"),
    ("run --learning-rate 0", "the learning rate must be a positive number, not 0"),
    ("run --learning-rate nan", "the learning rate must be a positive number, not nan"),
    ("run --steps 0", "--steps must be at least 1, not 0"),
    ("run --warmup=-1", "--warmup must be at least 0, not -1"),
    ("run --timeout 0", "--timeout is a positive number of seconds, not 0"),
    ("run --memory-limit lots", "a size is a number and a unit, not 'lots'"),
    ("run --memory-limit 7254", "a size is a number and a unit, not '7254'"),
    ("run --memory-limit 7254XB", "a size is a number and a unit, not '7254XB'"),
    ("run --memory-limit 1KB", "--memory-limit must be at least 1MiB, not 1KB"),
    ("run --device gpu:7", "unknown device 'gpu:7'"),
    ("run --device arenaa", "unknown device 'arenaa': did you mean 'arena'?"),
    ("run --order sideways", 'Invalid value "sideways" for --order'),
    ("run --plan nowhere.json", "cannot read a plan from nowhere.json"),
    ("run --results a_file", "cannot write to the folder 'a_file': Not a directory"),
    ("run --results a_file/runs", "cannot write to the folder 'a_file/runs': Not a directory"),
    ("run --results /proc/runs", "cannot write to the folder '/proc/runs'"),
    ("run --stepps 3", "Unknown option: --stepps. Did you mean --steps?"),
    ("run --layers", "requires an argument"),
    ("run resnet", "Unused Tokens"),
    ("runn", 'Unknown command "runn". Did you mean "run"?'),
    ("plan --strategy omee", "unknown strategy 'omee'"),
    ("plan --strategy ome,lms --output p.json", "--output saves one plan"),
    ("plan --output nowhere/p.json", "there is no folder 'nowhere'"),
    ("plan --layers 19", "there is no layers = 19"),
    ("verify --strategy omee", "unknown strategy 'omee'"),
    ("verify --steps 0", "--steps must be at least 1"),
    ("table nowhere", "there is no folder of records 'nowhere'"),
    ("table .", "there are no records in '.'"),
    ("table --format xls", 'Invalid value "xls" for --format'),
]


@pytest.mark.parametrize(("command", "message"), BAD_INPUT, ids=[each[0] for each in BAD_INPUT])
def test_bad_input_is_one_line_and_writes_nothing(
    shell: Shell, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shell.folder / "a_file").write_text("")
    monkeypatch.setattr(host, "gpus", list)
    status, out, err = shell.run(*command.split())
    assert status == 2
    assert out == ""
    assert err.startswith("memtrade: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert message in err
    assert shell.started() == []
    assert [path.name for path in shell.folder.iterdir()] == ["a_file"]


def test_a_limit_below_the_variables_is_bad_input_too(shell: Shell) -> None:
    status, out, err = shell.run("run", trick="below")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == "memtrade: the limit is below the variables"
    assert list(shell.folder.iterdir()) == []


def test_without_tensorflow_there_is_a_word_on_how_to_get_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "tensorflow_version", lambda: None)
    status, _, err = shell.run("run")
    assert status == 2
    assert "pip install 'memtrade[cpu]'" in err


def test_a_folder_without_permission_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Denied by hand, because root may write everywhere."""

    def deny(**where: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "TemporaryFile", deny)
    with pytest.raises(MemtradeError, match="Permission denied"):
        check_writable(tmp_path / "runs")


def test_bad_input_from_the_shell_has_no_traceback(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "benchmark.py"), "--strategy", "omee"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=checkout(),
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("memtrade: unknown strategy 'omee'")
    assert len(ended.stderr.splitlines()) == 1


# run


def test_run_ends_in_a_table_and_writes_a_record_per_trial(shell: Shell) -> None:
    status, out, err = shell.run("run", "--strategy", "original,ome", "--batch-size", "4")
    assert status == 0
    assert shell.started() == ["original", "ome"]
    assert "resnet-50, batch 4, 224 × 224 pixels" in out
    assert "0.50" in out  # the relative peak
    assert "[2/2] ome: trace" in err
    records = load_records("runs")
    assert [record.spec.strategy for record in records] == ["ome", "original"]
    assert records[0].command == "memtrade run --strategy original,ome --batch-size 4"
    assert records[0].spec.model_options["batch_size"] == 4
    assert records[0].spec.learning_rate == 0.01
    assert records[0].spec.strategy_options["select"] == "hidable"


def test_the_default_is_the_four_strategies_and_all_is_all(shell: Shell) -> None:
    assert shell.run("run")[0] == 0
    assert shell.started() == list(flags.DEFAULT_STRATEGIES)
    shell.started_file.unlink()
    assert shell.run("run", "--strategy", "all")[0] == 0
    assert set(flags.DEFAULT_STRATEGIES) <= set(shell.started())


def test_json_goes_to_stdout_and_nothing_else_does(shell: Shell) -> None:
    status, out, _ = shell.run("run", "--strategy", "lms", "--json", "--results", "here")
    assert status == 0
    [record] = json.loads(out)
    assert (record["status"], record["model"]) == ("ok", "resnet-50")
    [saved] = load_records("here")
    assert record["id"] == saved.id


def test_a_sweep_goes_on_after_a_trial_that_failed(shell: Shell) -> None:
    status, out, _ = shell.run("run", trick="oom")
    assert status == 0
    assert len(shell.started()) == 4
    assert "original: out of memory: OOM when allocating tensor" in out
    assert "nothing to relate the others to" in out
    assert sorted(record.status for record in load_records("runs")) == ["ok"] * 3 + [
        "out_of_memory"
    ]


def test_a_crash_is_recorded_and_the_exit_status_says_so(shell: Shell) -> None:
    status, out, _ = shell.run("run", trick="kill")
    assert status == 1
    assert "lms: crashed: killed by SIGKILL in trace" in out
    assert len(load_records("runs")) == 4


def test_infeasible_exits_with_3(shell: Shell) -> None:
    assert shell.run("run", "--strategy", "ome", trick="infeasible")[0] == 3


def test_ctrl_c_keeps_what_has_finished_and_leaves_no_child(shell: Shell) -> None:
    code = textwrap.dedent(f"""
        import sys
        from memtrade import cli
        from memtrade.measure import trial
        for function in (trial.run_child, trial.run_trial):
            function.__kwdefaults__["worker"] = (sys.executable, {str(shell.worker)!r})
        sys.exit(cli.main(["run", "--strategy", "original,ome", "--json"]))
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=checkout() | {"TRICK": "hang"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pid_file = Path(f"{shell.started_file}.pid")
    deadline = time.monotonic() + 20
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "memtrade: stopped; 1 of 2 trials had finished" in err
    assert "Traceback" not in err
    assert [record["spec"]["strategy"] for record in json.loads(out)] == ["original"]
    assert [record.spec.strategy for record in load_records("runs")] == ["original"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_benchmark_is_run_with_the_same_flags(shell: Shell) -> None:
    status = cli.main(
        ["run", "--strategy", "ome", "--results", str(shell.folder / "out")],
        typed=["python", "benchmark.py", "--strategy", "ome", "--results", "/home/me/out"],
    )
    assert status == 0
    [record] = load_records("out")
    assert record.command == "python benchmark.py --strategy ome --results out"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["memtrade", "run", "--results", "my runs"], "memtrade run --results 'my runs'"),
        (["memtrade", "run", "--results=/a/b/runs"], "memtrade run --results=runs"),
        (["memtrade", "run", "--plan", "{here}/plans/p.json"], "memtrade run --plan plans/p.json"),
        (["memtrade", "run", "--option", "tensors=a/b:0"], "memtrade run --option tensors=a/b:0"),
    ],
)
def test_commands_are_recorded_without_folders(words: list[str], text: str) -> None:
    assert cli.command_text([word.format(here=Path.cwd()) for word in words]) == text


# Options of strategies.


def test_an_option_goes_to_the_strategies_that_have_it() -> None:
    chosen = StrategyFlags(option=["mode=speed", "ome.mode=collection", "lb=7"]).typed_options(
        ["original", "checkpoints", "lms", "ome"]
    )
    assert chosen["checkpoints"].mode == "speed"
    assert chosen["ome"].mode == "collection"
    assert chosen["lms"].lb == 7


def test_strategies_are_taken_once_in_the_order_given() -> None:
    assert StrategyFlags(strategy="ome, lms,ome").names() == ["ome", "lms"]


# The device.


def test_a_gpu_is_the_default_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = host.Gpu(index=0, name="A GPU", memory_bytes=8 << 30, free_bytes=8_000_000_000)
    monkeypatch.setattr(host, "gpus", lambda: [gpu])
    device, limit_bytes = flags.DeviceFlags().resolve()
    assert device == "gpu:0"
    assert 7_198_000_000 < limit_bytes <= 7_200_000_000
    assert limit_bytes % (1 << 20) == 0
    assert flags.DeviceFlags(device="arena").resolve()[0] == "arena"


def test_what_is_neither_here_nor_a_profile_names_both_lists() -> None:
    both = "Here are arena; profiles, to plan and predict for, are a100-40gb, arena, gtx-1070"
    for ask in (flags.DeviceFlags.resolve, flags.DeviceFlags.target):
        with pytest.raises(MemtradeError) as refused:
            ask(flags.DeviceFlags(device="gtx1070"))
        assert str(refused.value).startswith("unknown device 'gtx1070': did you mean 'gtx-1070'? H")
        assert both in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(MemtradeError, match="h100 is a profile, and nothing can run") as refused:
        flags.DeviceFlags(device="h100").resolve()
    assert both in str(refused.value)


def test_a_target_is_made_of_the_flags() -> None:
    """What is here can be asked; what is not is as its profile says."""
    arena = flags.DeviceFlags(device="arena", memory_limit="1GB").target("dataflow")
    assert (arena.name, arena.order, arena.limit_bytes) == ("arena", "dataflow", 1_000_000_000)
    assert arena.here == "arena"
    elsewhere = flags.DeviceFlags(device="h100").target()
    assert (elsewhere.name, elsewhere.here) == ("h100", "")
    assert elsewhere.limit_bytes == elsewhere.device.memory_bytes == 80_000_000_000
    assert not elsewhere.copies_in_line
    assert elsewhere.allocator != arena.allocator
    assert elsewhere.facts.name != arena.facts.name


def test_a_gpu_here_has_the_profile_whose_name_is_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {
        "NVIDIA A100-SXM4-40GB": "a100-40gb",
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA GeForce GTX 1070": "gtx-1070",
        "Tesla V100-SXM2-16GB": "v100-16gb",
        "NVIDIA GPU": here.GENERIC,
    }
    names = list(cards)
    gpus = [host.Gpu(index=i, name=n, free_bytes=10 << 30) for i, n in enumerate(names)]
    monkeypatch.setattr(host, "gpus", lambda: gpus)
    for i, name in enumerate(names):
        target = flags.DeviceFlags(device=f"gpu:{i}").target()
        assert (target.name, target.limit_bytes) == (cards[name], int(0.9 * (10 << 30)))
        assert target.here == f"gpu:{i}"


def test_a_gpu_of_unknown_size_needs_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "gpus", lambda: [host.Gpu(index=0, name="A GPU")])
    assert flags.DeviceFlags().resolve()[0] == "arena"
    with pytest.raises(MemtradeError, match="say --memory-limit"):
        flags.DeviceFlags(device="gpu:0").resolve()
    limited = flags.DeviceFlags(device="gpu:0", memory_limit="1GB").resolve()
    assert limited == ("gpu:0", 953 << 20)


# plan


@pytest.fixture
def graph(shell: Shell) -> StepGraph:
    """x -> square -> loss, and its gradient; the child hands it over."""
    shape, size = (64, 64), 64 * 64 * 4

    def op(number: int, name: str, kind: str, *inputs: int) -> Op:
        return Op(number, name, kind, inputs, (), (number,), False, {})

    ops = (
        op(0, "x", "Placeholder"),
        op(1, "square", "Square", 0),
        op(2, "loss", "Sum", 1),
        op(3, "gradient", "SquareGrad", 2, 1),
    )
    tensors = tuple(
        Tensor(i, i, 0, "float32", () if i == 2 else shape, 4 if i == 2 else size) for i in range(4)
    )
    data = GraphData("toy", ops, tensors, (0,), (), (), (2,), (3,), 2, ())
    made = StepGraph(data)
    (shell.tools / "graph").write_bytes(made.to_bytes())
    return made


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
    status, _, err = shell.run("run", "--plan", "p.json", "--strategy", "ome")
    assert status == 2
    assert "leave --strategy and --option out" in err


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
    assert err.startswith("memtrade: warning: left out bad.json, which is not a record:")
    assert err.count("\n") == 1


def test_help_and_version(shell: Shell) -> None:
    assert "--memory-limit" in shell.run("run", "--help")[1]
    assert shell.run("--version")[1].strip() == memtrade.__version__


def test_the_command_line_imports_nothing_that_takes_long() -> None:
    slow = {"tensorflow", "numpy", "pandas", "importlib.metadata"}
    code = f"import sys, memtrade.cli; sys.exit(bool({slow} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, env=checkout())
