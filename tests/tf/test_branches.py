"""Branches that assign variables leave these where they lie, and come to the same bits."""

# pyright: reportArgumentType=false, reportFunctionMemberAccess=false

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

import memtrade
from memtrade.bounds import bound_of
from memtrade.facts.calls import body_requests
from memtrade.facts.variables import IN_PLACE_BYTES, moved, reads_by_copying
from memtrade.tf.captured import captured_variables
from memtrade.tf.functions import chosen_functions
from memtrade.tf.inline import still_called
from memtrade.tf.verify import compare_steps
from tests.graphs import PINNED
from tests.tf.test_origins import graph_of

WIDTH, BATCH = 32, 2048
SLICE = "ResourceStridedSliceAssign"


def accumulating_step(every: int = 3) -> Any:
    """Keras sums up the gradients of several steps within a tf.cond, and sets the sums to zero."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([WIDTH]), *(keras.layers.Dense(WIDTH) for _ in range(6))])
    optimizer = keras.optimizers.Adam(0.1, gradient_accumulation_steps=every)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return step


def branch_ops(step: Any, x: tf.Tensor) -> list[str]:
    """The op types in the functions that the step's branches choose among."""
    graph_def = step.get_concrete_function(x).graph.as_graph_def()
    library = {each.signature.name: each for each in graph_def.library.function}
    called = still_called(graph_def.node, library)
    nodes = [*graph_def.node, *(n for each in called for n in each.node_def)]
    chosen = [
        library[each.name] for node in nodes if node.op == "If" for each in chosen_functions(node)
    ]
    return [node.op for each in chosen for node in each.node_def]


def loss_and_gradients(weights: list[tf.Variable], x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The loss of a layer for each weight, and its gradients."""
    with tf.GradientTape() as tape:
        y = x
        for weight in weights:
            y = tf.nn.tanh(y @ weight)
        loss = tf.reduce_mean(y**2)
    return loss, tape.gradient(loss, weights)


def test_sums_of_gradients_stay_where_they_are():
    step, x = accumulating_step(), tf.random.stateless_normal([BATCH, WIDTH], (1, 2))
    assert "AssignVariableOp" in branch_ops(step, x)
    lean = memtrade.apply(step, x, "checkpoints")
    assert "AssignVariableOp" not in branch_ops(lean, x)
    assert SLICE in branch_ops(lean, x)
    variables = captured_variables(step.get_concrete_function(x))
    assert compare_steps(step, lean, variables, (x,), steps=5).beyond(0.0) == []


def test_a_branch_has_the_constants_of_its_slices_once():
    x = tf.random.stateless_normal([BATCH, WIDTH], [1, 2])
    lean = memtrade.apply(accumulating_step(), x, strategy="checkpoints")
    library = lean.get_concrete_function(x).graph.as_graph_def().library.function
    read_by_slices = [
        [name for node in each.node_def if node.op == SLICE for name in node.input[1:4]]
        for each in library
    ]
    assert max(map(len, read_by_slices)) >= 3 * 12  # begin, end, stride of each sum of gradients
    assert all(len(set(names)) <= 2 for names in read_by_slices)


def test_what_a_branch_in_a_branch_assigns_stays_where_it_is():
    """Keras's loss scale counts the steps in one: the counter moved with each of them."""
    weights = [tf.Variable(tf.eye(WIDTH) * 0.9) for _ in range(9)]
    rounds = tf.Variable(0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        loss, gradients = loss_and_gradients(weights, x)
        if tf.math.is_finite(loss):
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(gradient)
            if rounds >= 2:
                rounds.assign(0)
            else:
                rounds.assign(rounds + 1)
        return loss

    x = tf.random.stateless_normal([BATCH, WIDTH], (1, 2))
    assert branch_ops(step, x).count("AssignVariableOp") == 2
    lean = memtrade.apply(step, x, "checkpoints")
    assert "AssignVariableOp" not in branch_ops(lean, x)
    variables = captured_variables(step.get_concrete_function(x))
    assert compare_steps(step, lean, variables, (x,), steps=5).beyond(0.0) == []


def test_what_a_branch_assigns_and_others_read_lies_elsewhere_then():
    """Slow weights that the step's own take over, now and then."""
    weights = [tf.Variable(tf.eye(WIDTH) * 0.9) for _ in range(3)]
    slow, rounds = tf.Variable(tf.eye(WIDTH)), tf.Variable(0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        loss, gradients = loss_and_gradients(weights, x)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(gradient)
        if rounds.assign_add(1) % 2 == 0 and loss < 9.0:
            weights[0].assign(slow)
        return loss

    graph = graph_of(step, tf.ones([BATCH, WIDTH]))
    assert bound_of(graph, PINNED) == "≈"
    [handle] = {t for op in graph.ops for t in moved(op)}
    updates = [op for op in graph.ops if op.type.startswith("AssignSub")]
    assert [handle in op.inputs for op in updates].count(True) == 1
    assert graph.capture_bytes[handle] == WIDTH * WIDTH * 4


@pytest.mark.parametrize(("read", "rows"), [(True, BATCH), (True, WIDTH), (False, BATCH)])
def test_what_is_large_and_read_outside_of_branches_is_left_alone(read: bool, rows: int):
    weights = [tf.Variable(tf.eye(WIDTH) * 0.9) for _ in range(9)]
    best, rounds = tf.Variable(tf.eye(rows, WIDTH)), tf.Variable(0.0)

    @tf.function
    def step(x: tf.Tensor) -> Any:
        loss, gradients = loss_and_gradients(weights, x)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(gradient)
        if loss < 0.5:
            best.assign(x[:rows] @ weights[0])
            rounds.assign(rounds + 1.0)
        return loss, tf.reduce_sum(best) if read else 0.0

    x = tf.random.stateless_normal([BATCH, WIDTH], (1, 2))
    lean = memtrade.apply(step, x, "checkpoints", loss=0)
    moves = read and rows * WIDTH * 4 > IN_PLACE_BYTES
    assert branch_ops(lean, x).count("AssignVariableOp") == moves
    graph = graph_of(step, x)
    assert any(map(moved, graph.ops)) == moves
    assert any(reads_by_copying(op, graph) for op in graph.ops) == (read and not moves)
    variables = captured_variables(step.get_concrete_function(x))
    found = compare_steps(
        lambda x: tf.stack(step(x)), lambda x: tf.stack(lean(x)), variables, (x,), steps=3
    )
    assert found.beyond(0.0) == []


def test_a_loops_condition_takes_what_its_ops_take():
    """A line search: the forward pass runs in the condition, and its body halves a number."""
    weight = tf.Variable(tf.fill([64, 64], 0.01))

    @tf.function
    def searching(x):
        def loss(rate):
            y = x
            for _ in range(3):
                y = tf.nn.tanh(y @ (weight - rate))
            return tf.reduce_mean(y)

        rate = tf.while_loop(lambda rate: loss(rate) > 0.1, lambda rate: [rate * 0.5], [1.0])
        weight.assign_sub(tf.fill([64, 64], rate[0]))
        return loss(0.0)

    batch = tf.ones([4096, 64])
    graph = graph_of(searching, batch)
    (loop,) = [op for op in graph.ops if op.type in ("While", "StatelessWhile")]
    assert loop.attrs["scratch_bytes"] >= 2 * 4096 * 64 * 4
    assert loop.attrs["ahead_bytes"] < 65_536  # of bodies that run at once, and not of conditions


def test_a_branch_gives_back_what_its_gradient_has_read():
    """Five layers in a branch: their gradient reads the last one's output first."""
    weight = tf.Variable(tf.eye(64))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        def deep() -> tf.Tensor:
            y = x
            for _ in range(5):
                y = tf.nn.tanh(y @ weight) * tf.sin(y)
            return tf.reduce_mean(y)

        with tf.GradientTape() as tape:
            loss = tf.cond(tf.reduce_sum(x) > 0.0, deep, lambda: 0.0)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    graph = graph_of(step, tf.ones([4096, 64]))
    gradient = max(
        (op for op in graph.ops if op.attrs.get("relief")), key=lambda op: len(op.attrs["relief"])
    )
    [scratch] = [each for each in body_requests(gradient, graph) if each.relief]
    layer_bytes = 4096 * 64 * 4
    sizes = [graph.tensors[t].size_bytes for t in gradient.inputs]
    each = range(len(sizes))
    held, given_back = (
        scratch.relieved_bytes(each, each, [readers] * len(sizes), sizes) for readers in (2, 1)
    )
    assert held >= 2 * layer_bytes
    assert given_back <= held - layer_bytes
    assert bound_of(graph, PINNED) == "≈"
