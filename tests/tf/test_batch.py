# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalSubscript=false
# (Keras and TensorFlow annotate less than they take.)
"""memtrade.largest_batch and memtrade.keras.fit: predicted, tried in children, then trained."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import memtrade
from memtrade.batch import NoBatchFitsError, largest
from memtrade.batch.fitting import accumulate
from memtrade.errors import MemtradeError, UnsupportedGraphError
from memtrade.keras import TrainFunction, fit
from memtrade.measure.here import here_target, learned_target
from memtrade.measure.protocol import Outcome, Status, TrialSpec
from memtrade.measure.records import Record, make_record
from memtrade.measure.step_trial import try_step
from memtrade.simulate.predict import Predictor
from memtrade.strategies import PLANNED, make_options
from memtrade.tf.calling import step_to_read
from memtrade.tf.extract import trace_concrete
from tests.tf.user_steps import descending

WIDTH, LAYERS = 64, 12


def make_step(layers: int = LAYERS):
    weights = [tf.Variable(tf.eye(WIDTH)) for _ in range(layers)]

    def forward(x):
        for weight in weights:
            x = tf.nn.tanh(x @ weight)
        return x

    return descending(forward, weights), weights


def batch_of(count: int) -> tf.TensorSpec:
    return tf.TensorSpec([count, WIDTH])


def model_of(units: int = WIDTH, optimizer="sgd") -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(units, "tanh") for _ in range(5)]
    model = keras.Sequential([keras.Input([units]), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def data(count: int, units: int = WIDTH) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, units)), rng.normal(size=[count])


class Children:
    """Stands for the children: batches up to `truth` run, and others end with `failure`."""

    def __init__(self, truth: int):
        self.truth, self.batches = truth, []
        self.failure: Status = "out_of_memory"

    def __call__(self, spec: TrialSpec, concrete, specs, *, loss=None, foreseen=None) -> Record:
        self.batches.append(spec.model_options["batch_size"])
        runs = self.batches[-1] <= self.truth
        status = "ok" if runs else self.failure
        outcome = Outcome(status=status, reason="" if runs else "too large")
        return make_record(spec, outcome, command="")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    made = Children(10**9)
    monkeypatch.setattr(largest, "try_step", made)
    return made


def test_the_batch_runs_in_a_child_and_a_larger_one_does_not() -> None:
    step, weights = make_step()
    before = [weight.numpy() for weight in weights]
    found = memtrade.largest_batch(step, batch_of, "checkpoints", budget="24MiB")
    assert [trial.status for trial in found.trials] == ["ok", "out_of_memory"]
    runs, fails = (trial.batch_size for trial in found.trials)
    assert found.batch_size == runs < fails <= runs * 1.03
    assert found.peak_bytes <= found.budget_bytes == 24 << 20
    assert found.bound == "device memory"
    assert (found.strategy, found.options) == ("checkpoints", {})
    original = memtrade.largest_batch(step, batch_of, "original", budget="24MiB", trials=0)
    assert original.batch_size < 0.6 * found.batch_size
    for weight, value in zip(weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)  # nothing was trained


def test_a_child_lays_variables_down_without_holes() -> None:
    """Each was made beside its first value, which left a hole, and the peak was another."""
    weights = [tf.Variable(tf.ones(shape)) for shape in ((300, 500), (500, 300), (300,), (300, 7))]

    def forward(x):
        return tf.nn.tanh(tf.nn.tanh(x @ weights[0]) @ weights[1] + weights[2]) @ weights[3]

    step = descending(forward, weights)
    traced, concrete = step_to_read(step, (tf.TensorSpec([256, 300]),))
    spec = TrialSpec(memory_limit_bytes=24 << 20, strategy="checkpoints", steps=1)
    record = try_step(spec, concrete, traced.specs)
    assert record.status == "ok", record.reason
    assert record.measured is not None
    graph = trace_concrete(traced, concrete).graph
    target = learned_target(here_target("arena", limit_bytes=24 << 20), [graph])
    plan = PLANNED["checkpoints"].plan(graph, make_options("checkpoints"), target)
    foreseen = Predictor(graph, target).predict(plan)  # as if nothing lay between the variables
    assert record.measured.peak_bytes == foreseen.peak_bytes


@pytest.mark.parametrize("failure", ["out_of_memory", "infeasible"])
def test_trials_overrule_the_prediction(children: Children, failure: Status) -> None:
    """Also where the step breaks the budget that its plan was made for, below the limit."""
    children.failure = failure
    step, _ = make_step()
    predicted = memtrade.largest_batch(step, batch_of, budget="24MiB", trials=0)
    assert predicted.trials == ()
    children.truth = int(predicted.batch_size * 0.98)
    found = memtrade.largest_batch(step, batch_of, budget="24MiB")
    assert children.truth * 0.97 <= found.batch_size <= children.truth
    assert len(found.trials) <= 3
    children.truth = 10
    with pytest.raises(MemtradeError, match=r"in 3 trials not even \d+ ran: too large"):
        memtrade.largest_batch(step, batch_of, budget="24MiB")


def test_only_multiples_up_to_the_most_are_asked_for(children: Children) -> None:
    step, _ = make_step()
    found = memtrade.largest_batch(step, batch_of, budget="24MiB", multiple_of=48)
    assert found.batch_size % 48 == 0
    found = memtrade.largest_batch(step, batch_of, budget="24MiB", most=100)
    assert (found.batch_size, found.bound) == (100, "asked maximum")
    with pytest.raises(MemtradeError, match="multiple_of is a whole number from 1 on"):
        memtrade.largest_batch(step, batch_of, multiple_of=0)


def test_where_no_batch_fits_it_says_what_the_smallest_needs(children: Children) -> None:
    children.truth = 0
    with pytest.raises(NoBatchFitsError, match=r"at batch 1, .* of which variables \d+\.\d MB"):
        fit(model_of(1024), data(64, 1024), budget="8MiB")
    step, _ = make_step()
    with pytest.raises(MemtradeError, match=r"at least 4\.2 MB, not 0\.1 MB"):
        memtrade.largest_batch(step, batch_of, budget="100KB")
    with pytest.raises(MemtradeError, match=r"at least 4\.2 MB, not 1\.0 KB"):
        memtrade.largest_batch(step, batch_of, budget="1KB")


def test_a_step_that_holds_a_table_cannot_be_tried() -> None:
    step, _ = make_step()
    keys = tf.lookup.KeyValueTensorInitializer([1], [2])
    table = tf.lookup.StaticHashTable(keys, default_value=0)

    def train_step(x):
        return step(x) + tf.cast(table.lookup(tf.constant(1)), tf.float32)

    with pytest.raises(UnsupportedGraphError, match="cannot be tried in another process"):
        memtrade.largest_batch(train_step, batch_of, budget="24MiB")


def test_fit_finds_the_batch_and_trains(children: Children) -> None:
    model, (x, y) = model_of(), data(10_000)
    history = fit(model, (x, y), budget="5MB", strategy="checkpoints", epochs=2, verbose=0)
    size = history.params["batch_size"]
    assert size == max(children.batches) < 10_000
    assert len(history.history["loss"]) == 2
    assert history.params["steps"] == -(-10_000 // size)
    assert isinstance(model.train_function, TrainFunction)
    assert int(model.optimizer.iterations) == 2 * -(-10_000 // size)


def test_a_model_of_kerass_with_its_counters_and_rates_runs_in_a_child() -> None:
    """Nothing stands for the child here: its step reads what Adam and a seed are at."""
    model = model_of(optimizer="adam")
    model.add(keras.layers.Dropout(0.1))
    history = fit(model, data(400), budget="8MiB", strategy="original", verbose=0)
    assert (history.params["batch_size"], history.params["steps"]) == (400, 1)


def test_fit_takes_all_the_data_where_it_fits(children: Children) -> None:
    examples = tf.data.Dataset.from_tensor_slices(data(40))
    history = fit(model_of(), examples, verbose=0)
    assert (history.params["batch_size"], history.params["steps"]) == (40, 1)


def test_what_does_not_fit_as_it_is_gets_the_fastest_plan_at_the_largest_batch(
    children: Children,
) -> None:
    step, _ = make_step(layers=4)
    found = memtrade.largest_batch(step, batch_of, "auto", budget="6MB", trials=0)
    original = memtrade.largest_batch(step, batch_of, "original", budget="6MB", trials=0)
    assert found.strategy == "optimal"
    assert found.options["swap"] is False  # the CPU's memory is the host's
    assert found.batch_size > 1.2 * original.batch_size
    most = original.batch_size
    found = memtrade.largest_batch(step, batch_of, "auto", budget="6MB", trials=0, most=most)
    assert (found.strategy, found.batch_size) == ("original", most)


def test_an_effective_batch_is_added_up_over_smaller_ones(children: Children) -> None:
    x, y = data(10_240)
    whole = model_of()
    fit(whole, (x, y), batch_size=5120, strategy="original", verbose=0, shuffle=False)
    model = model_of()
    history = fit(
        model,
        (x, y),
        effective_batch=5120,
        budget="5MB",
        strategy="ome",
        verbose=0,
        shuffle=False,
    )
    size, steps = (history.params[key] for key in ("batch_size", "gradient_accumulation_steps"))
    assert steps > 1
    assert size * steps == 5120
    assert max(children.batches) >= size
    assert model.optimizer.gradient_accumulation_steps == steps
    assert int(model.optimizer.iterations) == int(whole.optimizer.iterations) == 2
    for found, expected in zip(model.weights, whole.weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_an_effective_batch_that_fits_needs_no_accumulators(children: Children) -> None:
    model = model_of()
    history = fit(model, data(512), effective_batch=256, verbose=0)
    assert history.params["batch_size"] == 256
    assert model.optimizer.gradient_accumulation_steps is None


def test_an_optimizer_that_is_built_cannot_add_up() -> None:
    model = model_of()
    model.train_on_batch(*data(8))
    with pytest.raises(MemtradeError, match="has been built already: compile the model anew"):
        fit(model, data(64), batch_size=16, effective_batch=64, verbose=0)
    model = model_of(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2))
    accumulate(model, 2)
    with pytest.raises(MemtradeError, match="adds gradients up over 2 batches"):
        accumulate(model, 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "there is no data"),
        ((np.zeros([0, WIDTH]), np.zeros([0])), "there is no example in the data"),
        ((np.zeros([4, WIDTH]), np.zeros([5])), "arrays of 4 and 5 examples"),
        ("images", "data is no str"),
        (iter([]), "data is no list_iterator"),
    ],
)
def test_data_that_is_none(given, said: str) -> None:
    with pytest.raises(MemtradeError, match=said):
        fit(model_of(), given)


def test_sizes_and_models_that_are_none() -> None:
    with pytest.raises(MemtradeError, match=r"call model.compile"):
        fit(keras.Sequential([keras.Input([4]), keras.layers.Dense(1)]), data(4, 4))
    for sizes in (
        {"batch_size": 0},
        {"batch_size": True},
        {"batch_size": "large"},
        {"effective_batch": -1},
    ):
        with pytest.raises(MemtradeError, match="a whole number from 1 on"):
            fit(model_of(), data(8), **sizes)
    with pytest.raises(MemtradeError, match="more than the 16 examples of all epochs"):
        fit(model_of(), data(8), effective_batch=32, epochs=2)
    with pytest.raises(MemtradeError, match="multiple of batch_size, not 10 of 4"):
        fit(model_of(), data(8), batch_size=4, effective_batch=10)
