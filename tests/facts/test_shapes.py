"""Which constants a graph keeps is what the shipped facts say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from memtrade.facts import looked_at
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec

DRIVER = Path(__file__).with_name("drive_shapes.py")


def test_a_graph_keeps_the_constants_that_its_shape_functions_ask_for() -> None:
    env = child_environment(TrialSpec(memory_limit_bytes=256 << 20), os.environ)
    command = [sys.executable, str(DRIVER)]
    child = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    found = {op_type: tuple(kept) for op_type, kept in json.loads(child.stdout).items()}
    others = {"Mean": (1,), "Reshape": (1,), "StridedSlice": (1, 2, 3), "Tile": (1,)}
    assert found == {**looked_at(), **others}
