"""Sweeps on this machine, with a fake worker: what runs, what is left out, what stays behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

import memtrade
from memtrade.commands.sweep import Pace, duration, sweep
from memtrade.errors import MemtradeError
from memtrade.measure import host
from memtrade.measure.records import Record, load_records
from memtrade.sweep import runner
from memtrade.sweep.grid import Trial, read_sweep
from memtrade.sweep.runner import End, parse_retry, sole_sweep
from tests.sweep.conftest import Fake, Write

ROOT = Path(memtrade.__file__).resolve().parents[1]
FOUR = """
    memory_limit = "1GiB"
    [[grid]]
    strategy = ["original", "checkpoints", "lms", "ome"]
"""
NAMES = ["original", "checkpoints", "lms", "ome"]


def by_strategy(folder: str = "runs") -> dict[str, Record]:
    return {record.spec.strategy: record for record in load_records(folder)}


# What runs, and what is left out.


def test_every_trial_runs_once_and_a_second_sweep_runs_nothing(
    fake: Fake, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(FOUR)
    assert sweep(path, command_line="memtrade sweep sweep.toml") == 0
    assert fake.started() == NAMES
    records = by_strategy()
    assert sorted(records) == sorted(NAMES)
    assert {(x.status, x.command, x.jobs) for x in records.values()} == {
        ("ok", "memtrade sweep sweep.toml", 1)
    }
    out, err = capsys.readouterr()
    assert "4 trials: 4 ran" in out
    assert "[2/4] resnet-50 batch 32, checkpoints, 1024 MiB: trace" in err
    assert "[3/4] resnet-50 batch 32, lms, 1024 MiB: peak 2.0 MB, 0.500 s a step; about" in err
    assert sweep(path) == 0
    assert fake.started() == NAMES
    assert "4 trials: 4 skipped" in capsys.readouterr().out


def test_what_is_missing_runs_and_what_changed_is_another_trial(fake: Fake, write: Write) -> None:
    sweep(write(FOUR))
    next(Path("runs").glob("*_lms_*")).unlink()
    sweep(write(FOUR))
    assert fake.started() == [*NAMES, "lms"]
    sweep(write(FOUR.replace("1GiB", "2GiB")))
    assert fake.started() == [*NAMES, "lms", *NAMES]
    assert len(load_records("runs")) == 8


def test_a_damaged_record_is_named_and_its_trial_runs_again(
    fake: Fake, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(write(FOUR))
    damaged = next(Path("runs").glob("*_ome_*"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    capsys.readouterr()
    assert sweep(write(FOUR)) == 0
    assert f"left out {damaged}, which" in capsys.readouterr().err
    assert fake.started() == [*NAMES, "ome"]
    assert len(load_records("runs")) == 4


def test_failed_trials_run_again_only_by_choice(
    fake: Fake, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(FOUR)
    fake.tricks({"original": "oom", "lms": "crash"})
    assert sweep(path) == 1
    records = by_strategy()
    assert (records["original"].status, records["lms"].status) == ("out_of_memory", "crashed")
    out = capsys.readouterr().out
    assert "4 trials: 2 ran, 1 ran: out of memory, 1 ran: crashed" in out
    assert "resnet-50 batch 32, lms, 1024 MiB: crashed: exit code 7 in trace" in out
    fake.tricks({})
    assert sweep(path) == 0
    assert sweep(path, retry="timeout") == 0
    assert fake.started() == NAMES
    assert sweep(path, retry="crash") == 0
    assert fake.started() == [*NAMES, "lms"]
    assert sweep(path, retry="oom,crash") == 0
    assert fake.started() == [*NAMES, "lms", "original"]
    assert {record.status for record in load_records("runs")} == {"ok"}


def test_the_words_of_retry() -> None:
    assert parse_retry("") == frozenset()
    assert parse_retry("crashed, timeout") == {"crashed", "timeout"}
    assert parse_retry("all") >= {"crashed", "infeasible", "out_of_host_memory", "unsupported"}
    with pytest.raises(MemtradeError, match="unknown word of --retry 'oomm': did you mean 'oom'"):
        parse_retry("oomm")


def test_bad_input_that_only_a_child_sees_makes_no_record_and_the_others_run(
    fake: Fake, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.tricks({"original": "refuse"})
    assert sweep(write(FOUR)) == 1
    assert sorted(by_strategy()) == ["checkpoints", "lms", "ome"]
    assert "original, 1024 MiB: refused: the limit is below the" in capsys.readouterr().out


def test_a_dry_run_starts_nothing_and_writes_nothing(
    fake: Fake, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(FOUR)
    assert sweep(path, dry_run=True) == 0
    assert "4 trials: 4 to run" in capsys.readouterr().out
    assert not Path("runs").exists()
    fake.tricks({"lms": "oom"})
    sweep(path)
    capsys.readouterr()
    assert sweep(path, dry_run=True, retry="oom") == 0
    assert "4 trials: 3 skipped, 1 to run again: out of memory" in capsys.readouterr().out
    assert fake.started() == NAMES


def test_bad_flags(write: Write) -> None:
    path = write(FOUR)
    with pytest.raises(MemtradeError, match="--jobs must be at least 1, not 0"):
        sweep(path, jobs=0)
    Path("a_file").touch()
    with pytest.raises(MemtradeError, match="cannot write to the folder 'a_file'"):
        sweep(path, results=Path("a_file"))


# One sweep per folder.


def test_a_second_sweep_into_the_same_folder_is_refused(fake: Fake, write: Write) -> None:
    path = write(FOUR)
    with sole_sweep(Path("runs")):
        with pytest.raises(MemtradeError, match="another sweep writes into 'runs': wait for"):
            sweep(path)
        assert sweep(path, dry_run=True) == 0  # it only reads
        assert sweep(path, results=Path("others")) == 0
    assert len(fake.started()) == 4
    assert sweep(path) == 0
    assert len(fake.started()) == 8


def test_a_sweep_that_is_killed_gives_its_folder_back(fake: Fake, write: Write) -> None:
    path = write(FOUR)
    fake.tricks({"original": "hang"})
    process = drive(fake, path)
    wait_for_starts(fake, 1, process)
    with pytest.raises(MemtradeError, match="another sweep writes into"):
        sweep(path)
    process.kill()
    process.communicate(timeout=60)
    fake.tricks({})
    assert sweep(path) == 0
    assert len(by_strategy()) == 4


def test_a_folder_that_is_none(fake: Fake, write: Write) -> None:
    Path("runs").write_text("a file")
    with pytest.raises(MemtradeError, match="cannot write to the folder 'runs'"):
        sweep(write(FOUR))
    with (
        pytest.raises(MemtradeError, match="cannot use the folder 'runs': File exists"),
        sole_sweep(Path("runs")),
    ):
        pass
    assert not fake.started()


# Several at a time.


def test_jobs_run_side_by_side_and_records_say_it(
    fake: Fake, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.tricks(dict.fromkeys(NAMES, "meet"))
    path = write(FOUR)
    assert sweep(path, jobs=2) == 0
    assert sorted(fake.started()) == sorted(NAMES)
    assert fake.most_at_a_time() == 2
    assert {record.jobs for record in load_records("runs")} == {2}
    assert "2 trials at a time disturb each other's step times" in capsys.readouterr().err
    assert sweep(path, retry="parallel") == 0
    assert {record.jobs for record in load_records("runs")} == {1}
    assert len(fake.started()) == 8


def test_who_starves_beside_others_runs_again_alone(
    fake: Fake, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.tricks({"lms": "greedy", "ome": "greedy"})
    path = write(FOUR.replace('"original", "checkpoints", ', ""))
    assert sweep(path, jobs=2) == 0
    assert sorted(fake.started()) == ["lms", "lms", "ome", "ome"]
    records = load_records("runs")
    assert [(record.status, record.jobs) for record in records] == [("ok", 1)] * 2
    assert "beside other trials; it will run again" in capsys.readouterr().err


class Ends:
    """A watch that keeps what it is told."""

    def __init__(self) -> None:
        self.ends: dict[str, End] = {}

    def note(self, text: str) -> None: ...

    def started(self, trial: Trial) -> None: ...

    def event(self, event: object) -> None: ...

    def log(self, line: str) -> None: ...

    def ended(self, trial: Trial, end: End, seconds: float) -> None:
        assert seconds > 0
        self.ends[trial.spec.strategy] = end

    def again(self, trial: Trial, why: str) -> None: ...


def test_a_gpu_has_one_trial_at_a_time(fake: Fake, write: Write) -> None:
    fake.tricks(dict.fromkeys(NAMES, "meet"))
    devices = ["gpu:0", "gpu:0", "gpu:1", "gpu:1"]
    trials = [
        msgspec.structs.replace(trial.spec, device=device)
        for trial, device in zip(read_sweep(write(FOUR)), devices, strict=True)
    ]
    watch = Ends()
    runner.run_locally(
        [Trial(spec=spec, timeout_seconds=20, id=spec.strategy) for spec in trials],
        jobs=4,
        watch=watch,
    )
    assert sorted(watch.ends) == sorted(NAMES)
    assert fake.most_at_a_time() == 2
    begins = {strategy: at for strategy, _, at in fake.notes("start")}
    ends = {strategy: at for strategy, _, at in fake.notes("end")}
    for first, second in (("original", "checkpoints"), ("lms", "ome")):
        assert ends[first] <= begins[second]


def test_lowered_jobs_are_said(
    fake: Fake, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "free_memory_bytes", lambda: 3 << 30)
    assert sweep(write(FOUR), jobs=3) == 0
    assert "--jobs lowered from 3 to 1: a trial may take 2,147.5 MB" in capsys.readouterr().err
    assert fake.most_at_a_time() == 1


# The time left.


def test_the_pace_goes_by_the_same_step_and_by_real_time(write: Write) -> None:
    slow, fast = read_sweep(write('[[grid]]\nlayers = [200, 18]\nstrategy = "lms"'))
    pace = Pace()
    pace.took(slow, 90.0)
    assert pace.left_seconds([slow, fast], 90.0) == pytest.approx(180)
    pace.took(fast, 10.0)
    assert pace.left_seconds([slow, fast, fast], 100.0) == pytest.approx(110)
    # Two at a time took half the time.
    assert pace.left_seconds([slow, fast, fast], 50.0) == pytest.approx(55)
    assert pace.text([]) == ""


def test_durations() -> None:
    assert [duration(x) for x in (44.2, 750, 9000)] == ["44 s", "12 min", "2 h 30 min"]


# However a sweep ends.


def drive(fake: Fake, path: Path, *flags: str) -> subprocess.Popen[str]:
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sweep.drive", str(fake.script), str(path), *flags],
        env=os.environ | {"PYTHONPATH": python_path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_starts(fake: Fake, count: int, process: subprocess.Popen[str]) -> list[int]:
    """The processes of the trials, as soon as the sweep in `process` has started so many."""
    deadline = time.monotonic() + 120
    while len(fake.started()) < count:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError((fake.started(), *process.communicate()))
        time.sleep(0.02)
    return [pid for _, pid, _ in fake.notes("start")]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        left = [pid for pid in pids if psutil.pid_exists(pid)]
        if all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in left):
            return
        time.sleep(0.05)
    raise AssertionError("a child stays behind")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_stopped_sweep_loses_what_was_running_and_goes_on(
    fake: Fake, write: Write, number: signal.Signals, jobs: int
) -> None:
    path = write(FOUR)
    fake.tricks({"lms": "hang", "ome": "hang"})
    process = drive(fake, path, "--jobs", str(jobs))
    pids = wait_for_starts(fake, 2 + jobs, process)
    while len(list(Path("runs").glob("*.json"))) < 2:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped; 2 of 4 trials had finished" in err
        assert "4 trials: 2 ran, 2 to run" in out
    assert_gone(pids)
    assert sorted(by_strategy()) == ["checkpoints", "original"]
    assert not list(Path("runs").glob("*.tmp"))

    fake.tricks({})
    assert sweep(path, jobs=jobs) == 0
    assert sorted(by_strategy()) == sorted(NAMES)
    again = fake.started()[2 + jobs :]
    assert sorted(again) == ["lms", "ome"]


def test_what_a_sweep_measured_is_told_where_no_record_can_be_written(
    fake: Fake, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def disk_full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("memtrade.measure.records.write_whole", disk_full)
    with pytest.raises(MemtradeError, match="No space left on device"):
        sweep(write(FOUR))
    assert "4 trials: 3 to run, 1 ran" in capsys.readouterr().out


def test_an_error_of_the_sweep_ends_its_children(
    fake: Fake, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.tricks({"checkpoints": "hang"})
    trials = read_sweep(write(FOUR))
    watch = Ends()

    def disk_full(trial: Trial, end: End, seconds: float) -> None:
        raise MemtradeError("the disk is full")

    monkeypatch.setattr(watch, "ended", disk_full)
    began = time.monotonic()
    with pytest.raises(MemtradeError, match="the disk is full"):
        runner.run_locally(trials, jobs=2, watch=watch)
    assert time.monotonic() - began < 20
    assert_gone([pid for _, pid, _ in fake.notes("start")])
