"""Commands as one types them, on a small step that is traced here and not in a child."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tensorflow as tf

from memtrade.commands import explain, max_batch, profiles
from memtrade.graph import StepGraph
from memtrade.measure import host
from memtrade.measure.protocol import TrialSpec
from memtrade.models import make_model
from memtrade.tf.build import make_step
from memtrade.tf.extract import trace

SMALL = ["--layers", "18", "--image-size", "32", "--num-classes", "10", "--batch-size", "16"]
SMALL_GPT2 = [
    "--model", "gpt2", "--model-option", "layers=2", "--model-option", "width=32",
    "--model-option", "heads=2", "--model-option", "positions=16",
    "--model-option", "vocabulary=50", "--batch-size", "4",
]  # fmt: skip

Run = Callable[..., tuple[int, str, str]]


@cache
def traced(model: str, options: bytes, optimizer: str) -> StepGraph:
    with tf.Graph().as_default():
        step = make_step(make_model(model, msgspec.json.decode(options)), optimizer=optimizer)
        return trace(step).graph


def trace_here(spec: TrialSpec, **_: Any) -> StepGraph:
    assert spec.task == "extract"
    options = msgspec.json.encode(spec.model_options, order="sorted")
    return traced(spec.model, options, spec.optimizer)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Run) -> Run:
    """Runs a command in an empty folder: exit status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(host, "gpus", list)
    for module in (explain, profiles, max_batch):
        monkeypatch.setattr(module, "extract_graph", trace_here)
    return typed
