"""Child process of test_shipped.py: imports ops with constants into graphs, in an arena.

Prints, as JSON, of each op type the inputs whose constants the graph keeps, and those of which it
keeps a part that is known.
"""

import inspect
import json
from typing import Any

import tensorflow as tf

from memtrade.tf.device import Arena

# Of each type, its inputs: an empty list is a constant of one number, a list one of its numbers, a
# tuple the dtype and shape of a tensor that is not known.
X, ROW, KEY, COUNTER = ("float32", 8, 6, 4), ("int32", 2), ("uint64", 1), ("uint64", 2)
SCATTERED = [X, [[1], [2]], ("float32", 2, 6, 4)]
VIDEOS = ("float32", 1, 4, 8, 8, 2)
IMAGES, MADE = ("float32", 1, 8, 8, 2), ("float32", 1, 8, 8, 4)
OPS: dict[str, list[Any]] = {
    "All": [("bool", 3, 2), [0, 1]],
    "Any": [("bool", 3, 2), [0, 1]],
    "ArgMax": [X, 1],
    "AvgPool3DGrad": [[1, 4, 8, 8, 2], ("float32", 1, 2, 4, 4, 2)],
    "AvgPoolGrad": [[1, 8, 8, 2], ("float32", 1, 4, 4, 2)],
    "BatchToSpaceND": [("float32", 4, 4, 4, 2), [2, 2], [[0, 0], [0, 0]]],
    "Bincount": [[1, 2], 5, ("float32", 2)],
    "BroadcastArgs": [[8, 6], [8, 6]],
    "BroadcastGradientArgs": [[8, 6], [6]],
    "BroadcastTo": [X, [8, 6, 4]],
    "Cast": [[1, 2]],
    "ConcatOffset": [1, [8, 6], [8, 4]],
    "ConcatV2": [[1, 2], [3, 4], 0],
    "Conv2DBackpropFilter": [IMAGES, [3, 3, 2, 4], MADE],
    "Conv2DBackpropInput": [[1, 8, 8, 2], ("float32", 3, 3, 2, 4), MADE],
    "Conv3DBackpropFilterV2": [VIDEOS, [3, 3, 3, 2, 4], ("float32", 1, 4, 8, 8, 4)],
    "Conv3DBackpropInputV2": [
        [1, 4, 8, 8, 2],
        ("float32", 3, 3, 3, 2, 4),
        ("float32", 1, 4, 8, 8, 4),
    ],
    "CropAndResize": [IMAGES, ("float32", 3, 4), [0, 0, 0], [5, 6]],
    "CropAndResizeGradImage": [("float32", 3, 5, 6, 2), ("float32", 3, 4), [0, 0, 0], [1, 8, 8, 2]],
    "Cumsum": [X, 1],
    "DepthwiseConv2dNativeBackpropFilter": [IMAGES, [3, 3, 2, 2], MADE],
    "DepthwiseConv2dNativeBackpropInput": [[1, 8, 8, 2], ("float32", 3, 3, 2, 2), MADE],
    "Empty": [[3, 4]],
    "EmptyTensorList": [[3, 4], 5],
    "Equal": [[1, 2], ROW],
    "ExpandDims": [X, 1],
    "Fill": [[8, 6], ("int32",)],
    "GatherNd": [X, [1, 2]],
    "GatherV2": [X, [1, 2], 1],
    "Greater": [[1, 2], ROW],
    "GreaterEqual": [[1, 2], ROW],
    "IRFFT": [("complex64", 4, 9), [16]],
    "IRFFT2D": [("complex64", 4, 8, 9), [8, 16]],
    "Identity": [[1, 2]],
    "InvertPermutation": [[1, 0]],
    "Less": [[1, 2], ROW],
    "LessEqual": [[1, 2], ROW],
    "MatrixBandPart": [X, 1, 2],
    "MatrixDiagPartV3": [X, 1, ("float32",)],
    "MatrixDiagV3": [X, 0, -1, -1, ("float32",)],
    "MatrixSetDiagV3": [X, ("float32", 8, 4), 0],
    "Max": [X, [1, 2]],
    "Mean": [X, [1, 2]],
    "Min": [X, [1, 2]],
    "MirrorPad": [X, [[1, 1]] * 3],
    "MirrorPadGrad": [X, [[1, 1]] * 3],
    "Multinomial": [("float32", 8, 6), 5],
    "NotEqual": [[1, 2], ROW],
    "OneHot": [ROW, 5, 1, 0],
    "Pack": [[1, 2], [3, 4]],
    "Pad": [X, [[1, 1]] * 3],
    "PadV2": [X, [[1, 1]] * 3, ("float32",)],
    "Prod": [X, [1, 2]],
    "RFFT": [("float32", 4, 16), [16]],
    "RFFT2D": [("float32", 4, 8, 16), [8, 16]],
    "RandomStandardNormal": [[3, 4]],
    "RandomUniform": [[3, 4]],
    "RandomUniformInt": [[3, 4], 0, 9],
    "Reshape": [X, [48, 4]],
    "ResizeBilinear": [IMAGES, [5, 6]],
    "ResizeNearestNeighbor": [IMAGES, [5, 6]],
    "ReverseV2": [X, [0, 1]],
    "Roll": [X, [1], [0]],
    "ScatterNd": [[[1], [2]], ("float32", 2, 4), [8, 4]],
    "Select": [("bool", 2), [1, 2], [3, 4]],
    "SelectV2": [("bool", 2), [1, 2], [3, 4]],
    "Slice": [X, [0, 0, 0], [1, 2, 3]],
    "SpaceToBatchND": [IMAGES, [2, 2], [[0, 0], [0, 0]]],
    "SparseSoftmaxCrossEntropyWithLogits": [("float32", 2, 6), [1, 2]],
    "Split": [1, X],
    "SplitV": [X, [1, 3], 2],
    "Squeeze": [[[1, 2]]],
    "StatelessRandomNormalV2": [[3, 4], KEY, COUNTER, 1],
    "StatelessRandomUniformIntV2": [[3, 4], KEY, COUNTER, 1, 0, 9],
    "StatelessRandomUniformV2": [[3, 4], KEY, COUNTER, 1],
    "StatelessTruncatedNormalV2": [[3, 4], KEY, COUNTER, 1],
    "StridedSlice": [X, [0, 0, 0], [8, 6, 4], [1, 1, 1]],
    "StridedSliceGrad": [[8, 6, 4], [0, 0, 0], [8, 6, 4], [1, 1, 1], X],
    "Sum": [X, [1, 2]],
    "TensorListReserve": [[3, 4], 5],
    "TensorScatterAdd": SCATTERED,
    "TensorScatterMax": SCATTERED,
    "TensorScatterMin": SCATTERED,
    "TensorScatterSub": SCATTERED,
    "TensorScatterUpdate": SCATTERED,
    "Tile": [X, [1, 2, 2]],
    "TopKV2": [X, 3],
    "Transpose": [X, [1, 0, 2]],
    "TruncatedNormal": [[3, 4]],
    "Unpack": [[1, 2]],
    "UnsortedSegmentMax": [X, [0] * 8, 5],
    "UnsortedSegmentSum": [X, [0] * 8, 5],
    "Where": [[1, 2]],
    # By the rule for all others.
    "LinSpace": [("float32",), ("float32",), 3],
    "Range": [1, 5, 2],
}
MANY = 16  # of each, so that what a graph takes anyway does not count
KNOWN, UNKNOWN, PUT_TOGETHER = range(3)
graphs: list[tf.Graph] = []  # that stay: none gives back while others are looked at


def given(what: Any, how: int = KNOWN) -> Any:
    """PUT_TOGETHER: of one number that is known, and others that are not."""
    if isinstance(what, tuple):
        return tf.compat.v1.placeholder(what[0], what[1:])
    constant = tf.constant(what, tf.int32)
    if how == KNOWN:
        return constant
    if how == UNKNOWN:
        return tf.compat.v1.placeholder(tf.int32, constant.shape)
    others = [tf.compat.v1.placeholder(tf.int32, []) for _ in what[1:]]
    return tf.raw_ops.Pack(values=[tf.constant(what[0]), *others])


def kept_bytes(op_type: str, place: int = -1, how: int = UNKNOWN) -> int:
    """What a graph keeps of ops whose inputs are constants, but for one."""
    with tf.Graph().as_default() as graph:
        for _ in range(MANY):
            inputs = OPS[op_type]
            make(op_type, [given(e, how if i == place else KNOWN) for i, e in enumerate(inputs)])
    graphs.append(graph)
    before_bytes = arena.in_use_bytes()
    with tf.Graph().as_default() as imported:
        tf.graph_util.import_graph_def(graph.as_graph_def(), name="")
    graphs.append(imported)
    return arena.in_use_bytes() - before_bytes


ATTRS: dict[str, dict[str, Any]] = {
    "AvgPool3DGrad": {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"},
    "AvgPoolGrad": {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"},
    "Cast": {"DstT": tf.float32},
    "Conv2DBackpropFilter": {"strides": [1] * 4, "padding": "SAME"},
    "Conv2DBackpropInput": {"strides": [1] * 4, "padding": "SAME"},
    "Conv3DBackpropFilterV2": {"strides": [1] * 5, "padding": "SAME"},
    "Conv3DBackpropInputV2": {"strides": [1] * 5, "padding": "SAME"},
    "CropAndResizeGradImage": {"T": tf.float32},
    "DepthwiseConv2dNativeBackpropFilter": {"strides": [1] * 4, "padding": "SAME"},
    "DepthwiseConv2dNativeBackpropInput": {"strides": [1] * 4, "padding": "SAME"},
    "Empty": {"dtype": tf.float32},
    "EmptyTensorList": {"element_dtype": tf.float32},
    "MirrorPad": {"mode": "REFLECT"},
    "MirrorPadGrad": {"mode": "REFLECT"},
    "RandomStandardNormal": {"dtype": tf.float32},
    "RandomUniform": {"dtype": tf.float32},
    "Split": {"num_split": 2},
    "SplitV": {"num_split": 2},
    "TensorListReserve": {"element_dtype": tf.float32},
    "TruncatedNormal": {"dtype": tf.float32},
    "Unpack": {"num": 2},
}


def make(op_type: str, inputs: list[Any]) -> None:
    """An op of raw inputs, in their order."""
    raw = getattr(tf.raw_ops, op_type)
    if op_type == "ConcatV2":
        inputs = [inputs[:-1], inputs[-1]]
    elif op_type == "ConcatOffset":
        inputs = [inputs[0], inputs[1:]]
    elif op_type == "Pack":
        inputs = [inputs]
    names = [each for each in inspect.signature(raw).parameters if each != "name"]
    raw(**dict(zip(names, inputs, strict=False)), **ATTRS.get(op_type, {}))


def main() -> None:
    asked, shapes = dict[str, list[int]](), dict[str, list[int]]()
    for op_type, inputs in OPS.items():
        most = kept_bytes(op_type)
        places = [i for i, each in enumerate(inputs) if not isinstance(each, tuple)]
        left = {i: kept_bytes(op_type, i) for i in places}
        asked[op_type] = [i for i in places if left[i] < most]
        several = [i for i in asked[op_type] if isinstance(inputs[i], list)]
        shapes[op_type] = [
            i
            for i in several
            if not isinstance(inputs[i][0], list) and kept_bytes(op_type, i, PUT_TOGETHER) > left[i]
        ]
    print(json.dumps([asked, {name: found for name, found in shapes.items() if found}]))


arena = Arena(256 << 20)
arena.start()
main()
