"""The plugin as pytest loads it: by its entry point, in sessions of their own."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

STEP = """
import keras
import pytest
import tensorflow as tf

weights = [tf.Variable(tf.eye(64)) for _ in range(8)]

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        for weight in weights:
            x = tf.nn.tanh(x @ weight)
        loss = tf.reduce_mean(x**2)
    for weight, gradient in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(0.1 * gradient)
    return loss

batch = tf.TensorSpec([1024, 64])
"""


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Sessions see memtrade as an installation would: its code, and its entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [(name, module)] = project["entry-points"]["pytest11"].items()
    about = pytester.mkdir("site") / "memtrade_here-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: memtrade_here\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    path = os.pathsep.join([str(about.parent), str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", path)
    # Nothing but what is tested, and pytest's own.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider -p no:benchmark -p no:xdist")
    return pytester


def test_a_session_that_does_not_use_it_pays_nothing(installed: pytest.Pytester) -> None:
    installed.makepyfile("""
        import sys

        def test_what_is_loaded(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("memtrade")
            assert "tensorflow" not in sys.modules
            ours = {name for name in sys.modules if name.startswith("memtrade.")}
            assert ours == {"memtrade.guard", "memtrade.guard.plugin", "memtrade.errors",
                            "memtrade.units"}
    """)
    result = installed.runpytest_subprocess("--strict-markers")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*peaks of training steps*")


def test_a_step_that_takes_more_fails(installed: pytest.Pytester) -> None:
    installed.makepyfile(
        STEP
        + """
found = {}

def test_without_a_limit(peak_memory):
    found["bytes"] = peak_memory(train_step, batch)
    assert 2e6 < found["bytes"] < 1e7
    assert peak_memory(train_step, batch, strategy="checkpoints") < found["bytes"]

@pytest.mark.peak_memory("10MB")
def test_within(peak_memory):
    peak_memory(train_step, batch)

@pytest.mark.peak_memory("1MB")
def test_above(peak_memory):
    peak_memory(train_step, batch)

def test_a_growth_by_one_percent_is_let_pass(request, peak_memory):
    request.node.add_marker(pytest.mark.peak_memory(int(found["bytes"] / 1.009)))
    peak_memory(train_step, batch)

def test_a_growth_by_more_is_not(request, peak_memory):
    request.node.add_marker(pytest.mark.peak_memory(int(found["bytes"] / 1.011)))
    peak_memory(train_step, batch)

@pytest.mark.peak_memory("10MB")
def test_that_looks_at_nothing():
    pass

@pytest.mark.peak_memory("10 parsecs")
def test_of_no_size(peak_memory):
    peak_memory(train_step, batch)

@pytest.mark.peak_memory
def test_of_no_limit(peak_memory):
    peak_memory(train_step, batch)

@pytest.mark.peak_memory("1kB", foo=1)
def test_of_more(peak_memory):
    peak_memory(train_step, batch)

@pytest.mark.peak_memory("1kB")
def test_of_little(peak_memory):
    peak_memory(train_step, batch)

def test_without_a_marker_the_limit_of_the_command_holds(peak_memory):
    peak_memory(train_step, tf.TensorSpec([8192, 64]))

def test_a_keras_model(peak_memory):
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(512), keras.layers.Dense(1)])
    with pytest.raises(pytest.fail.Exception, match="call model.compile"):
        peak_memory(model, tf.ones([1024, 64]), tf.ones([1024, 1]))
    model.compile("sgd", "mse")
    predicted = peak_memory(model, tf.ones([1024, 64]), tf.ones([1024, 1]))
    assert 1024 * 512 * 4 < predicted < 4_000_000

def test_of_what_is_no_step(peak_memory):
    peak_memory(42, batch)

def test_measured(peak_memory):
    measured = peak_memory(train_step, batch, strategy="checkpoints", measure=True)
    predicted = peak_memory(train_step, batch, strategy="checkpoints")
    assert abs(measured - predicted) < 0.02 * measured < 0.02 * found["bytes"]
"""
    )
    result = installed.runpytest_subprocess("--strict-markers", "--memtrade-limit", "9MB")
    result.assert_outcomes(passed=5, failed=9)
    result.stdout.re_match_lines([
        r"the peak of train_step is ≈ \d\.\d MB \(predicted\), above 1\.0 MB and 1%: activ.*",
        r"the peak of train_step is ≈ \d\.\d MB \(predicted\), above \d\.\d MB and 1%: .*",
        r"the test is marked peak_memory and hands no step to the fixture peak_memory",
        r".*a size is a number and a unit, not '10 parsecs'.*",
        r"the marker peak_memory takes a limit, such as '500MB', and within: not \(\)",
        r"the marker peak_memory takes .*, such as '500MB', and within: not \('1kB', foo=1\)",
        r"the peak of train_step is ≈ \d\.\d MB \(predicted\), above 1\.0 KB and 1%: .*",
        r".* is ≈ \d+\.\d MB \(predicted\), above --memtrade-limit, 9\.0 MB: activations .*",
        r"a training step is a tf.function or a Python function, not int",
        r".*peaks of training steps.*",
        r".*::test_within: train_step ≈ \d\.\d MB predicted",
    ])  # fmt: skip


def test_a_limit_that_is_no_size_is_said_at_once(installed: pytest.Pytester) -> None:
    wrong = installed.runpytest_subprocess("--memtrade-limit", "much")
    said = r".*--memtrade-limit is a number and a unit, not 'much'.*"
    wrong.stderr.re_match_lines([said])
