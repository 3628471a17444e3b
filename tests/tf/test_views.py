"""Which kernels hand on their input's buffer: TensorFlow is asked where their outputs lie."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportFunctionMemberAccess=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from memtrade.facts.variables import reads_by_copying
from memtrade.facts.views import viewed
from memtrade.graph import StepGraph
from memtrade.tf.extract import read_graph

r = tf.raw_ops
NCHW = (4, 3, 8, 8)

# How an op is made, of a tensor of which shape, and whether its output is that tensor's buffer.
KERNELS: dict[str, tuple[Callable[[tf.Tensor], Any], tuple[int, ...], bool]] = {
    "a new dimension": (lambda x: x[:, None], (63, 47), True),
    "a new last dimension": (lambda x: x[..., None], (63, 47), True),
    "a dimension of one, taken out": (lambda x: x[:, :, 0], (63, 3, 1, 5), True),
    "its last, too": (lambda x: x[:, -1], (63, 1, 47), True),
    "all of it": (lambda x: x[0:63, :], (63, 47), True),
    "backwards": (lambda x: x[::-1], (63, 47), False),
    "every second of one": (lambda x: x[:, ::2], (63, 1, 47), False),
    "a part": (lambda x: x[:, :46], (63, 47), False),
    "a slice of all": (lambda x: r.Slice(input=x, begin=[0, 0], size=[-1, 47]), (63, 47), True),
    "a slice": (lambda x: r.Slice(input=x, begin=[0, 1], size=[-1, 46]), (63, 47), False),
    "split in one": (lambda x: r.Split(axis=1, value=x, num_split=1)[0], (63, 47), True),
    "split in sizes, one": (
        lambda x: r.SplitV(value=x, size_splits=[47], axis=1, num_split=1)[0], (63, 47), True,
    ),
    "split in all and nothing": (
        lambda x: r.SplitV(value=x, size_splits=[47, 0], axis=1, num_split=2)[0], (63, 47), False,
    ),
    "packed alone": (lambda x: r.Pack(values=[x], axis=1), (63, 47), True),
    "packed with another": (lambda x: r.Pack(values=[x, x], axis=1), (63, 47), False),
    "transposed": (lambda x: tf.transpose(x, [0, 2, 3, 1]), NCHW, False),
    "transposed around one": (lambda x: tf.transpose(x, [0, 2, 1, 3]), (4, 1, 8, 8), True),
    "transposed, a column": (lambda x: tf.transpose(x), (63, 1), True),
    "the same type": (lambda x: r.Cast(x=x, DstT=tf.float32), (63, 47), True),
    "another type of that size": (lambda x: r.Cast(x=x, DstT=tf.int32), (63, 47), False),
    "other bits": (lambda x: tf.bitcast(x, tf.int32), (63, 47), True),
    "checked": (lambda x: tf.debugging.check_numerics(x, "none"), (63, 47), True),
}  # fmt: skip


@pytest.mark.parametrize(("make", "shape", "shares"), KERNELS.values(), ids=KERNELS)
def test_a_buffer_is_handed_on_where_tensorflow_does(
    make: Callable[[tf.Tensor], Any], shape: tuple[int, ...], shares: bool
) -> None:
    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> Any:
        source = tf.abs(x)
        made = make(source)
        return source, made, tf.reduce_sum(tf.cast(made, tf.float32))

    concrete = step.get_concrete_function(tf.TensorSpec(shape))
    graph = StepGraph(read_graph("step", concrete, loss=lambda returned: returned[2]))
    [absolute] = [op for op in graph.ops if op.type == "Abs"]
    readers = [graph.ops[c] for c in graph.consumers[absolute.outputs[0]]]
    [op] = [each for each in readers if each.type != "Identity"]
    assert (viewed(op, graph) is not None) == shares

    source, made, _ = step(tf.ones(shape))
    assert (address(source) == address(made)) == shares


def rows(v: tf.Variable) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.ones([2, 32]), tf.constant([3, 5]))


def written(v: tf.Variable, i: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([v[3:5].assign(tf.ones([2, 32]))]):
        return i + 1


# What is done with a variable, and whether reading it is copying it from then on.
TOUCHED: dict[str, tuple[Callable[[tf.Variable], Any], bool]] = {
    "nothing": (lambda v: 0.0, False),
    "it is read": (lambda v: tf.reduce_sum(v), False),
    "all is added to": (lambda v: v.assign_add(tf.ones([64, 32])), False),
    "rows are gathered": (lambda v: tf.gather(v, [3, 5]), True),
    "numbers are gathered": (lambda v: tf.gather_nd(v, [[3, 5]]), True),
    "rows are added to": (lambda v: v.scatter_add(rows(v)), True),
    "numbers are written": (lambda v: v.scatter_nd_update([[3, 5]], [0.0]), True),
    "a part is assigned": (lambda v: v[3:5].assign(tf.ones([2, 32])), True),
    "rows are gathered in a branch": (
        lambda v: tf.cond(tf.timestamp() > 0.0, lambda: tf.gather(v, [3, 5]), lambda: v[:2]), True,
    ),
    "a branch in a loop writes a part": (
        lambda v: tf.while_loop(
            lambda i: i < tf.minimum(tf.cast(2.0, tf.float64), tf.timestamp()),
            lambda i: tf.cond(i > 0, lambda: written(v, i), lambda: i + 1),
            [tf.constant(0.0, tf.float64)],
        )[0], True,
    ),
    "all is added to in a branch": (
        lambda v: tf.cond(tf.timestamp() > 0.0, lambda: v.assign_add(v * 0.0), lambda: v + 0.0),
        False,
    ),
    "an optimizer takes rows": (
        lambda v: r.ResourceSparseApplyAdagradV2(
            var=v.handle, accum=v.handle, lr=0.1, epsilon=0.1, grad=rows(v).values,
            indices=rows(v).indices,
        ), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("touch", "copies"), TOUCHED.values(), ids=TOUCHED)
def test_reads_copy_a_variable_of_which_rows_are_touched(
    touch: Callable[[tf.Variable], Any], copies: bool
) -> None:
    v = tf.Variable(tf.ones([64, 32]))

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> Any:
        touched = touch(v)
        reads = v.read_value(), v.read_value()
        return reads, tf.reduce_sum(reads[0] * x), touched if tf.is_tensor(touched) else 0.0

    concrete = step.get_concrete_function(tf.TensorSpec([32]))
    graph = StepGraph(read_graph("step", concrete, loss=lambda returned: returned[1]))
    read = [op for op in graph.ops if op.type == "ReadVariableOp"]
    assert {reads_by_copying(op, graph) for op in read} == {copies}

    step(tf.ones([32]))
    (first, second), *_ = step(tf.ones([32]))
    assert (address(first) != address(second)) == copies


def address(t: tf.Tensor) -> int:
    buffer: Any = t
    return np.asarray(memoryview(buffer)).ctypes.data
