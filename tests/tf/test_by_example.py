"""Ops that run example by example: all of them, in parts, make what they made."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from memtrade.comparison import IN_PARTS
from memtrade.models import make_model
from memtrade.options import REORDERED
from memtrade.simulate.memory import Simulator
from memtrade.strategies.spill import least_bytes
from memtrade.target import profile_target
from memtrade.tf import rows
from memtrade.tf.build import make_step
from memtrade.tf.by_example import chosen_ways, split_by_example
from memtrade.tf.extract import opened, trace
from memtrade.tf.rows import RULES, ways_of
from memtrade.tf.split import split_step
from memtrade.tf.step import TrainStep
from memtrade.tf.verify import verified

EXAMPLES = 5
RANGES = ((0, 2), (2, 5))
raw = tf.raw_ops

Step = Callable[..., Any]


def opened_of(step: Step, *batch: tf.Tensor) -> tuple[Any, list[tf.TensorSpec]]:
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in batch]
    traced = tf.function(step, autograph=False).get_concrete_function(*specs)
    return opened(traced, specs), specs


def types_in_parts(step: Step, *batch: tf.Tensor) -> set[str]:
    """The types of the ops that may run in parts, once it has been seen that the step is the same
    with all of them in parts."""
    concrete, specs = opened_of(step, *batch)
    graph = concrete.graph
    ways = ways_of(graph.get_operations(), graph.inputs[: len(specs)])
    made = split_by_example(concrete, specs, ways, RANGES)
    for a, b in zip(tf.nest.flatten(concrete(*batch)), tf.nest.flatten(made(*batch)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
    return {graph.get_operation_by_name(name).type for name in ways}


def gradient_too(of: Step, weights: tuple[int, ...] = (2,)) -> Step:
    """What `of` makes of the batch, and the gradients of both."""
    w = tf.random.stateless_normal(weights, (3, 4), stddev=0.5)

    def step(x: tf.Tensor) -> Any:
        weight = tf.identity(w)
        made = of(x, weight)
        return made, *tf.gradients(tf.reduce_sum(made * tf.cos(made)), [x, weight])

    return step


def images() -> tf.Tensor:
    return tf.random.stateless_normal([EXAMPLES, 6, 6, 2], (1, 2))


def volumes() -> tf.Tensor:
    return tf.random.stateless_normal([EXAMPLES, 4, 4, 4, 2], (1, 2))


def sentences() -> tf.Tensor:
    return tf.random.stateless_normal([EXAMPLES, 4, 6], (1, 2))


ARITHMETIC = [
    lambda x: [raw.Add(x=x, y=x), raw.AddN(inputs=[x, x]), raw.AddV2(x=x, y=1.0)],
    lambda x: [raw.Sub(x=x, y=x), raw.Div(x=x, y=x)],
    lambda x: [raw.DivNoNan(x=x, y=x), raw.RealDiv(x=x, y=2.0)],
    lambda x: [raw.FloorDiv(x=x, y=x), raw.Mul(x=x, y=x), raw.MulNoNan(x=x, y=x)],
    lambda x: [raw.Maximum(x=x, y=x[:1]), raw.Minimum(x=x, y=tf.ones([3])), raw.Pow(x=x, y=2.0)],
    lambda x: [raw.SquaredDifference(x=x, y=x), raw.Xdivy(x=x, y=x), raw.Xlogy(x=x, y=x)],
    lambda x: [raw.Greater(x=x, y=1.0), raw.GreaterEqual(x=x, y=1.0), raw.Less(x=x, y=1.0)],
    lambda x: [raw.LessEqual(x=x, y=1.0), raw.Equal(x=x, y=1.0), raw.NotEqual(x=x, y=1.0)],
    lambda x: [raw.SelectV2(condition=x > 1, t=x, e=0.0), raw.LogicalAnd(x=x > 1, y=x > 2)],
    lambda x: [raw.LogicalNot(x=x > 1), raw.LogicalOr(x=x > 1, y=x > 2)],
    lambda x: [raw.All(input=x > 1, axis=[1]), raw.Any(input=x > 1, axis=[1])],
    lambda x: [raw.Prod(input=x, axis=1), raw.Mean(input=x, axis=1)],
    lambda x: [raw.Cast(x=x, DstT=tf.int32), raw.Min(input=x, axis=-1)],
    lambda x: [raw.Max(input=x, axis=[1], keep_dims=True)],
    lambda x: [raw.Mean(input=x, axis=[0]), raw.Sum(input=x, axis=[0, 1])],
    lambda x: [raw.ReluGrad(gradients=x, features=x), raw.Relu6Grad(gradients=x, features=x)],
    lambda x: [raw.EluGrad(gradients=x, outputs=x), raw.SeluGrad(gradients=x, outputs=x)],
    lambda x: [raw.LeakyReluGrad(gradients=x, features=x), raw.RsqrtGrad(y=x, dy=x)],
    lambda x: [raw.SigmoidGrad(y=x, dy=x), raw.TanhGrad(y=x, dy=x), raw.SqrtGrad(y=x, dy=x)],
    lambda x: [raw.ReciprocalGrad(y=x, dy=x), raw.SoftplusGrad(gradients=x, features=x)],
    lambda x: [raw.SoftsignGrad(gradients=x, features=x)],
    lambda x: [raw.BroadcastTo(input=x, shape=[EXAMPLES, 3]), raw.Tile(input=x, multiples=[1, 2])],
    lambda x: [raw.PadV2(input=x, paddings=[[0, 0], [1, 2]], constant_values=1.0)],
    lambda x: [raw.MirrorPad(input=x, paddings=[[0, 0], [1, 1]], mode="REFLECT")],
    lambda x: [raw.SplitV(value=x, size_splits=[1, 2], axis=1, num_split=2)],
    lambda x: list(raw.SoftmaxCrossEntropyWithLogits(features=x, labels=x)),
]  # fmt: skip
UNARY = sorted(
    {"Abs", "Ceil", "Cos", "Elu", "Erf", "Erfc", "Exp", "Expm1", "Floor", "Identity", "Inv",
     "LeakyRelu", "Log", "Log1p", "LogSoftmax", "Neg", "OnesLike", "PreventGradient", "Reciprocal",
     "Relu", "Relu6", "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign",
     "Sqrt", "Square", "StopGradient", "Tanh", "ZerosLike"}
)  # fmt: skip
# How the first argument of a raw op is called, where it is not x.
FIRST = {
    **dict.fromkeys(("Elu", "LeakyRelu", "Relu", "Relu6", "Selu"), "features"),
    **dict.fromkeys(("Softplus", "Softsign"), "features"),
    **dict.fromkeys(("Identity", "PreventGradient", "StopGradient"), "input"),
    **dict.fromkeys(("LogSoftmax", "Softmax"), "logits"),
}


def two_convolutions(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    made = tf.nn.depthwise_conv2d(tf.nn.conv2d(x, w, 1, "SAME"), w, [1, 1, 1, 1], "SAME")
    return tf.nn.bias_add(made, w[0, 0, 0, 0] * tf.ones([4]))


def two_pools(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool2d(tf.nn.avg_pool2d(x * w, 2, 1, "SAME"), 2, 2, "VALID")


def two_pools_of_volumes(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool3d(tf.nn.avg_pool3d(x * w, 2, 1, "SAME"), 2, 2, "SAME")


def resized(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    kinds = (tf.image.ResizeMethod.BILINEAR, tf.image.ResizeMethod.NEAREST_NEIGHBOR)
    return tf.concat([tf.image.resize(x * w, [9, 9], kind) for kind in kinds], axis=3)


def attention(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    q, k, v = tf.split(tf.einsum("btc,cd->btd", x, w), 3, axis=2)
    scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True))
    return tf.reshape(tf.transpose(tf.matmul(scores, v), [0, 2, 1]), [EXAMPLES * 2, 4])


def sliced(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    made = tf.slice(x, [0, 1, 0], [EXAMPLES, 2, 6]) + x[:, ::2]
    return tf.squeeze(tf.pad(tf.expand_dims(made * w, 1), [[0, 0], [0, 0], [0, 1], [0, 0]]), [1])


def shared_sums(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Of the whole batch, read by each example: a batch norm, written out."""
    mean, variance = tf.nn.moments(x * w, [0, 1, 2])
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


GRADIENTS: list[tuple[Step, tuple[int, ...], Callable[[], tf.Tensor]]] = [
    (two_convolutions, (3, 3, 2, 2), images),
    (two_pools, (2,), images),
    (resized, (2,), images),
    (lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), (3, 3, 3, 2, 2), volumes),
    (two_pools_of_volumes, (2,), volumes),
    (attention, (6, 6), sentences),
    (lambda x, w: tf.reshape(x, [EXAMPLES * 4, 6]) @ w, (6, 3), sentences),
    (sliced, (6,), sentences),
    (shared_sums, (2,), images),
]  # fmt: skip


def embedded(words: tf.Tensor) -> Any:
    table = tf.random.stateless_normal([7, 3], (1, 2))
    logits = tf.reshape(tf.gather(table, words), [-1, 3])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.reshape(tf.math.floormod(words, 3), [-1]), logits
    )


def test_each_rule_holds() -> None:
    x = tf.random.stateless_uniform([EXAMPLES, 3], (1, 2), 0.5, 3.0)
    made = [getattr(raw, kind) for kind in UNARY]
    unary = [lambda x: [op(**{FIRST.get(k, "x"): x}) for op, k in zip(made, UNARY, strict=True)]]
    found = set().union(*(types_in_parts(of, x) for of in [*unary, *ARITHMETIC]))
    for of, shape, batch in GRADIENTS:
        found |= types_in_parts(gradient_too(of, shape), batch())
    found |= types_in_parts(embedded, tf.constant([[0, 1, 2]] * EXAMPLES))
    assert RULES.keys() - found == set()


@pytest.mark.parametrize(
    "step",
    [
        lambda x: tf.cumsum(x),
        lambda x: tf.reduce_max(x, 0),
        lambda x: tf.concat([x, x], 0),
        lambda x: tf.transpose(x),
        lambda x: x[1:],
        lambda x: x[::-1],
        lambda x: tf.pad(x, [[1, 0], [0, 0]]),
        lambda x: tf.tile(x, [2, 1]),
        lambda x: tf.expand_dims(x, 0),
        lambda x: tf.matmul(x, tf.ones([EXAMPLES, 2]), transpose_a=True, transpose_b=False) * 0 + 1,
        lambda x: tf.einsum("ab,cb->ca", x, tf.ones([4, 3])),
        lambda x: tf.gather(x, [0, 1]),
        lambda x: tf.nn.softmax(tf.reduce_sum(x, 1)),
        lambda x: tf.reduce_logsumexp(x, 0),
    ],
)
def test_what_looks_at_other_examples_is_whole_or_summed(step: Step) -> None:
    types_in_parts(step, tf.random.stateless_normal([EXAMPLES, 3], (1, 2)))


def test_an_op_that_is_taken_for_one_of_each_example_and_is_not_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(rows.RULES, "Cumsum", lambda op: rows.Rowwise((0,)))
    with pytest.raises(AssertionError):
        types_in_parts(lambda x: tf.cumsum(x), tf.ones([EXAMPLES, 3]))


def unet(batch_size: int = 6) -> TrainStep:
    options = {"base_channels": 8, "image_size": 64, "dropout": 0.0, "num_convs": 2}
    return make_step(make_model("unet", {**options, "batch_size": batch_size}))


def test_a_unet_in_parts_makes_the_same_update_and_needs_less() -> None:
    step, target = unet(), profile_target("arena")
    split = split_step(step, REORDERED)
    found = verified(step, split.function, steps=2, tolerance=IN_PARTS, anew=True)
    assert found.equal, found.differing[:3]
    simulators = [Simulator(trace(each).graph, target) for each in (step, split)]
    needed = [least_bytes(each) - each.laid_bytes for each in simulators]
    assert needed[1] < 0.6 * needed[0]


def test_only_what_is_wide_is_in_parts() -> None:
    step = unet()
    concrete = opened(step.function.get_concrete_function(*step.specs), step.specs)
    ways = chosen_ways(concrete.graph, concrete.graph.inputs[: len(step.specs)])
    scopes = {name.removeprefix("gradients/").partition("/")[0] for name in ways}
    assert "encoder1" in scopes
    assert not scopes & {"bottleneck", "encoder3", "decoder3"}
    narrow = [name for name in ways if "encoder1" in name and "moments" in name]
    assert narrow  # a norm's statistics lead from one wide tensor to another
