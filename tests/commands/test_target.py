"""`--target`: each command that names a model takes a step of the user's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from memtrade.commands import profiles
from memtrade.graph import StepGraph
from memtrade.measure.protocol import TrialSpec
from memtrade.models import make_model
from memtrade.tf.build import make_step
from memtrade.tf.extract import trace
from tests.commands.conftest import Run

MODULE = """
import tensorflow as tf

def make_step(batch_size=7):
    weights = [tf.Variable(tf.eye(32) / 2) for _ in range(12)]

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            for w in weights:
                x = tf.nn.tanh(x @ w)
            loss = tf.reduce_mean((x - y) ** 2)
        for w, gradient in zip(weights, tape.gradient(loss, weights)):
            w.assign_sub(0.1 * gradient)
        return {"loss": loss}

    return train_step, (tf.ones([batch_size, 32]), tf.zeros([batch_size, 32]))
"""

TARGET = ["--target", "own_steps:make_step", "--batch-size", "4096"]
ON_THE_ARENA = ["--device", "arena", "--memory-limit", "64MiB"]


@pytest.fixture(autouse=True)
def _module(run: Run, tmp_path: Path) -> None:
    del run  # it goes to the folder first
    (tmp_path / "own_steps.py").write_text(MODULE)


@pytest.fixture
def _traced_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def trace_here(spec: TrialSpec, **_: object) -> StepGraph:
        return trace(make_step(make_model(spec.model, spec.model_options))).graph

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_steps", raising=False)
    monkeypatch.setattr(profiles, "extract_graph", trace_here)


@pytest.mark.usefixtures("started_anew")
def test_run_measures_it_in_children(run: Run, tmp_path: Path) -> None:
    chosen = ["--strategy", "original,checkpoints", "--steps", "1"]
    status, out, err = run("run", *TARGET, *ON_THE_ARENA, *chosen)
    assert status == 0, err
    assert out.startswith("own_steps:make_step, batch 4096, its own optimizer, arena of 64 MiB")
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "runs").glob("*.json"))]
    peaks = {record["spec"]["strategy"]: record["measured"]["peak_bytes"] for record in records}
    assert 0 < peaks["checkpoints"] < peaks["original"]
    status, out, _ = run("table", "runs")
    assert status == 0
    assert "own_steps:make_step" in out


def test_verify_compares_it(run: Run) -> None:
    status, out, err = run("verify", *TARGET, *ON_THE_ARENA, "--strategy", "checkpoints")
    assert status == 0, err
    assert "Compared with the original: own_steps:make_step, batch 4096" in out
    assert "0 (to the bit)" in out


def test_inspect_says_what_is_in_it(run: Run, tmp_path: Path) -> None:
    status, out, err = run("inspect", *TARGET, *ON_THE_ARENA)
    assert out.startswith("What is in own_steps:make_step, batch 4096")
    assert status == 0, err
    assert "activations" in out
    assert "refused" not in out
    written = "tf.raw_ops.InplaceUpdate(x=tf.stop_gradient(x), i=[0], v=[[1.0] * 32])"
    in_place = MODULE.replace("x = tf.nn.tanh(x @ w)", f"x = tf.nn.tanh(x @ w + {written})")
    (tmp_path / "own_steps.py").write_text(in_place)
    status, out, _ = run("inspect", *TARGET, *ON_THE_ARENA, "--json")
    assert status == 1
    assert [each["what"] for each in json.loads(out) if each["refused"]] == ["in-place ops"]


def test_what_is_wrong_with_it_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own_steps.py").write_text("import no_such_module")
    status, out, err = run("run", *TARGET, *ON_THE_ARENA, "--strategy", "original")
    assert (status, out) == (2, "")
    said = (
        "cannot import own_steps:make_step: ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert f"memtrade: {said} (own_steps.py, line 1)" in " ".join(err.split())
    (tmp_path / "own_steps.py").write_text("make_step = 3")
    status, _, err = run("run", *TARGET, *ON_THE_ARENA, "--strategy", "original")
    assert "own_steps:make_step is no function but int: write it as" in " ".join(err.split())
    (tmp_path / "own_steps.py").write_text("def make_step(model, data):\n    raise OSError")
    status, _, err = run("run", *TARGET, *ON_THE_ARENA, "--strategy", "original")
    assert status == 2
    assert "make_step takes more than `batch_size` (missing a req" in " ".join(err.split())
    assert not list(tmp_path.glob("runs/*.json"))
    status, _, err = run("run", "--model", "target")
    assert status == 2
    assert "none is named: write it as mypackage.train:make_step, behind" in " ".join(err.split())


def test_a_trial_that_takes_too_long_is_no_success(run: Run) -> None:
    hurried = ["--strategy", "original", "--timeout", "0.01"]
    status, out, _ = run("run", *TARGET, *ON_THE_ARENA, *hurried)
    assert status == 1
    assert "timeout" in out


@pytest.mark.usefixtures("_traced_here")
def test_plan_predict_and_timeline_take_it(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("plan", *TARGET, "--strategy", "checkpoints")
    assert status == 0
    assert "checkpoints on own_steps:make_step" in out
    status, out, _ = run("predict", *TARGET, "--strategy", "original,checkpoints")
    assert status == 0
    assert "Predicted, not measured: own_steps:make_step, batch 4096, its own" in out
    status, _, _ = run("timeline", *TARGET, "--strategy", "checkpoints", "--output", "page.html")
    assert status == 0
    assert "own_steps:make_step" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("tokens", "rule"),
    [
        (["--model", "gpt2"], "--target is in place of --model gpt2: give one of them"),
        (["--optimizer", "adam"], "has its own optimizer: leave --optimizer and --learning-rate"),
        (["--learning-rate", "0.5"], "has its own optimizer"),
        (["--image-size", "32"], "image"),
    ],
)
def test_flags_that_do_not_go_with_it(run: Run, tokens: list[str], rule: str) -> None:
    status, out, err = run("run", *TARGET, *tokens)
    assert (status, out) == (2, "")
    assert rule in " ".join(err.split())
