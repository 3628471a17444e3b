"""The command line: what `run` prints, what it exits with, and that bad input writes nothing."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from memtrade import cli
from memtrade.errors import MemtradeError
from memtrade.measure import flags, host
from memtrade.measure.flags import check_writable
from memtrade.measure.records import load_records
from tests.cli.conftest import ROOT, Shell, checkout

BAD_INPUT = [
    ("run --model resnett", "unknown model 'resnett': did you mean 'resnet'?"),
    ("run --strategy omee", "unknown strategy 'omee': did you mean 'ome'?"),
    ("run --strategy ome,lmss", "unknown strategy 'lmss': did you mean 'lms'?"),
    ("run --strategy=", "--strategy must not be empty: give a value, or leave it out"),
    ("run --results=", "--results must not be empty: give a value, or leave it out"),
    ("plan --strategy optimal --budget=", "--budget must not be empty"),
    ("run --strategy lms --option lbb=3", "unknown option of lms 'lbb': did you mean 'lb'?"),
    ("run --option n_tensor=3", "unknown option of original, checkpoints, lms, ome 'n_tensor'"),
    ("run --option lms.lbb=3", "unknown option of lms 'lbb'"),
    ("run --strategy ome --option lms.lb=3", "unknown strategy in --option lms.lb=3 'lms'"),
    ("run --strategy lms --option lb=x", "'lb' must be a whole number, not 'x'"),
    ("run --strategy lms --option lb=0", "'lb' must be at least 1, not 0"),
    ("run --strategy checkpoints --option mode=fast", "'mode' must be one of"),
    ("run --strategy lms --option lb", "--option takes key=value, not 'lb'"),
    ("run --model-option depth=3", "unknown option of resnet 'depth'"),
    ("run --option lb=3 --option lb=4", "--option lb is given more than once: give it once"),
    ("run --batch-size 2 --model-option batch-size=3", "--batch-size and --model-option batch_s"),
    ("run --model-option weight-decay=nan", "'weight_decay' must be a finite number, not nan"),
    ("run --strategy optimal --option time_limit=inf", "must be a finite number, not inf"),
    ("run --model-option =3", "--model-option takes key=value, not '=3'"),
    ("run --layers 51", "--layers must be one of 18, 34, 50, 101, 152, 200, not 51"),
    ("run --layers 50.5", "--layers must be a whole number, not '50.5'"),
    ("run --layers 1e3", "--layers must be a whole number, not '1e3'"),
    ("run --layers=", "--layers must be a whole number, not ''"),
    ("run --learning-rate high", "--learning-rate must be a number, not 'high'"),
    ("run --steps 2.5", "--steps must be a whole number, not '2.5'"),
    ("pipeline run --micro-batches 4.2", "--micro-batches must be a whole number, not '4.2'"),
    ("run --strategy original --option lb=3", "unknown option of original 'lb': there are none"),
    ("run --model inception_v4 --layers 50", "unknown option of inception-v4 'layers'"),
    ("run --layers 18 --model-option layers=34", "--layers and --model-option layers say the same"),
    ("run --strategy lms --strategy ome", "more than once: give it once, with commas between"),
    ("run --strategy all,ome", "--strategy all stands alone, not 'all,ome': leave the other names"),
    (
        "run --strategy ome,optimal --option budget=100MB --budget 200MB",
        "--budget and --option budget say the same: give one of them",
    ),
    (
        "run --strategy optimal --option optimal.host-memory-limit=1GB --host-memory-limit 2GB",
        "--host-memory-limit and --option host_memory_limit say the same: give one of them",
    ),
    (
        "run --strategy optimal --option minimize=time --minimize memory",
        "--minimize and --option minimize say the same: give one of them",
    ),
    ("run --strategy optimal --budget 1", "--budget is a number and a unit, not '1': write"),
    ("run --strategy optimal --budget 0MB", "--budget must be more than nothing, not '0MB'"),
    ("run --strategy optimal --option budget=1", "option 'budget' is a number and a unit"),
    ("plan --strategy optimal --host-memory-limit 3X", "--host-memory-limit is a number and"),
    ("run --batch-size 0", "--batch-size must be at least 1, not 0"),
    ("run --batch-size=-4", "--batch-size must be at least 1, not -4"),
    ("run --batch-size many", "--batch-size must be a whole number, not 'many'"),
    ("run --image-size 0", "--image-size must be at least 1, not 0"),
    ("run --image-size=-224", "--image-size must be at least 1, not -224"),
    (
        "run --image-size 1000000000",
        "images of 32 × 1,000,000,000 × 1,000,000,000 × 3 are more than 70,368,744,177,664 values",
    ),
    ("run --num-classes 1", "--num-classes must be at least 2, not 1"),
    ("run --data-format NCWH", "--data-format must be one of NHWC, NCHW, not 'NCWH'"),
    ("run --optimizer sdg", "unknown optimizer 'sdg': did you mean 'sgd'?"),
    ("run --learning-rate 0", "--learning-rate must be a positive number, not 0"),
    ("run --learning-rate nan", "--learning-rate must be a positive number, not nan"),
    ("run --steps 0", "--steps must be at least 1, not 0"),
    (f"run --steps {10**23}", "--steps must be at most 1,000,000, not 100,000,000"),
    (f"run --warmup {10**23}", "--warmup must be at most 1,000,000, not 100,000,000"),
    ("run --strategy ome,", "unknown strategy '', an empty name: is there a comma too many?"),
    ("run --warmup=-1", "--warmup must be at least 0, not -1"),
    ("run --timeout 0", "--timeout is a positive number of seconds, not 0"),
    ("run --memory-limit -5MB", "--memory-limit is a number and a unit, not '-5MB'"),
    ("plot a_file", "command of memtrade plot 'a_file': The choices are max-batch, pareto, peak"),
    ("run --memory-limit lots", "--memory-limit is a number and a unit, not 'lots'"),
    ("run --memory-limit 7254", "--memory-limit is a number and a unit, not '7254'"),
    ("run --memory-limit 900PB", "write 7254MiB, 800MB or 6GB; the largest unit is TiB"),
    ("run --memory-limit 2.9MiB", "--memory-limit must be at least 3MiB, not 2.9MiB"),
    ("run --memory-limit 1KB", "--memory-limit must be at least 3MiB, not 1KB"),
    ("run --device gpu:7", "unknown device 'gpu:7'"),
    ("run --device arenaa", "unknown device 'arenaa': did you mean 'arena'?"),
    ("run --order sideways", 'Invalid value "sideways" for --order'),
    (
        "run --plan nowhere.json",
        "cannot read a plan from 'nowhere.json': No such file or directory",
    ),
    ("run --results a_file", "cannot write to the folder 'a_file': Not a directory"),
    ("run --results a_file/runs", "cannot write to the folder 'a_file/runs': Not a directory"),
    ("run --results /proc/runs", "cannot write to the folder '/proc/runs'"),
    ("run --stepps 3", "Unknown option: --stepps. Did you mean --steps?"),
    ("run --layers", "--layers takes a value: give one, see memtrade run --help"),
    ("run --layers deep", "--layers must be a whole number, not 'deep'"),
    ("run resnet", "memtrade run has no place for resnet: see memtrade run --help"),
    ("plot peak", "memtrade plot peak takes --output (The file to write: .pdf, .svg or .png)"),
    ("run --device gpu:0", "unknown device 'gpu:0': Here are arena"),
    ("runn", "unknown command of memtrade 'runn': did you mean 'run'?"),
    ("plan --strategy omee", "unknown strategy 'omee'"),
    ("plan --strategy ome,lms --output p.json", "--output saves one plan"),
    ("plan --output nowhere/p.json", "there is no folder 'nowhere'"),
    ("plan --json --by layer", "--json has every tensor of a plan: leave --by layer out"),
    ("plan --layers 19", "--layers must be one of"),
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


@pytest.mark.parametrize("words", [[str(ROOT / "benchmark.py")], ["-m", "memtrade", "run"]])
def test_bad_input_from_the_shell_has_no_traceback(tmp_path: Path, words: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, *words, "--strategy", "omee"],
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


@pytest.mark.parametrize("typed", ["run --strategy original,lms", "sweep trials.toml"])
def test_what_a_full_disk_cannot_take_is_told_at_least(
    shell: Shell, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    grid = '[[grid]]\nmodel = "resnet"\nlayers = 18\nstrategy = ["original", "lms"]\n'
    (shell.folder / "trials.toml").write_text(grid)
    monkeypatch.setattr("memtrade.measure.records.write_whole", full)
    status, out, err = shell.run(*typed.split())
    assert status == 2
    assert err.splitlines()[-1].endswith(": No space left on device")
    assert "original" in out + err
    assert "1.0 MB" in out + err or "2.0 MB" in out + err  # the peak that was measured
    assert shell.started() == ["original"]


def test_infeasible_exits_with_3(shell: Shell) -> None:
    assert shell.run("run", "--strategy", "ome", trick="infeasible")[0] == 3


def test_ctrl_c_keeps_what_has_finished_and_leaves_no_child(shell: Shell) -> None:
    code = textwrap.dedent(f"""
        import sys
        from memtrade import cli
        from memtrade.measure import trial
        trial.run_child.__kwdefaults__["worker"] = (sys.executable, {str(shell.worker)!r})
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


@pytest.mark.parametrize("entry", ["module('memtrade'", f"path({str(ROOT / 'benchmark.py')!r}"])
@pytest.mark.parametrize("module", ["cyclopts", "memtrade.commands"])
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(
    tmp_path: Path, entry: str, module: str
) -> None:
    """Not even where an import makes another error of it, as Python 3.11's classes do."""
    code = f"""
        import importlib.abc, runpy, signal, sys
        class Interrupted(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == {module!r}:
                    try:
                        signal.raise_signal(signal.SIGINT)
                    except KeyboardInterrupt as error:
                        raise RuntimeError("in an import") from error
        sys.meta_path.insert(0, Interrupted())
        sys.argv = ["memtrade", "run", "--strategy", "omee"]
        runpy.run_{entry}, run_name="__main__")
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        env=checkout(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "memtrade: stopped\n")


def test_benchmark_is_run_with_the_same_flags(shell: Shell) -> None:
    status = cli.main(
        ["run", "--strategy", "ome", "--results", str(shell.folder / "out")],
        typed=["python", "benchmark.py", "--strategy", "ome", "--results", "/home/me/out"],
    )
    assert status == 0
    [record] = load_records("out")
    assert record.command == "python benchmark.py --strategy ome --results out"
