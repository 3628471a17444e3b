"""What an op costs, whatever the device: floating-point operations, bytes moved, and its class.

One multiply-add counts as two operations. Bytes are those of the inputs and outputs, each moved
once, unless the kernel needs several passes (batch normalization reads its input twice: once for
the statistics). `devices.py` turns both into seconds, on a roofline with an efficiency per class.
"""

import math
from enum import StrEnum
from typing import NamedTuple

from memtrade.facts.calls import dense_filter
from memtrade.graph import Op, StepGraph
from memtrade.op_types import ALIAS_TYPES, CALL_TYPES, HANDED_TYPES, READ_TYPES, SOURCE_TYPES


class OpClass(StrEnum):
    """Ops that reach a similar share of a device's peak rates."""

    CONV = "conv"
    CONV_3X3 = "conv_3x3"  # 3x3 without stride: cuDNN's Winograd kernels multiply less than counted
    MATMUL = "matmul"
    NORMALIZATION = "normalization"
    ELEMENTWISE = "elementwise"  # reductions, softmax and updates too
    POOLING = "pooling"
    MEMORY = "memory"  # copies: concat, slice, pad, transpose, tile
    FREE = "free"  # no kernel on the device: aliases, shapes, sources


class OpCost(NamedTuple):
    """What one run of an op takes.

    Attributes:
        transposed_bytes: what a device moves besides, if it computes convolutions with channels
            first and the images have them last: input and output, each read and written.
    """

    op_class: OpClass
    flops: int
    bytes_moved: int
    transposed_bytes: int = 0


_FREE_TYPES = (
    ALIAS_TYPES
    | READ_TYPES
    | SOURCE_TYPES
    | HANDED_TYPES
    | {"BroadcastGradientArgs", "ConcatOffset", "Rank", "Shape", "ShapeN", "Size"}
)
_CONV_TYPES = frozenset(
    f"{kind}{direction}"
    for kind in ("Conv2D", "DepthwiseConv2dNative", "Conv3D")
    for direction in ("", "BackpropInput", "BackpropFilter", "BackpropInputV2", "BackpropFilterV2")
)
_MATMUL_TYPES = frozenset({"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul"})
_POOLING_TYPES = frozenset(
    f"{kind}{dimensions}{which}"
    for kind in ("AvgPool", "MaxPool")
    for dimensions in ("", "3D")
    for which in ("", "Grad", "GradGrad")
)
# Where a batch norm reads x, its operations per element of x, and how often that much is moved:
# forward reads x for the statistics and to normalize, and writes y; backward reads dy and x for the
# sums and again for the result, and writes dx.
_BATCH_NORMS = {"FusedBatchNormV3": (0, 8, 3), "FusedBatchNormGradV3": (1, 12, 5)}
_MEMORY_NAMES = """
    BroadcastTo ConcatV2 Fill Gather GatherV2 MirrorPad Pack Pad PadV2 ParseTensor ResourceGather
    ResizeNearestNeighbor ResizeNearestNeighborGrad ReverseV2 Roll SerializeTensor Slice Split
    SplitV StridedSlice StridedSliceGrad Tile Transpose Unpack ZerosLike
"""
_MEMORY_TYPES = frozenset(_MEMORY_NAMES.split())
# Operations per element of the largest tensor, where it is not about one.
_FLOPS_PER_ELEMENT = {
    "Erf": 20,
    "Exp": 10,
    "LogSoftmax": 15,
    "RandomUniform": 20,
    "Softmax": 15,
    "SoftmaxCrossEntropyWithLogits": 20,
    "SparseSoftmaxCrossEntropyWithLogits": 20,
    "StatelessRandomUniform": 20,
    "StatelessRandomUniformV2": 20,
    "Tanh": 20,
}


def op_cost(op: Op, graph: StepGraph) -> OpCost:
    """The cost of one run of `op`. Shapes must be static; unknown ones count as nothing."""
    if op.type in _FREE_TYPES:
        return OpCost(OpClass.FREE, 0, 0)
    moved = graph.bytes_of((*op.inputs, *op.outputs))
    largest = max((_elements(graph, t) for t in (*op.inputs, *op.outputs)), default=0)
    if op.type in _CONV_TYPES:
        return _conv(op, graph, moved)
    if op.type in _MATMUL_TYPES:
        return OpCost(OpClass.MATMUL, _matmul_flops(op, graph), moved)
    if op.type in CALL_TYPES:
        return _call(op, graph, moved)
    if op.type in _BATCH_NORMS:
        place, flops, passes = _BATCH_NORMS[op.type]
        x = op.inputs[place]
        flops *= _elements(graph, x)
        return OpCost(OpClass.NORMALIZATION, flops, passes * graph.tensors[x].size_bytes)
    if op.type in _POOLING_TYPES:
        window = math.prod(op.attrs.get("ksize", [1]))
        pooled = min((_elements(graph, t) for t in (op.inputs[-1], op.outputs[0])), default=0)
        return OpCost(OpClass.POOLING, window * pooled, moved)
    if op.type in _MEMORY_TYPES:
        # What is cut out is all that is read, what is written into is all that is written.
        written = graph.bytes_of(op.outputs)
        return OpCost(OpClass.MEMORY, 0, min(moved, 2 * written))
    if any(graph.tensors[t].dtype == "resource" for t in op.inputs):
        return _update(op, graph)
    if moved < 1024 and all(graph.tensors[t].dtype.startswith("int") for t in op.outputs):
        return OpCost(OpClass.FREE, 0, 0)  # arithmetic on shapes
    per_element = _FLOPS_PER_ELEMENT.get(op.type, max(1, len(op.inputs) - 1))
    return OpCost(OpClass.ELEMENTWISE, per_element * largest, moved)


def _conv(op: Op, graph: StepGraph, moved: int) -> OpCost:
    """Forward: output values x filter values that each sums over; backward: the same products.

    A 1x1 convolution without stride is a matrix product in either layout of the images.
    """
    if op.type.endswith(("BackpropFilter", "BackpropFilterV2")):
        filters, values = op.outputs[0], op.inputs[2]
    elif op.type.endswith(("BackpropInput", "BackpropInputV2")):
        filters, values = op.inputs[1], op.inputs[2]
    else:
        filters, values = op.inputs[1], op.outputs[0]
    shape = graph.tensors[filters].shape or (0,)
    reach = math.prod(shape[:2] if op.type.startswith("Depthwise") else shape[:-1])
    dense = max(op.attrs.get("strides", [1])) == 1 and op.type.startswith("Conv2D")
    op_class = OpClass.CONV_3X3 if dense and shape[:2] == (3, 3) else OpClass.CONV
    transposed = 0
    if op.attrs.get("data_format") == "NHWC" and not (dense and shape[:2] == (1, 1)):
        transposed = 2 * (moved - graph.tensors[filters].size_bytes)
    return OpCost(op_class, 2 * _elements(graph, values) * reach, moved, transposed)


def _matmul_flops(op: Op, graph: StepGraph) -> int:
    """[..., m, k] x [..., k, n]: 2 m k n for each matrix."""
    left = graph.tensors[op.inputs[0]].shape
    if not left or len(left) < 2:
        return 0
    transposed = op.attrs.get("transpose_a") or op.attrs.get("adj_x")
    return 2 * _elements(graph, op.outputs[0]) * left[-2 if transposed else -1]


def _update(op: Op, graph: StepGraph) -> OpCost:
    """An update reads the gradient and reads and writes each variable of the gradient's size."""
    sizes = [graph.tensors[t].size_bytes for t in op.inputs]
    values = max((_elements(graph, t) for t in op.inputs), default=0)
    variables = sum(graph.tensors[t].dtype == "resource" for t in op.inputs)
    return OpCost(
        OpClass.ELEMENTWISE, 2 * variables * values, sum(sizes) + 2 * variables * max(sizes)
    )


def _call(op: Op, graph: StepGraph, moved: int) -> OpCost:
    """A function left whole: its inputs and outputs moved once, and what XLA makes of a filter."""
    dense = dense_filter(op, graph)
    if dense is None:
        return OpCost(OpClass.ELEMENTWISE, max(1, len(op.inputs) - 1) * (moved // 4), moved)
    return OpCost(OpClass.CONV, 2 * dense.elements * dense.places, moved)


def _elements(graph: StepGraph, tensor: int) -> int:
    shape = graph.tensors[tensor].shape
    return math.prod(shape) if shape is not None else 0
