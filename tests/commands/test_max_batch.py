"""`memtrade max-batch`: made-up trials, but for the last test, a search from start to end."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memtrade import cli
from memtrade.commands import max_batch as module
from memtrade.measure.max_batch import BatchSearch, Candidate, MaxBatchRecord
from memtrade.measure.protocol import Measured, Outcome, Status, StepDone, TrialSpec
from memtrade.measure.records import load_records
from tests.commands.conftest import SMALL, SMALL_GPT2, Run

LIMITED = [*SMALL, "--memory-limit", "100MiB", "--strategy", "original,lms"]
LIMITED += ["--granularity", "10"]


class Trials:
    """Trials that run up to `truth` examples; `stop_at` presses Ctrl-C in place of that many."""

    def __init__(self, truth: int, *, failure: Status = "out_of_memory"):
        self.truth = truth
        self.failure: Status = failure
        self.batches: list[tuple[str, int]] = []
        self.stop_at: int | None = None

    def run(self, spec: TrialSpec, *_: Any, **__: Any) -> Outcome:
        if len(self.batches) == self.stop_at:
            raise KeyboardInterrupt
        batch = spec.model_options["batch_size"]
        self.batches.append((spec.strategy, batch))
        if batch > self.truth:
            return Outcome(status=self.failure, reason="no room")
        measured = Measured.of(
            [StepDone(2.0, batch * 1_000_000, 1.0)],
            warmup=0,
            persistent_bytes=0,
            host_bytes=5_000_000,
            trace_seconds=0.0,
            plan_seconds=0.0,
            rewrite_seconds=0.0,
        )
        return Outcome(measured=measured)


@pytest.fixture(scope="module")
def candidates() -> dict[Hashable, Candidate]:
    """The plans and predictions of all searches here: most search the same sizes again."""
    return {}


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, candidates: dict[Hashable, Candidate]) -> Trials:
    made, make = Trials(60), BatchSearch._make_candidate

    def remembered(search: BatchSearch, batch: int) -> Candidate:
        key = msgspec.json.encode(search.base), search.target.limit_bytes, batch
        if key not in candidates:
            candidates[key] = make(search, batch)
        return candidates[key]

    monkeypatch.setattr(BatchSearch, "_make_candidate", remembered)
    monkeypatch.setattr(module, "watched", made.run)
    return made


def test_it_ends_in_a_table_and_a_record_per_search(run: Run, trials: Trials) -> None:
    status, out, err = run("max-batch", *LIMITED, "--format", "markdown")
    assert status == 0
    title = "**Largest batch: resnet-18, 32 × 32 pixels, num_classes=10, sgd, arena of 100 MiB**"
    assert out.startswith(title)
    assert "| original | device memory | 60 | 1.00 | 70 |" in out
    assert "| 60.0 | 5.0 | 2.00 | 30.00 |" in out
    assert "lms, batch 60: the largest, bound by device memory" in err
    original, lms = sorted(MaxBatchRecord.load("runs"), key=lambda s: s.spec.strategy, reverse=True)
    assert (original.batch_size, lms.batch_size) == (60, 60)
    assert original.command == " ".join(["memtrade max-batch", *LIMITED, "--format markdown"])
    assert original.predicted_batch_size != lms.predicted_batch_size
    ids = {record.id for record in load_records("runs")}
    assert {tried.id for search in (original, lms) for tried in search.trials} == ids
    assert [("original", t.batch_size) for t in original.trials] == trials.batches[
        : len(original.trials)
    ]


def test_trials_that_have_run_are_not_run_again(run: Run, trials: Trials) -> None:
    first = run("max-batch", *LIMITED, "--json")
    ran = len(trials.batches)
    again = run("max-batch", *LIMITED, "--json")
    assert len(trials.batches) == ran
    assert "(ran before)" in again[2]
    for before, after in zip(json.loads(first[1]), json.loads(again[1]), strict=True):
        assert {**before, "created": ""} == {**after, "created": ""}


def test_a_trial_that_crashed_is_run_again(run: Run, trials: Trials) -> None:
    trials.failure = "crashed"
    status, out, _ = run("max-batch", *LIMITED)
    assert status == 1
    assert "original at 70: crash: no room" in out
    ran = len(trials.batches)
    trials.failure = "out_of_memory"
    assert run("max-batch", *LIMITED)[0] == 0
    again = trials.batches[ran:]
    assert ("original", 70) in again
    assert ("original", 60) not in again


def test_ctrl_c_keeps_what_has_finished(run: Run, trials: Trials) -> None:
    run("max-batch", *LIMITED, "--results", "whole")
    searched = {s.spec.strategy: s for s in MaxBatchRecord.load("whole")}
    trials.batches.clear()
    trials.stop_at = len(searched["original"].trials) + 1
    status, out, err = run("max-batch", *LIMITED, "--json")
    assert status == 130
    assert "stopped; 1 of 2 searches had finished; their trials are kept" in err
    assert [search["spec"]["strategy"] for search in json.loads(out)] == ["original"]
    assert len(load_records("runs")) == trials.stop_at
    trials.stop_at = None
    ran = len(trials.batches)
    assert run("max-batch", *LIMITED)[0] == 0
    assert len(trials.batches) - ran == len(searched["lms"].trials) - 1


def test_records_of_searches_are_no_trials(run: Run, trials: Trials) -> None:
    """Tables of the folder show the trials, and warn of nothing."""
    run("max-batch", *LIMITED)
    status, out, err = run("table", "runs")
    assert (status, err) == (0, "")
    assert "resnet-18, batch 60" in out


def test_the_search_begins_at_start_or_at_what_was_found_before(run: Run, trials: Trials) -> None:
    def asked(folder: str, *flags: str) -> dict[str, int]:
        """The first batch of each strategy that was planned."""
        first: dict[str, int] = {}
        for line in run("max-batch", *LIMITED, *flags, "--results", folder)[2].splitlines():
            head, _, phase = line.rpartition(": ")
            if phase == "simulate":
                strategy, _, batch = head.partition("] ")[2].partition(", batch ")
                first.setdefault(strategy, int(batch))
        return first

    assert asked("default") == {"original": 10, "lms": 60}
    assert asked("told", "--start", "40") == {"original": 40, "lms": 40}


BAD = [
    ("--start 0", "--start must be at least 1, not 0"),
    ("--granularity 0", "--granularity must be at least 1, not 0"),
    (f"--start {10**15}", "images of 1,000,000,000,000,000 × "),
    ("--granularity 8 --max-batch-size 7", "must be at least the granularity of 8, not 7"),
    ("--granularity 20 --split reordered", "must be a multiple of 8, the number of parts"),
    ("--max-batch-size 0", "must be at least the granularity of 1, not 0"),
    ("--memory-limit 30MiB", "the memory limit must exceed the variables' size"),
    ("--device gpu:3", "unknown device 'gpu:3'"),
    ("--results a_file", "cannot write to the folder 'a_file'"),
    ("--steps 0", "--steps must be at least 1"),
]


@pytest.mark.parametrize(("flags", "message"), BAD, ids=[each[0] for each in BAD])
def test_bad_input_is_one_line_and_writes_nothing(
    run: Run, trials: Trials, flags: str, message: str
) -> None:
    Path("a_file").write_text("")
    status, out, err = run("max-batch", *SMALL, *flags.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert trials.batches == []
    assert sorted(path.name for path in Path().iterdir()) == ["a_file"]


def test_a_damaged_record_is_left_out_with_a_warning(run: Run, trials: Trials) -> None:
    Path("runs").mkdir()
    Path("runs/broken.json").write_text("{")
    status, _, err = run("max-batch", *LIMITED)
    assert status == 0
    assert "memtrade: warning: left out runs/broken.json" in err


@pytest.mark.usefixtures("asking")
def test_from_start_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real children: the prediction is right, and two trials confirm it."""
    monkeypatch.chdir(tmp_path)
    flags = ["--strategy", "lms", "--memory-limit", "16MiB", "--granularity", "40"]
    assert cli.main(["max-batch", *SMALL_GPT2, *flags]) == 0
    [search] = MaxBatchRecord.load("runs")
    assert search.bound == "device memory"
    assert search.failing_batch_size == search.batch_size + 40
    assert search.predicted_batch_size == search.batch_size
    assert [tried.status for tried in search.trials] == ["ok", "out_of_memory"]
    records = {record.id: record for record in load_records("runs")}
    best = records[search.trials[0].id]
    assert best.measured is not None
    assert best.predicted is not None
    assert best.measured.peak_bytes == pytest.approx(best.predicted.peak_bytes, rel=0.01)
