# pyright: reportArgumentType=false
# (Keras and TensorFlow annotate less than they take.)
"""Where no strategy is named: the step as it is where it fits, else the fastest plan."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import memtrade
from memtrade.errors import InfeasibleBudgetError
from memtrade.guard.peak import peak_of
from memtrade.keras import TrainFunction, optimize
from memtrade.settings import settings_of
from tests.tf.test_apply import clones
from tests.tf.test_batch import make_step

BATCH = tf.random.stateless_normal([1024, 64], [0, 1])


def test_the_step_stays_as_it_is_where_it_fits_and_else_gets_the_fastest_plan_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With oneDNN the CPU's allocator counts, too, and says more than a plan takes.
    monkeypatch.setattr("memtrade.planning.can_be_rehearsed", lambda traced: False)
    step, weights = make_step(layers=8)
    original, lean = (peak_of(step, BATCH, name).size_bytes for name in ("original", "checkpoints"))
    roomy = memtrade.apply(step, BATCH, "auto", budget=int(original * 1.05))
    assert clones(roomy, (BATCH,)) == 0
    tight = memtrade.apply(step, BATCH, "auto", budget=(original + lean) // 2)
    assert clones(tight, (BATCH,)) > 0
    before = [weight.numpy() for weight in weights]
    found = float(tight(BATCH))
    for weight, value in zip(weights, before, strict=True):
        weight.assign(value)
    assert float(step(BATCH)) == found
    with pytest.raises(InfeasibleBudgetError):
        memtrade.apply(step, BATCH, "auto", budget="100KB")


def test_the_budget_is_what_the_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtrade.measure.host.room_bytes", lambda: 10**9)
    assert settings_of("auto").budget_bytes == 10**9
    assert settings_of("auto").options.swap is False  # the CPU's memory is the host's
    assert settings_of("auto", profile="gtx-1070").budget_bytes == 7_606_362_368
    assert settings_of("auto", budget="2GB").budget_bytes == 2 * 10**9
    assert settings_of("ome").budget_bytes is None


def test_a_keras_model_needs_no_more_than_its_name() -> None:
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    x, y = np.ones([16, 8], "float32"), np.ones([16], "float32")
    made = optimize(model).train_function
    assert isinstance(made, TrainFunction)
    model.fit(x, y, batch_size=16, verbose=0)
    assert clones(made.step, ((x, y),)) == 0
