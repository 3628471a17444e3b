"""What updates of variables take is what the shipped facts say: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

from memtrade.facts.shipped import CPU
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec

DRIVER = Path(__file__).with_name("drive_updates.py")


def test_updates_take_nothing() -> None:
    file = resources.files("memtrade.facts") / "shipped" / f"{CPU}.toml"
    updates = tomllib.loads(file.read_text(encoding="utf-8"))["updates"].split()
    env = child_environment(TrialSpec(memory_limit_bytes=256 << 20), os.environ)
    command = [sys.executable, str(DRIVER), *updates]
    child = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == dict.fromkeys(updates, 0)
