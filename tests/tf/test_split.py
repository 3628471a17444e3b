"""Steps whose widest gradients run in parts: the same update within rounding, and less memory."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import memtrade
from memtrade.comparison import IN_PARTS
from memtrade.errors import UnknownNameError, UnsupportedGraphError
from memtrade.models import make_model
from memtrade.options import EXACT, REORDERED
from memtrade.simulate.memory import Simulator
from memtrade.strategies.spill import least_bytes
from memtrade.target import profile_target
from memtrade.tf import split
from memtrade.tf.build import make_step
from memtrade.tf.extract import trace
from memtrade.tf.rows import Rowwise
from memtrade.tf.split import split_step
from memtrade.tf.step import TrainStep
from memtrade.tf.verify import compare_steps

pytestmark = pytest.mark.usefixtures("small_models")


def resnet(batch_size: int = 5, image_size: int = 32) -> TrainStep:
    options = {"layers": 18, "image_size": image_size, "batch_size": batch_size}
    return make_step(make_model("resnet", options), optimizer="momentum")


def compared(step: TrainStep, parts: int) -> float:
    """The largest share of an update that a step in parts differs by."""
    variables = step.variables()
    found = compare_steps(
        step.function,
        split_step(step, REORDERED, parts).function,
        variables,
        step.make_batch(),
        steps=2,
        anew=True,
    ).verified(IN_PARTS)
    assert found.equal, found.differing[:3]
    assert found.of_update is not None
    return found.of_update


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_the_update_is_the_same_within_rounding(parts: int) -> None:
    # 5 examples in at most 2 parts, 2 and 3 examples: none has a single one.
    assert 0 < compared(resnet(), parts) < IN_PARTS


def normed(weights: list[tf.Variable]) -> Callable[..., tf.Tensor]:
    """Of two convolutions, each with a batch norm behind it."""

    @tf.function(autograph=False)
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for filters in weights:
                made = tf.nn.conv2d(x, filters, 1, "SAME")
                scale, offset = tf.ones([16]), tf.zeros([16])
                x, _, _ = tf.compat.v1.nn.fused_batch_norm(made, scale, offset)
                x = tf.nn.relu(x)
            loss = tf.reduce_mean(x * x)
        for variable, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            variable.assign_sub(0.1 * gradient)  # pyright: ignore[reportOperatorIssue]
        return loss

    return train_step


def test_a_step_of_ones_own_runs_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    weights = [tf.Variable(tf.random.normal([3, 3, 16, 16])) for _ in range(2)]
    step, batch = normed(weights), tf.random.normal([10, 32, 32, 16])
    caplog.set_level(logging.INFO, "memtrade")
    made = memtrade.apply(step, batch, "optimal", split="reordered")
    memtrade.apply(step, batch, "optimal")
    in_parts, whole = (each.peak_bytes for each in caplog.records if hasattr(each, "peak_bytes"))
    assert in_parts < 0.95 * whole
    found = compare_steps(step, made, weights, (batch,), steps=2, anew=True)
    assert found.verified(IN_PARTS).equal
    with pytest.raises(UnknownNameError, match="exact, none, reordered"):
        memtrade.apply(step, batch, split="some")


ACTIVATIONS = {
    "EluGrad": tf.nn.elu,
    "LeakyReluGrad": tf.nn.leaky_relu,
    "Relu6Grad": tf.nn.relu6,
    "ReluGrad": tf.nn.relu,
    "SeluGrad": tf.nn.selu,
    "SigmoidGrad": tf.nn.sigmoid,
    "TanhGrad": tf.nn.tanh,
}


def activated(
    weights: list[tf.Variable], activation: Callable[[tf.Tensor], tf.Tensor]
) -> Callable[..., tf.Tensor]:
    """Of convolutions and a pool alone, as VGG's."""

    @tf.function(autograph=False)
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for filters in weights:
                x = activation(tf.nn.conv2d(x, filters, 1, "SAME"))
            x = tf.nn.max_pool2d(x, 3, 2, "SAME")
            loss = tf.reduce_mean(x * x)
        for variable, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            variable.assign_sub(0.1 * gradient)  # pyright: ignore[reportOperatorIssue]
        return loss

    return train_step


def weights_of_three() -> list[tf.Variable]:
    shapes = [[3, 3, 3, 16], [3, 3, 16, 16], [3, 3, 16, 16]]
    return [tf.Variable(tf.random.normal(shape, stddev=0.1)) for shape in shapes]


@pytest.mark.parametrize("kind", sorted(ACTIVATIONS))
def test_pools_in_parts_are_the_same_to_the_bit(kind: str) -> None:
    assert ACTIVATIONS.keys() == split._MASKS.keys()
    weights = weights_of_three()
    step, batch = activated(weights, ACTIVATIONS[kind]), tf.random.normal([10, 32, 32, 3])
    concrete = step.get_concrete_function(batch)  # pyright: ignore[reportFunctionMemberAccess]
    made = split.in_parts(concrete, [tf.TensorSpec.from_tensor(batch)], kind, EXACT)
    found = compare_steps(step, made, weights, (batch,), steps=2)
    assert found.verified(0.0).equal, found.differing[:3]


def test_pools_in_parts_need_less(caplog: pytest.LogCaptureFixture) -> None:
    weights = weights_of_three()
    step, batch = activated(weights, tf.nn.relu), tf.random.normal([10, 32, 32, 3])
    caplog.set_level(logging.INFO, "memtrade")
    made = memtrade.apply(step, batch, "optimal", split=EXACT)
    memtrade.apply(step, batch, "optimal")
    in_parts, whole = (each.peak_bytes for each in caplog.records if hasattr(each, "peak_bytes"))
    assert in_parts < 0.9 * whole
    found = compare_steps(step, made, weights, (batch,), steps=2)
    assert found.verified(0.0).equal, found.differing[:3]


@pytest.mark.parametrize(
    ("batch", "parts", "sizes"), [(1, 8, [1]), (5, 8, [2, 3]), (18, 8, [2, 2, 2, 3, 2, 2, 2, 3])]
)
def test_no_part_has_a_single_example(batch: int, parts: int, sizes: list[int]) -> None:
    made = split._ranges(tf.zeros([batch, 2]), parts)
    assert [end - begin for begin, end in made] == sizes


def test_batch_norms_are_left_whole_where_bits_count() -> None:
    concrete = resnet().function.get_concrete_function(*resnet().specs)
    found = {each.op.type for each in split._widest(concrete.graph, EXACT).values()}
    assert found == {"ReluGrad"}


def test_what_forgets_a_part_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that is taken for one of each example, and is not."""
    ranges = split._ranges
    monkeypatch.setattr(split, "_ranges", lambda x, parts: ranges(x, parts)[:-1])
    with pytest.raises(AssertionError):
        compared(resnet(), 2)


def test_an_op_that_is_taken_for_one_of_each_example_and_is_not_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum over the examples before: of a part, those before the part are missing."""
    weights = [tf.Variable(tf.random.normal([3, 3, 3, 4], stddev=0.1))]

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            made = tf.nn.relu(tf.nn.conv2d(x, weights[0], 1, "SAME"))
            pooled = tf.nn.max_pool2d(tf.cumsum(made), 3, 2, "SAME")
            loss = tf.reduce_mean(pooled * pooled)
        weights[0].assign_sub(0.1 * tape.gradient(loss, weights[0]))  # pyright: ignore
        return loss

    batch = tf.random.normal([6, 8, 8, 3])
    specs = [tf.TensorSpec(batch.shape, batch.dtype)]

    def equal() -> bool:
        concrete = step.get_concrete_function(*specs)  # pyright: ignore[reportFunctionMemberAccess]
        made = split.in_parts(concrete, specs, "step", EXACT, 2)
        return compare_steps(step, made, weights, (batch,), steps=1).verified(0.0).equal

    in_rows = split._in_rows
    with pytest.raises(UnsupportedGraphError, match="nothing can be split"):
        equal()
    monkeypatch.setattr(split, "_SAME_BITS", split._SAME_BITS | {"Cumsum"})
    monkeypatch.setitem(split.RULES, "Cumsum", lambda op: Rowwise((0,)))
    monkeypatch.setattr(split, "_in_rows", lambda op: op.type == "Cumsum" or in_rows(op))
    assert not equal()


@pytest.mark.parametrize(
    ("beside", "ops"),
    [
        (lambda made: 0.0, ["MaxPoolGrad"]),
        # The pool's input has two more readers, as where InceptionV4's images get smaller.
        (
            lambda made: (
                tf.nn.conv2d(made, tf.ones([3, 3, 4, 2]), 2, "SAME")
                + tf.reduce_sum(tf.nn.avg_pool2d(made, 2, 2, "SAME"), axis=3, keepdims=True)
            ),
            ["AddN", "AvgPoolGrad", "Conv2DBackpropInput", "MaxPoolGrad"],
        ),
    ],
)
def test_pools_with_their_masks_are_the_same_to_the_bit(
    beside: Callable[[tf.Tensor], tf.Tensor], ops: list[str]
) -> None:
    def step_of(x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
        made = tf.nn.relu(tf.nn.conv2d(x, filters, 1, "SAME"))
        pooled = tf.nn.max_pool2d(made, 3, 2, "SAME")
        loss = tf.reduce_sum(pooled * pooled) + tf.reduce_sum(tf.square(beside(made)))
        return tf.gradients(loss, [filters])

    x, filters = tf.random.stateless_normal([5, 8, 8, 3], (1, 2)), tf.ones([3, 3, 3, 4])
    concrete = tf.function(step_of, autograph=False).get_concrete_function(
        tf.TensorSpec(x.shape, x.dtype), tf.TensorSpec(filters.shape, filters.dtype)
    )
    names = [t.op.name for t in concrete.graph.inputs]
    given = dict(zip(names, (x.numpy(), filters.numpy()), strict=True))
    masks = [op for op in concrete.graph.get_operations() if op.type == "ReluGrad"]
    masked = [split._masked(op) for op in masks]
    assert [sorted(each.type for each in those) for those in masked] == [ops]

    def made(parts: int) -> np.ndarray:
        graph_def = tf.compat.v1.GraphDef()
        for node in concrete.graph.as_graph_def().node:
            in_parts = parts > 1 and node.name == masks[0].name
            if in_parts:
                masked = split._masked(masks[0])
                graph_def.node.extend(split._mask_in_parts(node, masks[0], masked, parts))
            else:
                graph_def.node.append(node)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            (found,) = tf.graph_util.import_graph_def(graph_def, given, [masks[0].outputs[0].name])
            return session.run(found)

    assert made(1).any()
    assert np.array_equal(made(1), made(2))


def test_what_is_read_behind_the_mask_is_not_written_over() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        made = tf.nn.relu(x)
        (gradient,) = tf.gradients(tf.reduce_sum(tf.nn.max_pool2d(made, 2, 2, "SAME")), [x])
        return gradient * made

    traced = tf.function(step, autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec([4, 8, 8, 2])).graph
    (mask,) = (op for op in graph.get_operations() if op.type == "ReluGrad")
    assert split._masked(mask) == []


def test_one_op_needs_less() -> None:
    target = profile_target("arena")
    with tf.Graph().as_default():
        whole = trace(resnet(8, 224)).graph
    with tf.Graph().as_default():
        parts = trace(split_step(resnet(8, 224), REORDERED)).graph
    simulators = [Simulator(graph, target) for graph in (whole, parts)]
    needed = [least_bytes(each) - each.laid_bytes for each in simulators]
    assert needed[1] < 0.8 * needed[0]


def test_a_batch_of_one_has_no_parts() -> None:
    with pytest.raises(UnsupportedGraphError, match="a batch of 1 has no parts"):
        split_step(resnet(1), REORDERED)


def test_without_pools_no_bits_are_left_the_same_by_parts() -> None:
    model = make_model("gpt2", {"layers": 1, "width": 32, "heads": 2, "batch_size": 2})
    with pytest.raises(UnsupportedGraphError, match="nothing can be split"):
        split_step(make_step(model), EXACT)


def test_what_looks_at_all_examples_at_once_cannot_be_split() -> None:
    weight = tf.Variable(tf.ones([3]))

    def sorted_loss(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_max(tf.cumsum(x) * weight)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    specs = [tf.TensorSpec([4, 3])]
    concrete = tf.function(sorted_loss, autograph=False).get_concrete_function(*specs)
    with pytest.raises(UnsupportedGraphError, match="works example by example: nothing can be"):
        split.in_parts(concrete, specs, "step", REORDERED)
