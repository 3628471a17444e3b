"""What the shipped facts say is what TensorFlow does in an arena, in a process of its own."""

from __future__ import annotations

import json
import os
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from memtrade.facts import looked_at, read_as_shapes
from memtrade.facts.shipped import CPU
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from tests import forks


def told(driver: str, *words: str) -> Any:
    """What one of the drivers beside this file prints."""
    env = child_environment(TrialSpec(memory_limit_bytes=256 << 20), os.environ)
    child = forks.ran([str(Path(__file__).with_name(driver)), *words], env=env)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@pytest.mark.parametrize("those", ["plain", "updates"])
def test_they_take_their_outputs_and_nothing_else(those: str) -> None:
    file = resources.files("memtrade.facts") / "shipped" / f"{CPU}.toml"
    types = tomllib.loads(file.read_text(encoding="utf-8"))[those].split()
    assert told(f"drive_{those}.py", *types) == dict.fromkeys(types, 0)


def test_a_graph_keeps_the_constants_that_its_shape_functions_ask_for() -> None:
    asked, shapes = (
        {op_type: tuple(kept) for op_type, kept in each.items()} for each in told("drive_shapes.py")
    )
    assert asked == {**looked_at(), "ConcatV2": (2,)}
    assert shapes == read_as_shapes()
