"""Ops know the layer and the line that made them, behind calls, loops, gradients and updates."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import pytest
import tensorflow as tf

from memtrade.graph import Op, StepGraph
from memtrade.tf.calling import step_to_read
from memtrade.tf.extract import trace, trace_concrete
from tests.tf.small_models import small_step

pytestmark = pytest.mark.usefixtures("small_models")

BATCH = tf.TensorSpec([8, 16])


def graph_of(function: Any, *example: Any) -> StepGraph:
    return trace_concrete(*step_to_read(function, example)).graph


def line_of(function: Any, text: str) -> str:
    """Where `text` stands in a function of this file."""
    lines, first = inspect.getsourcelines(function)
    [place] = [i for i, line in enumerate(lines) if text in line]
    return f"tests/tf/test_origins.py:{first + place}"


def ops_of(graph: StepGraph, *types: str) -> list[Op]:
    return [op for op in graph.ops if op.type in types]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(request.config.rootpath)


def halved(x: tf.Tensor, weight: tf.Variable) -> tf.Tensor:
    return tf.nn.tanh(x @ weight)


def test_an_op_knows_the_users_line_and_its_gradient_that_of_the_tape() -> None:
    weight = tf.Variable(tf.ones([16, 16]))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(halved(x, weight))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    graph = graph_of(step, BATCH)
    [tanh] = ops_of(graph, "Tanh")
    assert tanh.source == line_of(halved, "tf.nn.tanh")
    [gradient] = ops_of(graph, "TanhGrad")
    assert gradient.source == line_of(step, "tape.gradient")


def test_lines_within_functions_that_are_called() -> None:
    """The one private way, from a call to the function's graph: it must not move."""
    weight = tf.Variable(tf.ones([16, 16]))
    inner = tf.function(lambda x: halved(x, weight))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(inner(x))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    [tanh] = ops_of(graph_of(step, BATCH), "Tanh")
    assert "/" in tanh.name
    assert tanh.source == line_of(halved, "tf.nn.tanh")


def test_lines_within_loops_that_are_unrolled() -> None:
    weight = tf.Variable(tf.ones([16, 16]))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for _ in tf.range(3):
                y = halved(y, weight)
            loss = tf.reduce_mean(y)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    found = ops_of(graph_of(tf.function(step), BATCH), "Tanh")
    assert len(found) == 3
    assert {op.source for op in found} == {line_of(halved, "tf.nn.tanh")}


@keras.saving.register_keras_serializable("test_origins")
class Twice(keras.layers.Layer):
    """A layer of layers, as users write them."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.inner = keras.layers.Dense(16, name="inner")

    def call(self, x: Any) -> Any:
        return self.inner(x) + tf.sin(x)


@pytest.fixture(scope="module")
def nested() -> StepGraph:
    layers = [Twice(name="first"), Twice(name="second_1"), keras.layers.Dense(1, name="last")]
    model = keras.Sequential([keras.Input([16]), *layers])
    model.compile("adam", "mse")
    return graph_of(tf.function(model.train_step), (BATCH, tf.TensorSpec([8, 1])))


def test_layers_of_keras_without_the_model_around_them(nested: StepGraph) -> None:
    products = [op.layer for op in ops_of(nested, "MatMul") if op.id in nested.forward]
    assert products == ["first/inner", "second_1/inner", "last"]
    sines = ops_of(nested, "Sin")
    assert [op.layer for op in sines] == ["first", "second_1"]
    assert "tests/tf/test_origins.py" in sines[0].source


def test_gradients_belong_to_the_layer_that_they_are_of(nested: StepGraph) -> None:
    backward = [op.layer for op in ops_of(nested, "MatMul") if op.id in nested.backward]
    # The first layer's input needs none.
    assert sorted(backward) == ["first/inner", "last", "last", "second_1/inner", "second_1/inner"]
    assert [op.layer for op in ops_of(nested, "Cos")] == ["second_1"]


def test_weights_and_slots_belong_to_the_layer_that_reads_them(nested: StepGraph) -> None:
    data = nested.data
    found: dict[str, list[int]] = {}
    for t, size in zip(data.captures, data.capture_bytes, strict=True):
        found.setdefault(nested.ops[nested.tensors[t].op].layer, []).append(size)
    kernel, bias = 16 * 16 * 4, 16 * 4
    for layer in ("first/inner", "second_1/inner"):
        assert sorted(found[layer]) == [bias] * 3 + [kernel] * 3  # each with Adam's two
    assert sorted(found["last"]) == [4] * 3 + [64] * 3


def test_a_drawn_models_layers_are_its_scopes() -> None:
    graph = trace(small_step("resnet-18")).graph
    convolutions = ops_of(graph, "Conv2D")
    assert len({op.layer for op in convolutions}) == len(convolutions)
    for op in convolutions:
        assert op.name.startswith(op.layer)
        assert op.source.startswith("memtrade/models/resnet.py:")
    variables = {graph.ops[graph.tensors[t].op].layer for t in graph.data.captures}
    assert {op.layer for op in convolutions} <= variables
    by_name = {op.name: op.layer for op in convolutions}
    for op in ops_of(graph, "Conv2DBackpropFilter", "Conv2DBackpropInput"):
        assert op.layer in by_name.values()
        assert f"/{op.layer}/" in op.name
    assert all(op.layer for op in ops_of(graph, "ResourceApplyKerasMomentum"))
