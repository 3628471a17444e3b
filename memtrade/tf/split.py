"""A step whose widest ops run in parts along the batch: below what each of them holds at once.

    FusedBatchNormGradV3      reads dy and x whole, and writes dx: three tensors of one size

    sums      for each part: slice dy, x ─► sum dy, sum dy (x - mean)      views, one part at a time
    dx        for each part: slice dy, x ─► dx of the part ─► written over the part of x

x is nobody else's by then, so that its buffer becomes dx, part by part: two tensors and some parts.
The sums are added up in another order than the fused kernel's, so the step is equal to the
original within rounding, not to the bit (`--split reordered`).

    MaxPoolGrad, ReluGrad     read x, the one for the maxima and the other as a mask: of x's size,
                              x itself, the gradient between them, and a workspace

    in parts                  for each part of x: both gradients ─► written over the part of x

That is the same to the bit. After TSPLIT (Nie et al., ICDE 2022), which splits tensors as a fourth
decision beside keep, recompute and swap; here which ops are split follows from the graph alone.

Only ops that TensorFlow has. StridedSlice of the first dimension is a view. ScatterNdNonAliasingAdd
adds in place where nobody else reads its input: first what was there, negative, and then what is to
be there, exactly. (TensorScatterUpdate would say it in one word, but tries to take over its third
input in place of its first, and so always copies.)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.tf.extract import opened
from memtrade.tf.graft import graft
from memtrade.tf.step import TrainStep

PARTS = 8
# Of the widest, ops that make less than this share do not bound the step.
_WIDE = 2 / 3

_BATCH_NORM, _BATCH_NORM_GRADIENT = "FusedBatchNormV3", "FusedBatchNormGradV3"


def split_step(step: TrainStep, parts: int = PARTS) -> TrainStep:
    """`step` with its widest gradients in so many parts, which differ by one example where the
    batch cannot be divided evenly.

    Raises:
        UnsupportedGraphError: there is nothing to split, or nothing to divide.
    """
    concrete = opened(step.function.get_concrete_function(*step.specs), step.specs)
    wide = _widest(concrete.graph)
    if not wide:
        raise UnsupportedGraphError(
            f"{step.name} has no gradient of a batch norm (NHWC, float32, training): "
            "nothing can be split, leave --split out"
        )
    if any(op.inputs[1].shape[0] == 1 for op in wide.values()):
        raise UnsupportedGraphError("a batch of 1 has no parts: leave --split out")
    graph_def = concrete.graph.as_graph_def()
    made = tf.compat.v1.GraphDef(library=graph_def.library, versions=graph_def.versions)
    renamed: dict[Any, Any] = {}  # references
    for node in graph_def.node:
        op = wide.get(node.name)
        if op is None:
            made.node.append(node)
        elif op.type == _BATCH_NORM_GRADIENT:
            made.node.extend(_batch_norm_in_parts(node, op, parts))
            for index, name in ((1, "scale"), (2, "offset")):
                renamed[f"{node.name}:{index}"] = f"{node.name}/split/{name}"
        else:
            made.node.extend(_max_pool_in_parts(node, op, parts))
    for node in made.node:
        for i, reference in enumerate(node.input):
            node.input[i] = renamed.get(reference, reference)
    function = graft(
        concrete,
        made,
        step.specs,
        results=[renamed.get(t.name, t.name) for t in concrete.graph.outputs],
        effects=[op.name for op in concrete.graph.control_outputs],
    )
    return dataclasses.replace(step, name=f"{step.name} in parts", function=function)


def _widest(func_graph: Any) -> dict[str, tf.Operation]:
    """By name, the batch norms' gradients that hold most, and as wide ReluGrads behind a pool's."""
    operations = func_graph.get_operations()
    norms = [op for op in operations if _is_splittable(op)]
    least = _WIDE * max((_elements(op) for op in norms), default=0)
    found = {op.name: op for op in norms if _elements(op) > least}
    if found:
        pools = [op for op in operations if _masks_a_pool(op)]
        found |= {op.name: op for op in pools if _elements(op) > least}
    return found


def _elements(op: tf.Operation) -> int:
    return op.inputs[1].shape.num_elements()


def _masks_a_pool(op: tf.Operation) -> bool:
    """Whether `op` is a ReluGrad of what a MaxPoolGrad makes, and of the same x."""
    if op.type != "ReluGrad" or op.inputs[0].op.type != "MaxPoolGrad":
        return False
    pool = op.inputs[0].op
    return (
        op.inputs[1] is pool.inputs[0]
        and len(op.inputs[0].consumers()) == 1
        and op.inputs[1].shape.is_fully_defined()
        and pool.get_attr("data_format") == b"NHWC"
    )


def _is_splittable(op: tf.Operation) -> bool:
    if op.type != _BATCH_NORM_GRADIENT:
        return False
    forward = op.inputs[3].op
    return (
        op.get_attr("is_training")
        and forward.type == _BATCH_NORM
        and forward.get_attr("exponential_avg_factor") == 1.0
        and op.get_attr("data_format") == b"NHWC"
        and op.inputs[0].dtype == tf.float32
        and op.inputs[1].shape.is_fully_defined()
    )


def _batch_norm_in_parts(node: Any, op: tf.Operation, parts: int) -> list[Any]:
    # What the forward op reserves for its gradient is the variance on CPUs and another number on
    # GPUs; what it returns beside is the same everywhere.
    forward = op.inputs[3].op.outputs
    with tf.Graph().as_default() as graph:
        given = _placeholders([*op.inputs[:3], *forward[1:3]])
        dx, scale, offset = _batch_norm_gradient(given, op.get_attr("epsilon"), parts)
        tf.identity(scale, "scale")
        tf.identity(offset, "offset")
        tf.identity(dx, "dx")
    references = [*node.input[:3], *(t.name for t in forward[1:3])]
    return _spliced(graph, node, references)


def _max_pool_in_parts(node: Any, op: tf.Operation, parts: int) -> list[Any]:
    pool = op.inputs[0].op
    attributes = {
        name: pool.get_attr(name) for name in ("ksize", "strides", "padding", "explicit_paddings")
    }
    with tf.Graph().as_default() as graph:
        x, y, dy = _placeholders(pool.inputs)
        for start, end in _ranges(x, parts):
            given = x[start:end]
            part = tf.raw_ops.MaxPoolGrad(
                orig_input=given, orig_output=y[start:end], grad=dy[start:end], **attributes
            )
            x = _written(x, tf.raw_ops.ReluGrad(gradients=part, features=given), start, end)
        tf.identity(x, "dx")
    return _spliced(graph, node, [t.name for t in pool.inputs])


def _placeholders(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.compat.v1.placeholder(t.dtype, t.shape, f"given{i}") for i, t in enumerate(tensors)]


def _spliced(graph: Any, node: Any, references: Sequence[str]) -> list[Any]:
    """The nodes of `graph` in place of `node`: the last one, dx, has its name. Placeholders become
    the references."""
    outside = {f"given{i}": reference for i, reference in enumerate(references)}
    waits = [reference for reference in node.input if reference.startswith("^")]
    made = []
    for each in graph.as_graph_def().node:
        if each.op == "Placeholder":
            continue
        for i, one in enumerate(each.input):
            wait, own = ("^" if one.startswith("^") else ""), one.removeprefix("^")
            each.input[i] = outside.get(one) or f"{wait}{node.name}/split/{own}"
        if each.input:  # constants wait for nothing
            each.input.extend(waits)
        each.name = node.name if each.name == "dx" else f"{node.name}/split/{each.name}"
        each.device = node.device
        made.append(each)
    return made


def _ranges(x: tf.Tensor, parts: int) -> list[tuple[int, int]]:
    """First and last row, exclusive, of each part."""
    batch = x.shape.as_list()[0] or 1
    count = min(parts, batch)
    return list(itertools.pairwise(batch * i // count for i in range(count + 1)))


def _written(x: tf.Tensor, part: tf.Tensor, start: int, end: int) -> tf.Tensor:
    """`x` with other rows: in its own place where nobody else reads it."""
    rows = tf.constant([[row] for row in range(start, end)])
    nothing = -x[start:end]
    with tf.control_dependencies([part]):  # or the slices that it reads would still be there
        x = tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=rows, updates=nothing)
    return tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=rows, updates=part)


def _batch_norm_gradient(
    given: Sequence[tf.Tensor], epsilon: float, parts: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Of `x`, of the scale, of the offset."""
    dy, x, weight, mean, variance = given
    values = x.shape.num_elements() // x.shape[-1]
    sums, moments = [], []
    for start, end in _ranges(x, parts):
        part = dy[start:end]
        sums.append(tf.reduce_sum(part, [0, 1, 2]))
        moments.append(tf.reduce_sum((x[start:end] - mean) * part, [0, 1, 2]))
    offset, moment = tf.add_n(sums), tf.add_n(moments)
    # What is returned is corrected for moving averages (n / (n - 1)).
    inverse = tf.math.rsqrt(variance * ((values - 1) / values) + epsilon)
    # dx = weight / sigma (dy - mean of dy - (x - mean) / sigma^2 x mean of dy (x - mean))
    slope, shift = inverse * inverse * moment / values, offset / values
    factor = weight * inverse
    for start, end in _ranges(x, parts):
        part = (dy[start:end] - shift - (x[start:end] - mean) * slope) * factor
        x = _written(x, part, start, end)
    return x, moment * inverse, offset
