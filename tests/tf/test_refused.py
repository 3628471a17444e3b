"""What memtrade.apply cannot rewrite, or is not told rightly: one line says the rule."""

import numpy as np
import pytest
import tensorflow as tf

import memtrade
from memtrade.errors import MemtradeError, UnknownNameError, UnsupportedGraphError
from memtrade.graph import BOUND
from memtrade.guard.peak import peak_of
from memtrade.keras import restore
from memtrade.tf.device import Arena
from tests.tf import unsized_steps
from tests.tf.test_origins import graph_of
from tests.tf.user_steps import STEPS, WIDTH, images


def test_names_are_checked():
    step = STEPS["plain"]()
    with pytest.raises(UnknownNameError, match="did you mean 'ome'"):
        memtrade.apply(step.function, step.batch, strategy="omee")
    with pytest.raises(UnknownNameError, match="did you mean 'select'"):
        memtrade.apply(step.function, step.batch, selct="all")
    with pytest.raises(MemtradeError, match="xla has no plan"):
        memtrade.apply(step.function, step.batch, strategy="xla")
    with pytest.raises(MemtradeError, match="no device 'gpu:7': choose arena: TensorFlow"):
        memtrade.apply(step.function, step.batch, device="gpu:7")


def test_a_mistake_of_ours_is_one_line_too(monkeypatch):
    def broken(*_: object) -> None:
        raise KeyError("body_7")

    monkeypatch.setattr("memtrade.planning.no_worse", broken)
    step = STEPS["plain"]()
    with pytest.raises(UnsupportedGraphError, match=r"train_step could not be .* KeyError"):
        memtrade.apply(step.function, step.batch)
    model = tf.keras.Sequential([tf.keras.Input([WIDTH]), tf.keras.layers.Dense(1)])
    for other, kind in (
        (3, "int"),
        (dict, "<class 'dict'>"),
        (model, r"Sequential: hand a Keras model to memtrade\.keras\.optimize"),
    ):
        with pytest.raises(MemtradeError, match=rf"a training step is a tf\.function .*not {kind}"):
            memtrade.apply(other, step.batch)  # pyright: ignore[reportArgumentType]


def test_inputs_without_a_size_are_named():
    step = STEPS["plain"]()
    with pytest.raises(UnsupportedGraphError, match=r"input 'x' has the unknown shape \(None, 64"):
        memtrade.apply(step.function, tf.TensorSpec([None, WIDTH]))
    iterator = iter(tf.data.Dataset.from_tensors(images()))
    with pytest.raises(UnsupportedGraphError, match="input 'batches' is a"):
        memtrade.apply(lambda batches: next(batches), iterator)


def test_functions_that_run_eagerly_have_no_graph_to_rewrite():
    step = STEPS["nested"]()
    lean = memtrade.apply(step.function, step.batch)
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(UnsupportedGraphError, match="run_functions_eagerly"):
            memtrade.apply(step.function, step.batch)
        with pytest.warns(UserWarning, match="run_functions_eagerly"):  # it was planned before
            lean(*step.batch)
    finally:
        tf.config.run_functions_eagerly(False)


def test_an_example_that_the_step_does_not_take_is_refused():
    train = STEPS["plain"]().function.python_function

    def by_name(*, x):
        return train(x)

    for step in (by_name, tf.function(by_name)):
        with pytest.raises(
            MemtradeError, match=r"by_name\(\*, x\) cannot be called with this example.* Wrap it in"
        ):
            memtrade.apply(step, {"x": images()})
    with pytest.raises(MemtradeError, match=r"arrays and tf\.TensorSpecs, not KerasTensor"):
        memtrade.apply(train, tf.keras.Input([WIDTH]))


def test_an_example_that_the_steps_code_fails_for_is_one_line_and_its_own_errors_stay():
    step = STEPS["plain"]().function
    for batch, told in (
        ("a", r"\('a'\): TypeError: Expected float32, but got a of type 'str'"),
        (tf.ones([4, 3]), r"\(float32 \(4, 3\)\): ValueError: Dimensions must be equal"),
    ):
        for ask in (memtrade.apply, memtrade.summary, memtrade.inspect):
            with pytest.raises(MemtradeError, match=f"traced for this example {told}") as found:
                ask(step, batch)
            assert "\n" not in str(found.value)
            assert isinstance(found.value.__cause__, TypeError | ValueError)
    layer = tf.keras.layers.Dense(3)
    layer.build([None, 8])
    with pytest.raises(MemtradeError, match=r"ValueError: Input 0 .* expected axis -1") as found:
        memtrade.apply(lambda x: layer(x), images())
    assert "\x1b" not in str(found.value)
    with pytest.raises(MemtradeError, match="this example: too many positional arguments"):
        memtrade.apply(lambda x, y: step(x + y), (images(),) * 3)
    with pytest.raises(NameError, match="unheard_of"):
        memtrade.apply(lambda x: unheard_of(x), images())  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


def test_a_step_that_asks_a_tensor_for_its_values_is_told_that_there_are_none():
    weight = tf.Variable(tf.ones([WIDTH, WIDTH]))

    def logs(x):
        return tf.reduce_sum(x @ weight).numpy()

    def leaves(x):
        return tf.reduce_sum(np.tanh(x) @ weight)

    for step, why in ((logs, "has no attribute 'numpy'"), (leaves, "to a numpy array")):
        with pytest.raises(MemtradeError, match=why) as found:
            memtrade.apply(step, images())
        assert str(found.value).endswith("ask what the step returns for .numpy()")
        assert "\n" not in str(found.value)
    with pytest.raises(AttributeError, match="no_such"):
        memtrade.apply(lambda x: tf.no_such(x), images())


def test_a_budget_that_a_size_is_missing_for_says_what_would_tell_it():
    """And it does."""
    (batch,) = unsized_steps.unknown()[1]
    spec = tf.TensorSpec(batch.shape)
    told = r"while:\d+ \(.*unsized_steps\.py:\d+\).*: hand .* as tensors, .*, bound the loop"
    with pytest.raises(UnsupportedGraphError, match=told):
        memtrade.apply(unsized_steps.unknown()[0], spec, budget="60MB")
    assert memtrade.apply(unsized_steps.unknown()[0], batch, budget="60MB")
    assert memtrade.apply(unsized_steps.unknown(maximum_iterations=3)[0], spec, budget="60MB")


def test_a_loop_over_a_range_that_may_be_left_is_bounded_by_the_range():
    """What a `break` leaves out is less."""
    (batch,) = unsized_steps.breaking()[1]
    step, spec = unsized_steps.breaking()[0], tf.TensorSpec(batch.shape)
    graph = graph_of(step, spec)
    bounded = [graph.tensors[t].size_bytes for t in graph.sized(BOUND)]
    assert max(bounded) == 20 * batch.shape.num_elements() * 4  # floats of 20 rounds
    assert memtrade.apply(step, spec, budget="60MB")


def test_a_step_around_a_rewritten_one_is_refused():
    step = STEPS["plain"]()
    lean = memtrade.apply(step.function, step.batch, select="all")

    def around(x):
        return 2.0 * lean(x)

    for ask in (memtrade.apply, memtrade.summary):
        with pytest.raises(UnsupportedGraphError, match=r"is a step that memtrade\.apply made"):
            ask(around, *step.batch)
    with pytest.raises(MemtradeError, match="hand in the step as it was"):
        peak_of(lean, step.batch)


def test_counts_and_names_of_another_type_are_one_line():
    step = STEPS["plain"]()
    with pytest.raises(MemtradeError, match="top is a whole number from 1 on, not -1"):
        memtrade.summary(step.function, step.batch, top=-1)
    with pytest.raises(MemtradeError, match="profile is a name, such as gpu:0 or gtx-1070, not 3"):
        memtrade.apply(step.function, step.batch, profile=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MemtradeError, match="give batches of the same shapes"):
        memtrade.largest_batch(step.function, lambda count: step.batch, trials=0, budget="5MB")
    with pytest.raises(MemtradeError, match="trials is a whole number from 0 on, not None"):
        memtrade.largest_batch(step.function, lambda count: step.batch, trials=None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MemtradeError, match="make_batch is a function from a number of examples"):
        memtrade.largest_batch(step.function, None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MemtradeError, match=r"the number of examples, not one of \(\): too many"):
        memtrade.largest_batch(step.function, lambda: step.batch)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MemtradeError, match=r"unknown strategy \[1\]"):
        memtrade.apply(step.function, step.batch, strategy=[1])  # pyright: ignore[reportArgumentType]
    with pytest.raises(MemtradeError, match=r"option 'count' must be a whole number, not \[1\]"):
        memtrade.apply(step.function, step.batch, count=[1])  # pyright: ignore[reportArgumentType]
    with pytest.raises(MemtradeError, match="cannot be called with this example: missing"):
        memtrade.inspect(step.function)
    with pytest.raises(MemtradeError, match="the arena needs at least 3 MiB, not 2 MiB: give a la"):
        Arena(2 << 20).start()
    with pytest.raises(MemtradeError, match="memory_limit must be at least 1MiB, not 0"):
        memtrade.summary(step.function, step.batch, memory_limit=0)
    with (
        pytest.raises(MemtradeError, match="unknown by 'name': The choices are layer, source"),
        memtrade.explain_oom(by="name"),  # pyright: ignore[reportArgumentType]
    ):
        pass
    with pytest.raises(MemtradeError, match="restore takes a Keras model, not NoneType"):
        restore(None)  # pyright: ignore[reportArgumentType]


def test_an_arena_that_the_machine_cannot_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = tf.config.threading  # cannot be set once TensorFlow has started
    monkeypatch.setattr(threads, "set_inter_op_parallelism_threads", lambda count: None)
    with pytest.raises(MemtradeError, match="more than this machine sets aside: give a smaller"):
        Arena(1 << 50).start()
