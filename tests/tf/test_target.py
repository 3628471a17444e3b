"""A step that a user's function makes: what it may return, and what is said if it does not."""

import sys
import textwrap
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from memtrade.errors import MemtradeError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.models import make_model
from memtrade.simulate.memory import Simulator
from memtrade.strategies import PLANNED, make_options
from memtrade.tf.build import make_step
from memtrade.tf.construction import Construction
from memtrade.tf.device import Arena
from memtrade.tf.extract import trace
from memtrade.tf.rewrite import apply_plan
from memtrade.tf.swap import SerializeTransfer
from memtrade.tf.verify import compare_steps, verified
from tests.graphs import ARENA

MODULE = """
import tensorflow as tf

class Steps:
    @staticmethod
    def make(batch_size):
        return make_step(batch_size)

def make_step(batch_size=7):
    weights = [tf.Variable(tf.random.normal([32, 32]) / 6) for _ in range(6)]

    @tf.function
    def train_step(batch, scale):
        x, y = batch["x"], batch["y"]
        with tf.GradientTape() as tape:
            for w in weights:
                x = tf.nn.dropout(tf.nn.tanh(x @ w), 0.1)
            loss = scale * tf.reduce_mean((x - y) ** 2)
        for w, gradient in zip(weights, tape.gradient(loss, weights)):
            w.assign_sub(0.1 * gradient)
        return {"loss": loss, "scale": scale * tf.ones([])}

    return train_step, ({"y": tf.zeros([batch_size, 32]), "x": tf.ones([batch_size, 32])}, 2.0)

def fixed():
    return make_step(5)

def python():
    return (lambda x: tf.reduce_sum(x)), tf.TensorSpec([32, 3])

def failing(batch_size):
    return {}["here"]

def untraceable(batch_size):
    return (lambda x: tf.reduce_sum(x @ x)), tf.ones([batch_size, 3])

def unclear(batch_size):
    return (lambda x: (tf.reduce_sum(x), tf.reduce_max(x))), tf.ones([batch_size, 3])

def open_shape(batch_size):
    return (lambda x: tf.reduce_sum(x)), tf.TensorSpec([None, 3])

def lossless(batch_size):
    return (lambda x: tf.cast(x[0, 0], tf.int32)), tf.ones([batch_size, 3])

def same_twice(batch_size):
    x = tf.ones([batch_size, 3])
    return (lambda x, y: tf.reduce_sum(x * y)), (x, x)

def of_graphs(batch_size):
    weight = tf.Variable(tf.eye(8))

    @tf.function
    def train_step(nodes, edges):
        with tf.GradientTape() as tape:
            sent = tf.gather(nodes @ weight, edges)
            loss = tf.reduce_sum(tf.math.unsorted_segment_sum(sent, edges, 4 * batch_size) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return train_step, (tf.ones([4 * batch_size, 8]), tf.range(6 * batch_size) % 4)

def of_all_sizes(batch_size):
    return make_step(batch_size + 1)

def sizeless():
    return (lambda k: k * 2), 1.0

def iterating(batch_size):
    weights = [tf.Variable(tf.random.normal([32, 32]) / 6) for _ in range(3)]
    rows = tf.data.Dataset.from_tensor_slices(tf.random.normal([64, 32])).shuffle(64).repeat()
    batches = iter(rows.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE))

    @tf.function
    def train_step():
        x = next(batches)
        with tf.GradientTape() as tape:
            for w in weights:
                x = tf.nn.tanh(x @ w)
            loss = tf.reduce_sum(x ** 2)
        for w, gradient in zip(weights, tape.gradient(loss, weights)):
            w.assign_sub(0.1 * gradient)
        return loss

    return train_step, ()

def keras_model(batch_size, optimizer="adam"):
    import keras

    hidden = [keras.layers.Dense(32, "tanh") for _ in range(6)]
    model = keras.Sequential([keras.Input([32]), *hidden, keras.layers.Dense(1)])
    if optimizer:
        model.compile(optimizer, "mse", metrics=["mae"])
    return model, (tf.ones([batch_size, 32]), tf.zeros([batch_size, 1]))

def uncompiled(batch_size):
    return keras_model(batch_size, None)

def number():
    return 3

def wordy():
    raise ValueError("my own\\n  rule, in full\\n\\nof three lines")

def leaving():
    raise SystemExit(5)

def wordy_later(batch_size):
    def step(x):
        raise ValueError("my own:\\n  rule, in full")
    return step, tf.ones([batch_size, 3])

def leaving_later(batch_size):
    def step(x):
        raise SystemExit("that was it")
    return step, tf.ones([batch_size, 3])
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    (tmp_path / "my_steps.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "my_missing.py").write_text("import no_such_thing")
    (tmp_path / "my_syntax.py").write_text("def f(:\n")
    monkeypatch.delitem(sys.modules, "my_steps", raising=False)  # of the test before
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def step_of(target: str, **options):
    return make_step(make_model(f"target/{target}", options))


@pytest.mark.parametrize("function", ["make_step", "Steps.make"])
def test_a_target_is_a_step_like_any_other(function):
    step = step_of(f"my_steps:{function}", batch_size=64, seed=3)
    assert step.name == f"my_steps:{function}"
    assert [spec.shape[0] for spec in step.specs] == [64, 64]
    assert len(step.variables()) == 6
    traced = trace(step)
    plan = PLANNED["ome"].plan(traced.graph, make_options("ome", {"select": "all"}), ARENA)
    assert plan.tensors("recompute")
    rewritten = apply_plan(traced, plan, SerializeTransfer())
    found = compare_steps(step.function, rewritten, step.variables(), step.make_batch(), steps=2)
    assert found.beyond(0.0) == []
    again = step_of(f"my_steps:{function}", batch_size=64, seed=3)
    for a, b in zip(step.variables(), again.variables(), strict=True):
        tf.debugging.assert_equal(a, b)


def test_a_python_function_and_specs_will_do():
    step = step_of("my_steps:python")
    assert float(step.function(*step.make_batch())) == 0.0


def test_a_compiled_keras_model_is_its_step():
    step = step_of("my_steps:keras_model", batch_size=4096)
    traced = trace(step)
    assert len(step.variables()) > 2 * 14  # weights, slots, and sums of metrics
    plan = PLANNED["ome"].plan(traced.graph, make_options("ome", {"select": "all"}), ARENA)
    rewritten = apply_plan(traced, plan, SerializeTransfer())
    assert verified(step, rewritten, steps=2, tolerance=0.0).equal


def test_a_step_that_takes_its_batches_of_a_data_set_is_compared_on_the_same_ones():
    """Its target is told how large a batch is, which its arguments do not say."""
    step = step_of("my_steps:iterating", batch_size=4)
    traced = trace(step)
    plan = PLANNED["ome"].plan(traced.graph, make_options("ome", {"select": "all"}), ARENA)
    rewritten = apply_plan(traced, plan, SerializeTransfer())
    assert verified(step, rewritten, steps=2, tolerance=0.0).equal
    losses = [float(step.function(*step.make_batch())) for _ in range(2)]
    assert losses[0] != losses[1]  # batches differ
    broken = verified(step, lambda *batch: 2 * rewritten(*batch), steps=2, tolerance=0.0)
    assert [each.name for each in broken.differing] == ["loss"]
    assert broken.itself is None  # run again, the original is the same


def test_nodes_and_edges_of_a_batch_of_graphs_are_packed() -> None:
    step = step_of("my_steps:of_graphs")
    assert [spec.shape[0] for spec in step.specs] == [4 * 32, 6 * 32]
    assert trace(step).graph.ops


def test_a_tensor_that_is_given_twice_is_there_once():
    graph = trace(step_of("my_steps:same_twice")).graph
    x, y = graph.data.inputs
    assert graph.data.repeated == {y: x}
    held = Simulator(graph, ARENA).memory([]).persistent_bytes
    apart = StepGraph(msgspec.structs.replace(graph.data, repeated={}))
    assert Simulator(apart, ARENA).memory([]).persistent_bytes - held == 512  # 32 x 3 floats


def test_a_batch_that_lies_elsewhere_comes_onto_the_device(monkeypatch):
    """As its memory happens to be aligned, an array of NumPy's is shared or copied."""
    step = step_of("my_steps:same_twice", batch_size=4)
    monkeypatch.setattr(Arena, "started", SimpleNamespace(offset=lambda tensor: -1))
    one, other = step.make_batch()
    assert one is other
    assert step.example
    assert one is not step.example[0]
    np.testing.assert_array_equal(one, step.example[0])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_missing:f", r"^cannot import my_missing:f: ModuleNotFoundError: No module named "
                         r"'no_such_thing' \(my_missing.py, line 1\)$"),
        ("my_syntax:f", r"^cannot import my_syntax:f: SyntaxError: invalid syntax"),
        ("my_steps:no_such", r"^cannot import my_steps:no_such: AttributeError: .*'no_such'"),
        ("no_such_module:f", r"^cannot import .* No module named 'no_such_module'$"),
        ("my_steps:failing", r"^my_steps:failing failed: KeyError: 'here' \(my_steps.py, line"),
        ("my_steps:untraceable", r"^tracing the step of my_steps:untraceable failed: .*equal"),
        ("my_steps:number", r"^my_steps:number must return a training step and an example"),
        ("my_steps:wordy", r"^my_steps:wordy failed: ValueError: my own rule, in full of three "
                           r"lines \(my_steps.py, line \d+\)$"),
        ("my_steps:leaving", r"^my_steps:leaving failed: SystemExit: 5 \(my_steps.py, line \d+\)$"),
        ("my_steps:wordy_later", r" failed: ValueError: my own: rule, in full"),
        ("my_steps:leaving_later", r"^tracing the step .* failed: SystemExit: that was it"),
        ("my_steps:uncompiled", r"^the model has no optimizer yet: call model.compile"),
        ("my_steps:fixed", r"^my_steps:fixed made a batch of 5, not of 32: let it take "
                           r"`batch_size`, or say --batch-size 5$"),
        ("my_steps:of_all_sizes", r"^my_steps:of_all_sizes takes `batch_size`, and made a batch of "
                                  r"33 for 32: let it make so many examples, or as many times"),
        ("my_steps:sizeless", r"^my_steps:sizeless gives no batch that has a size: let it take"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_target_is_said_in_a_line(target, message):
    with pytest.raises(MemtradeError, match=message) as caught:
        step_of(target)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


def test_a_step_without_a_size_says_so_and_one_without_a_loss_is_a_step():
    for name in ("unclear", "lossless"):
        assert trace(step_of(f"my_steps:{name}")).graph.ops
    with pytest.raises(UnsupportedGraphError, match="input 'x' has the unknown shape"):
        step_of("my_steps:open_shape")


@pytest.mark.parametrize("target", ["", "my_steps", "my_steps:", ":f", "a b:c", "my steps:f"])
def test_a_name_must_be_a_function_of_a_module(target):
    with pytest.raises(MemtradeError, match=r"write it as mypackage.train:make_step"):
        make_model(f"target/{target}")


def test_what_builds_models_in_another_way_is_refused():
    with pytest.raises(UnsupportedGraphError, match="builds its step itself"):
        make_step(
            make_model("target/my_steps:make_step"), construction=Construction(micro_batches=2)
        )
