"""`memtrade calibrate`: a profile, written once it is known to be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memtrade.commands import calibrate as module
from memtrade.devices import load_device
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import Outcome
from tests.commands.conftest import Run
from tests.measure.test_calibration import PROFILE


class Child:
    """Stands in for the child process."""

    def __init__(self) -> None:
        self.outcome = Outcome(status="ok", profile=PROFILE)
        self.specs: list[TrialSpec] = []

    def run(self, spec: TrialSpec, *_: Any, **__: Any) -> Outcome:
        self.specs.append(spec)
        return self.outcome


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    made = Child()
    monkeypatch.setattr(module, "watched", made.run)
    return made


def test_it_writes_a_profile_that_predictions_read(run: Run, child: Child) -> None:
    status, out, _ = run("calibrate", "--output", "mine.toml", "--memory-limit", "1GiB")
    assert status == 0
    assert Path("mine.toml").read_text() == out
    [spec] = child.specs
    assert (spec.task, spec.device, spec.memory_limit_bytes) == ("calibrate", "arena", 1 << 30)
    device = load_device("mine.toml")
    assert device.name == "mine"
    assert device.source.startswith("Measured by memtrade calibrate on 20")
    assert "cores" in device.source
    assert "TensorFlow 2." in device.source


def test_a_file_that_is_there_is_kept_unless_one_says_otherwise(run: Run, child: Child) -> None:
    Path("mine.toml").write_text("mine")
    status, _, err = run("calibrate", "--output", "mine.toml")
    assert status == 2
    assert "mine.toml is there already: say --overwrite" in err
    assert Path("mine.toml").read_text() == "mine"
    assert child.specs == []
    assert run("calibrate", "--output", "mine.toml", "--overwrite")[0] == 0
    assert load_device("mine.toml").name == "mine"


def test_a_child_that_fails_writes_nothing(run: Run, child: Child) -> None:
    child.outcome = Outcome(status="out_of_memory", reason="no room")
    status, out, err = run("calibrate", "--output", "mine.toml")
    assert (status, out) == (1, "")
    assert "arena was not calibrated: out of memory: no room" in err
    assert not Path("mine.toml").exists()


def test_from_start_to_end(run: Run) -> None:
    """A real child, whose tensors are small because its memory is."""
    status, out, err = run("calibrate", "--output", "real.toml", "--memory-limit", "40MiB")
    assert (status, out) == (0, Path("real.toml").read_text()), err
    device = load_device("real.toml")
    assert device.memory_bytes == 40 << 20
    assert device.blocking_transfers
    assert 1e8 < device.flops_per_s < 1e15


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--output mine.json", "a device profile is a .toml file, not 'mine.json'"),
        ("--output nowhere/mine.toml", "there is no folder 'nowhere'"),
        ("--output mine.toml --device gpu:4", "unknown device 'gpu:4'"),
        ("--output mine.toml --memory-limit 3", "--memory-limit is a number and a unit"),
        ("", "memtrade calibrate takes --output"),
    ],
)
def test_bad_input_is_one_line(run: Run, child: Child, flags: str, message: str) -> None:
    status, out, err = run("calibrate", *flags.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert child.specs == []
    assert not Path("mine.toml").exists()
