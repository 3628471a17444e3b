"""Which ops make each example of their output of the same example of their inputs.

    Conv2D            x by rows, the filters whole    -> y by rows
    Conv2DBackpropFilter   x and dy by rows           -> the filters' gradient, a sum over the parts
    FusedBatchNormV3                                  -> neither: it looks at all examples at once

A tensor is in rows where its first dimension counts examples, each of one or more rows: a step's
batch is, and what such ops make of it. What an op says of itself (its type, attributes, constants,
shapes) tells; nothing is guessed. O(ops).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf


class Rowwise(NamedTuple):
    """How an op may run on some of the examples.

    Attributes:
        rows: its inputs of which it needs the same examples; the others it reads whole.
        total: the results of the parts are added up; averaged: weighted by their examples, too.
        told: the input that says the shape of what it makes.
        heavy: it reads weights, or makes their gradient.
    """

    rows: tuple[int, ...]
    total: bool = False
    averaged: bool = False
    told: int | None = None
    heavy: bool = False

    def divided(self, op: tf.Operation) -> list[tf.Tensor]:
        """What comes in parts of what the op reads and makes."""
        return [op.inputs[i] for i in self.rows] + ([] if self.total else list(op.outputs))


_Rule = Callable[[tf.Operation], Rowwise | None]

_ELEMENTWISE = frozenset(
    {"Abs", "Add", "AddN", "AddV2", "Cast", "Ceil", "Cos", "Div", "DivNoNan", "Elu", "EluGrad",
     "Equal", "Erf", "Erfc", "Exp", "Expm1", "Floor", "FloorDiv", "Greater", "GreaterEqual",
     "Identity", "Inv", "LeakyRelu", "LeakyReluGrad", "Less", "LessEqual", "Log", "Log1p",
     "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg",
     "NotEqual", "OnesLike", "Pow", "PreventGradient", "RealDiv", "Reciprocal", "ReciprocalGrad",
     "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Rsqrt", "RsqrtGrad", "SelectV2", "Selu", "SeluGrad",
     "Sigmoid", "SigmoidGrad", "Sign", "Sin", "Softplus", "SoftplusGrad", "Softsign",
     "SoftsignGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "StopGradient", "Sub",
     "Tanh", "TanhGrad", "Xdivy", "Xlogy", "ZerosLike"}
)  # fmt: skip


def first_size(shape: tf.TensorShape) -> int:
    """The first dimension, or 0 where there is none."""
    return (shape.as_list()[0] or 0) if shape.rank else 0


def _elementwise(op: tf.Operation) -> Rowwise | None:
    """Inputs with fewer dimensions, or one row, are broadcast."""
    made = op.outputs[0].shape
    rows = tuple(
        i
        for i, t in enumerate(op.inputs)
        if t.shape.rank == made.rank and first_size(t.shape) == first_size(made)
    )
    return Rowwise(rows) if rows else None


def _same_rows(*rows: int, told: int | None = None, heavy: bool = False) -> _Rule:
    """Of ops that leave the first dimension alone."""

    def way(op: tf.Operation) -> Rowwise | None:
        sizes = {first_size(op.inputs[i].shape) for i in rows} | {first_size(op.outputs[0].shape)}
        return Rowwise(rows, told=told, heavy=heavy) if len(sizes) == 1 else None

    return way


def _sum(*rows: int) -> _Rule:
    return lambda op: Rowwise(rows, total=True, heavy=True)


def _values(t: tf.Tensor) -> list[int] | None:
    found = tf.get_static_value(t)
    return None if found is None else [int(each) for each in found.reshape(-1)]


def _reduction(op: tf.Operation) -> Rowwise | None:
    axes = _values(op.inputs[1])
    if axes is None:
        return None
    rank = op.inputs[0].shape.rank or 1
    if 0 not in [axis % rank for axis in axes]:
        return Rowwise((0,))
    if op.type == "Sum" or (op.type == "Mean" and op.inputs[0].dtype.is_floating):
        return Rowwise((0,), total=True, averaged=op.type == "Mean")
    return None


def _reshape(op: tf.Operation) -> Rowwise | None:
    """Examples stay behind each other, in as many rows as the first dimension says."""
    return Rowwise((0,), told=1)


def _mat_mul(op: tf.Operation) -> Rowwise | None:
    if not op.get_attr("transpose_a"):
        return Rowwise((0,), heavy=True)
    return None if op.get_attr("transpose_b") else Rowwise((0, 1), total=True, heavy=True)


def _softmax(op: tf.Operation) -> Rowwise | None:
    return Rowwise((0,)) if (op.outputs[0].shape.rank or 0) > 1 else None


def _batch_mat_mul(op: tf.Operation) -> Rowwise | None:
    a, b, made = op.inputs[0].shape, op.inputs[1].shape, op.outputs[0].shape
    if a.rank != made.rank or first_size(a) != first_size(made) or made.rank < 3:
        return None
    return Rowwise(
        (0, 1) if b.rank == made.rank and first_size(b) == first_size(made) else (0,), heavy=True
    )


def _einsum(op: tf.Operation) -> Rowwise | None:
    """Where the first letter of the result, or one that is summed, comes first wherever it is."""
    equation = op.get_attr("equation").decode()
    read, _, made = equation.replace(" ", "").partition("->")
    terms = read.split(",")
    if "." in equation or not terms[0]:
        return None
    letter = made[0] if made and any(term.startswith(made[0]) for term in terms) else terms[0][0]
    having = [i for i, term in enumerate(terms) if letter in term]
    written = [terms[i] for i in having] + ([made] if letter in made else [])
    if any(term.find(letter) or term.count(letter) > 1 for term in written):
        return None
    return Rowwise(tuple(having), total=letter not in made, heavy=True)


def _concat(op: tf.Operation) -> Rowwise | None:
    return _same_rows(*range(len(op.inputs) - 1))(op) if len(op.inputs) > 2 else None


def _strided(op: tf.Operation) -> Rowwise | None:
    """x[:, ...]"""
    strides = _values(op.inputs[3])
    masks = [op.get_attr(f"{which}_mask") & 1 for which in ("begin", "end")]
    others = ("ellipsis", "new_axis", "shrink_axis")
    if strides is None or strides[:1] != [1] or not all(masks):
        return None
    return Rowwise((0,)) if not any(op.get_attr(f"{which}_mask") & 1 for which in others) else None


def _transpose(op: tf.Operation) -> Rowwise | None:
    order = op.inputs[1]
    if order.op.type == "InvertPermutation":  # of a gradient; both leave the first one, or none
        order = order.op.inputs[0]
    order = _values(order)
    return Rowwise((0,)) if order and order[0] == 0 else None


def _gather(op: tf.Operation) -> Rowwise | None:
    plain = _values(op.inputs[2]) == [0] and not op.get_attr("batch_dims")
    return _same_rows(1, heavy=True)(op) if plain else None


def _expand(op: tf.Operation) -> Rowwise | None:
    axis = _values(op.inputs[1])
    return Rowwise((0,)) if axis and axis[0] % (op.outputs[0].shape.rank or 1) else None


def _squeeze(op: tf.Operation) -> Rowwise | None:
    rank = op.inputs[0].shape.rank or 1
    axes = [axis % rank for axis in op.get_attr("squeeze_dims")]
    return Rowwise((0,)) if axes and 0 not in axes else None


RULES: dict[str, _Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("All", "Any", "Max", "Mean", "Min", "Prod", "Sum"), _reduction),
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), _same_rows(0, heavy=True)),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"),
        _same_rows(2, told=0, heavy=True),
    ),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"),
        _sum(0, 2),
    ),
    **dict.fromkeys(("AvgPool", "AvgPool3D", "BiasAdd", "MaxPool", "MaxPool3D"), _same_rows(0)),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _softmax),
    **dict.fromkeys(("MirrorPad", "Pad", "PadV2"), _same_rows(0)),
    **dict.fromkeys(("ResizeBilinear", "ResizeNearestNeighbor", "Tile"), _same_rows(0)),
    **dict.fromkeys(("MaxPoolGrad", "MaxPool3DGrad"), _same_rows(0, 1, 2)),
    **dict.fromkeys(("AvgPoolGrad", "AvgPool3DGrad"), _same_rows(1, told=0)),
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), _same_rows(0, 1)
    ),
    "BatchMatMulV2": _batch_mat_mul,
    "BiasAddGrad": _sum(0),
    "BroadcastTo": _same_rows(0, told=1),
    "ConcatV2": _concat,
    "Einsum": _einsum,
    "ExpandDims": _expand,
    "GatherV2": _gather,
    "MatMul": _mat_mul,
    "Reshape": _reshape,
    "ResizeBilinearGrad": _same_rows(0, 1),
    "ResizeNearestNeighborGrad": _same_rows(0),
    "Slice": _same_rows(0, told=2),
    "Split": _same_rows(1),
    "SplitV": _same_rows(0),
    "Squeeze": _squeeze,
    "StridedSlice": _strided,
    "StridedSliceGrad": _same_rows(4, told=0),
    "Transpose": _transpose,
}


def ways_of(operations: Sequence[tf.Operation], batch: Sequence[tf.Tensor]) -> dict[str, Rowwise]:
    """By name, the ops that may run on some of the examples, in the order of `operations`.

    Args:
        batch: the tensors that come in rows, all with the same first dimension.
    """
    examples = first_size(batch[0].shape)
    in_rows = {t.name for t in batch}
    found: dict[str, Rowwise] = {}
    for op in operations:
        rule = RULES.get(op.type)
        if rule is None or not all(t.shape.is_fully_defined() for t in (*op.inputs, *op.outputs)):
            continue
        if not any(t.name in in_rows for t in op.inputs):
            continue
        way = rule(op)
        if way is None or not any(op.inputs[i].name in in_rows for i in way.rows):
            continue
        sizes = [first_size(t.shape) for t in way.divided(op)]
        if any(not size or size % examples for size in sizes):
            continue
        found[op.name] = way
        if not way.total:
            in_rows.update(t.name for t in op.outputs)
    return found
