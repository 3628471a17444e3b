"""Operations and bytes against hand-made counts."""

import math

import msgspec
import pytest

from memtrade.costs import OpClass, OpCost, op_cost
from memtrade.graph import Op, StepGraph
from tests.graphs import Builder

X, W, Y = (2, 8, 8, 3), (3, 3, 3, 4), (2, 8, 8, 4)
CONV_FLOPS = 2 * (2 * 8 * 8 * 4) * (3 * 3 * 3)


def cost(
    type_: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], **attrs: object
) -> OpCost:
    b = Builder()
    shapes = [*inputs, *outputs]
    read = [b.op(f"in{i}", "Placeholder", sizes=[4])[0] for i in range(len(inputs))]
    made = b.op("op", type_, read, sizes=[4] * len(outputs))
    for t, shape in zip([*read, *made], shapes, strict=True):
        size = 4
        for extent in shape:
            size *= extent
        b.tensors[t] = msgspec.structs.replace(b.tensors[t], shape=shape, size_bytes=size)
    b.ops[-1] = msgspec.structs.replace(b.ops[-1], attrs=attrs)
    graph: StepGraph = b.build(inputs=read, outputs=made, loss=made[0])
    op: Op = graph.ops[-1]
    return op_cost(op, graph)


@pytest.mark.parametrize(
    ("type_", "inputs", "output"),
    [
        ("Conv2D", [X, W], Y),
        ("Conv2DBackpropInput", [(4,), W, Y], X),
        ("Conv2DBackpropFilter", [X, (4,), Y], W),
    ],
)
def test_a_convolution_and_its_gradients_cost_the_same(type_, inputs, output):
    found = cost(type_, inputs, [output])
    assert found.op_class is OpClass.CONV_3X3
    assert found.flops == CONV_FLOPS
    assert cost(type_, inputs, [output], strides=[1, 2, 2, 1]).op_class is OpClass.CONV


def test_a_convolution_of_images_with_channels_last_may_be_transposed():
    moved = 2 * 4 * (math.prod(X) + math.prod(Y))
    assert cost("Conv2D", [X, W], [Y], data_format="NHWC").transposed_bytes == moved
    assert cost("Conv2D", [X, W], [Y], data_format="NCHW").transposed_bytes == 0
    point = (1, 1, *W[2:])
    assert cost("Conv2D", [X, point], [Y], data_format="NHWC").transposed_bytes == 0  # a product


def test_a_depthwise_convolution_sums_over_its_window_only():
    found = cost("DepthwiseConv2dNative", [X, (3, 3, 3, 1)], [X])
    assert found.flops == 2 * (2 * 8 * 8 * 3) * 9


@pytest.mark.parametrize(
    ("type_", "left", "right", "attrs"),
    [
        ("MatMul", (5, 7), (7, 3), {}),
        ("MatMul", (7, 5), (7, 3), {"transpose_a": True}),
        ("MatMul", (5, 7), (3, 7), {"transpose_b": True}),
    ],
)
def test_a_matrix_product_costs_two_operations_a_product(type_, left, right, attrs):
    assert cost(type_, [left, right], [(5, 3)], **attrs).flops == 2 * 5 * 7 * 3


def test_a_batch_of_matrix_products():
    found = cost("BatchMatMulV2", [(2, 6, 5, 7), (2, 6, 7, 3)], [(2, 6, 5, 3)])
    assert found == OpCost(OpClass.MATMUL, 12 * 2 * 5 * 7 * 3, 4 * 12 * (35 + 21 + 15))


def test_batch_norm_reads_its_input_twice():
    found = cost("FusedBatchNormV3", [Y, (4,), (4,)], [Y, (4,), (4,)])
    assert found.op_class is OpClass.NORMALIZATION
    assert found.bytes_moved == 3 * 4 * 2 * 8 * 8 * 4


def test_elementwise_ops_move_each_tensor_once():
    assert cost("AddV2", [Y, Y], [Y]) == OpCost(OpClass.ELEMENTWISE, 512, 3 * 4 * 512)


def test_a_slice_moves_only_what_it_cuts_out():
    assert cost("Slice", [(1000, 1000), (2,), (2,)], [(10, 10)]).bytes_moved == 2 * 400


@pytest.mark.parametrize("type_", ["Identity", "Reshape", "ReadVariableOp", "ShapeN", "NoOp"])
def test_ops_without_a_kernel_are_free(type_):
    assert cost(type_, [Y], [Y]) == OpCost(OpClass.FREE, 0, 0)


def test_xla_makes_the_gradient_of_a_filter_in_groups_densely():
    images, filters = (8, 6, 6, 768), (7, 7, 1, 768)
    found = cost(
        "PartitionedCall",
        [images, images, filters],
        [images, filters],
        images=1,
        filter=2,
        filter_gradient=True,
    )
    assert found.op_class is OpClass.CONV
    assert found.flops == 2 * (7 * 7 * 768 * 768) * (8 * 6 * 6)
    forward = {"images": 0, "filter": 1, "filter_gradient": False}
    assert cost("PartitionedCall", [images, filters], [images], **forward).flops < found.flops
