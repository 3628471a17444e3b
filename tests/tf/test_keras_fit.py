# pyright: reportArgumentType=false, reportCallIssue=false
# (Keras and csv annotate less than they take.)
"""memtrade.keras.optimize: fit and its friends train the same model as before."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from memtrade.answers import summary
from memtrade.errors import (
    InfeasibleBudgetError,
    MemtradeError,
    UnknownNameError,
    UnsupportedGraphError,
)
from memtrade.keras import TrainFunction, fit, optimize, release, restore
from memtrade.papers import verify_keras
from memtrade.papers.verify_keras import transformer, verify
from tests.tf.test_apply import clones

COUNT, BATCH = 40, 16  # two full batches and one of 8


def data(count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 8, 8, 3)).astype("float32"), rng.integers(0, 5, count)


class CustomStep(keras.Model):
    """A train_step of one's own, as Keras's guide writes it: it returns the loss it computes."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "norm": tf.linalg.global_norm(gradients)}


def make(kind=keras.Model, **compiling) -> keras.Model:
    """With a slot for each weight. Adam's twenty ops for each would take most of the time to trace;
    it trains the transformer below."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input([8, 8, 3])
    for _ in range(2):
        x = keras.layers.Conv2D(16, 3, padding="same")(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
        x = keras.layers.Dropout(0.1)(x)
    outputs = keras.layers.Dense(5, dtype="float32")(keras.layers.GlobalAveragePooling2D()(x))
    model = kind(inputs, outputs)
    # Keras's own train_step updates metrics; CustomStep does not.
    metrics = ["accuracy"] if kind is keras.Model else None
    compiling = {"jit_compile": False, "metrics": metrics} | compiling
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, **compiling)
    return model


def lean(model: keras.Model, **settings) -> keras.Model:
    return optimize(model, strategy="ome", select="all", **settings)


class Seen(keras.callbacks.Callback):
    """What callbacks are told, and when."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        assert logs is not None
        self.batches.append((batch, *(float(logs[key]) for key in sorted(logs))))


def trained(model: keras.Model, *given, **fitting) -> tuple[list, dict, list[np.ndarray]]:
    seen = Seen()
    history = model.fit(*given, epochs=2, verbose=0, callbacks=[seen], **fitting).history
    return seen.batches, history, [v.numpy() for v in model.variables]


def check_close(found, expected) -> None:
    """Equal but for the last bits: Keras traces for a batch of any size, and sums otherwise."""
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5)
    assert found[1].keys() == expected[1].keys()
    for key, values in expected[1].items():
        np.testing.assert_allclose(found[1][key], values, rtol=2e-5, atol=1e-6)
    for a, b in zip(found[2], expected[2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_a_model_of_today_is_trained_the_same_to_the_bit(monkeypatch):
    """The larger ones take minutes: `python -m memtrade.papers.verify_keras results/keras`."""
    monkeypatch.setitem(verify_keras.MODELS, "transformer", lambda: transformer(blocks=1))
    row = verify("transformer")
    assert row["max_difference"] == 0.0
    assert int(str(row["recomputed"])) + int(str(row["swapped"])) > 10


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_fit_with_callbacks_validation_and_a_smaller_last_batch(steps_per_execution):
    results = []
    for change in (lambda model: model, lean):
        model = change(make(steps_per_execution=steps_per_execution))
        x, y = data()
        results.append(trained(model, x, y, batch_size=BATCH, validation_data=(x, y)))
    check_close(*results)
    assert [batch for batch, *_ in results[0][0]] == [batch for batch, *_ in results[1][0]]


@pytest.mark.parametrize("kind", [keras.Model, CustomStep])
def test_batches_of_one_size_are_trained_on_the_same_to_the_bit(kind):
    results = []
    for change in (lambda model: model, lean):
        full = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH, drop_remainder=True)
        results.append(trained(change(make(kind)), full))
    (batches, history, variables), (found_batches, found_history, found_variables) = results
    assert found_batches == batches
    assert found_history == history
    for found, expected in zip(found_variables, variables, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_it_is_the_rewritten_step_that_keras_runs(monkeypatch):
    """Keras calls make_train_function, and what that made for each batch: both must not move."""
    model = lean(make())
    runs = []
    run = TrainFunction._run
    monkeypatch.setattr(
        TrainFunction, "_run", lambda self, batch: (runs.append(batch), run(self, batch))[1]
    )
    x, y = data(2 * BATCH)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    model.train_on_batch(x[:BATCH], y[:BATCH])
    assert len(runs) == 3
    assert isinstance(model.train_function, TrainFunction)
    assert clones(model.train_function.step, (runs[0],)) > 4
    assert model.train_function.step.experimental_get_tracing_count() <= 2


def test_weights_for_samples_and_classes():
    x, y = data()
    weights = np.linspace(0.5, 1.5, COUNT)
    results = []
    for change in (lambda model: model, lean):
        model = change(make())
        logs = model.train_on_batch(x, y, sample_weight=weights, return_dict=True)
        more = model.train_on_batch(x, y, class_weight=dict.fromkeys(range(5), 2.0))
        results.append([*logs.values(), *more])
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_mixed_precision_with_loss_scaling():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        results = []
        for change in (lambda model: model, lean):
            model = change(make())
            assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
            results.append([model.train_on_batch(*data()) for _ in range(3)])
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(*results, rtol=1e-3)


def test_a_saved_model_trains_on(tmp_path):
    """As Keras's own does: dropout's seeds are not part of what Keras saves."""
    results = []
    for change in (lambda model: model, lean):
        model = change(make())
        model.train_on_batch(*data())
        model.save(tmp_path / "model.keras")
        loaded = change(keras.models.load_model(tmp_path / "model.keras"))
        results.append(loaded.train_on_batch(*data()))
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_restore_undoes_it():
    model = restore(lean(make()))
    model.train_on_batch(*data())
    assert not isinstance(model.train_function, TrainFunction)
    restore(model)  # twice does no harm


def test_a_released_model_holds_nothing_though_tensorflow_keeps_its_variables():
    """That the memory is given back, and what is lost without: tests/planted, "the model of the run
    before"."""
    model = make()
    model.fit(*data(BATCH), batch_size=BATCH, verbose=0)
    handles = [v.value.handle for v in [*model.variables, *model.optimizer.variables]]
    types = [v.value.dtype for v in [*model.variables, *model.optimizer.variables]]
    release(model)
    for handle, dtype in zip(handles, types, strict=True):
        held = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        assert tf.size(held) == 0


def test_what_is_released_must_be_a_model():
    with pytest.raises(MemtradeError, match="release takes a Keras model, not list"):
        release([make()])


def test_xla_is_turned_off_with_a_notice():
    model = make(jit_compile=True)
    with pytest.warns(UserWarning, match="turns jit_compile off"):
        lean(model)
    assert model.jit_compile is False
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.warns(UserWarning, match="turns jit_compile off"):
        model.make_train_function()
    assert model.jit_compile is False


def test_another_batch_size_than_was_said_is_noticed():
    model = lean(make(), batch_size=BATCH)
    x, y = data()
    with pytest.warns(UserWarning, match="pass batch_size=16 to model.fit"):
        model.fit(x, y, verbose=0)  # Keras's own default is 32


def test_an_example_is_planned_at_once():
    model = lean(make(), example_batch=data(BATCH))
    assert isinstance(model.train_function, TrainFunction)
    assert model.train_function.step is not None
    with pytest.raises(InfeasibleBudgetError):
        lean(make(), example_batch=data(BATCH), budget="10KB")


def test_what_cannot_be_optimized_says_so():
    with pytest.raises(MemtradeError, match=r"call model.compile"):
        optimize(keras.Sequential([keras.Input([4]), keras.layers.Dense(1)]))
    with pytest.raises(MemtradeError, match="batch_size is a whole number from 1 on, not '32'"):
        optimize(make(), batch_size="32")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownNameError, match="unknown split None: The choices are"):
        optimize(make(), split=None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MemtradeError, match=r"or text such as 6GB, not \[1\]"):
        optimize(make(), budget=[1])  # pyright: ignore[reportArgumentType]
    with pytest.raises(MemtradeError, match=r"such as \(x, y\), not 3"):
        optimize(make(), example_batch=3)
    with pytest.raises(MemtradeError, match="runs eagerly"):
        optimize(make(run_eagerly=True))
    with pytest.raises(UnsupportedGraphError, match="has no make_train_function"):
        optimize(tf.Module())  # pyright: ignore[reportArgumentType]


def test_what_is_refused_leaves_the_model_as_it_was() -> None:
    model = make()
    before = model.train_function, model.jit_compile, set(vars(model))
    with pytest.raises(MemtradeError):
        optimize(model, example_batch=3)
    assert (model.train_function, model.jit_compile, set(vars(model))) == before
    optimize(model)
    ours = vars(model)["make_train_function"], model.train_function
    with pytest.raises(MemtradeError):
        optimize(model, example_batch=3)
    assert (vars(model)["make_train_function"], model.train_function) == ours


class TwoLosses(CustomStep):
    def train_step(self, data):
        logs = super().train_step(data)
        return {"d_loss": logs["loss"], "g_loss": 2.0 * logs["loss"]}


def test_a_step_of_several_losses_trains_and_one_can_be_named():
    for loss in (None, "g_loss", lambda logs: logs["d_loss"]):
        model = lean(make(TwoLosses), loss=loss)
        assert set(model.fit(*data(BATCH), verbose=0).history) == {"d_loss", "g_loss"}
    with pytest.raises(UnknownNameError, match="did you mean 'g_loss'"):
        lean(make(TwoLosses), loss="gloss", example_batch=data(BATCH))


def test_losses_of_several_outputs_are_means_over_examples_where_batches_differ():
    """Keras, which sees no size of a batch here, counts the last one as any other."""
    x, y = data()
    inputs = keras.Input([8, 8, 3])
    flat = keras.layers.Flatten()(inputs)
    outputs = [keras.layers.Dense(1, name=name)(flat) for name in ("first", "second")]
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), ["mse", "mae"], jit_compile=False)
    history = lean(model).fit(x, [y, y], batch_size=BATCH, verbose=0).history
    whole = model.evaluate(x, [y, y], batch_size=COUNT, verbose=0, return_dict=True)
    for name, value in whole.items():
        assert history[name] == pytest.approx([value], rel=1e-5)


def test_a_last_batch_of_two_rows_does_not_end_a_fit():
    results = []
    for change in (lambda model: model, lambda model: optimize(model, strategy="ome")):
        keras.utils.set_random_seed(0)
        hidden = [keras.layers.Dense(64, "relu") for _ in range(4)]
        model = keras.Sequential([keras.Input([64]), *hidden, keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        x = np.random.default_rng(0).normal(size=(130, 64)).astype("float32")
        history = change(model).fit(x, x[:, :1], batch_size=64, epochs=2, verbose=0).history
        results.append(history["loss"])
    np.testing.assert_allclose(*results, rtol=1e-4)


def test_a_small_batch_that_cannot_be_planned_runs_as_it_is(monkeypatch):
    model = optimize(make(), strategy="lms")

    def refused(trace):
        raise UnsupportedGraphError("not this one")

    x, y = data(BATCH + 2)
    model.train_on_batch(x[:BATCH], y[:BATCH])
    monkeypatch.setattr("memtrade.api.Planner.plan", lambda self: refused(self.traced))
    with pytest.warns(UserWarning, match="not this one.*runs as it is"):
        model.train_on_batch(x[BATCH:], y[BATCH:])


def test_what_is_told_of_a_model_on_replicas_is_told_of_one_without():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = make()
    with pytest.raises(UnsupportedGraphError, match="trains with MirroredStrategy: ask it of"):
        fit(model, data(BATCH))
    with pytest.raises(UnsupportedGraphError, match="memory is told of one device"):
        summary(model)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = make()
    assert summary(model, show=False).rows


def test_what_is_told_is_checked_at_once():
    for wrong, message in (
        ({"strategy": "omee"}, "did you mean 'ome'"),
        ({"strategy": "ome", "selct": "all"}, "did you mean 'select'"),
        ({"budget": "12 parsecs"}, "12 parsecs"),
        ({"budget": 0}, "more than nothing"),
        ({"order": "any"}, "unknown order"),
    ):
        with pytest.raises(MemtradeError, match=message):
            optimize(make(), **wrong)
    for wrong, message in (
        ({"options": 3}, "options are by name, such as {'count': 6}, not 3"),
        ({"options": {1: 2}}, "unknown option of optimal 1"),
        ({"options": {"budget": "1GB"}}, r"say fit\(\.\.\., budget=\.\.\.\)"),
        ({"epoch": 3}, "unknown argument of model.fit 'epoch': did you mean 'epochs'"),
        ({"validation_split": 2}, "validation_split is a part from 0 to below 1, not 2"),
    ):
        with pytest.raises(MemtradeError, match=message):
            fit(make(), data(BATCH), **wrong)


def test_a_strategy_without_plans_is_refused(monkeypatch):
    model = make()
    several = types.SimpleNamespace(num_replicas_in_sync=8)
    monkeypatch.setattr(keras.Model, "distribute_strategy", several)
    with pytest.raises(MemtradeError, match="trains with SimpleNamespace, and plans are for"):
        optimize(model)
