"""Ops that the shipped facts say take their outputs alone do so."""

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

DRIVER = Path(__file__).with_name("drive_plain.py")


def test_they_take_their_outputs_and_nothing_else() -> None:
    file = resources.files("memtrade.facts") / "shipped" / f"{CPU}.toml"
    plain = tomllib.loads(file.read_text(encoding="utf-8"))["plain"].split()
    env = child_environment(TrialSpec(memory_limit_bytes=256 << 20), os.environ)
    command = [sys.executable, str(DRIVER), *plain]
    child = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == dict.fromkeys(plain, 0)
