"""Child process of test_shipped.py: imports ops with constants into graphs, in an arena.

Prints, as JSON, of each op type the inputs whose constants the graph keeps.
"""

import gc
import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from memtrade.tf.device import Arena

# Of each type, its inputs: an empty list is a constant of one number, a list one of its numbers, a
# tuple the dtype and shape of a tensor that is not known.
X, ROW, KEY, COUNTER = ("float32", 8, 6, 4), ("int32", 2), ("uint64", 1), ("uint64", 2)
OPS: dict[str, list[Any]] = {
    "BroadcastGradientArgs": [[8, 6], [6]],
    "Cast": [[1, 2]],
    "Cumsum": [X, 1],
    "Equal": [[1, 2], ROW],
    "Greater": [[1, 2], ROW],
    "Less": [[1, 2], ROW],
    "Pack": [[[1, 2], [3, 4]]],
    "Roll": [X, [1], [0]],
    "GatherV2": [X, [1, 2], 1],
    "Multinomial": [("float32", 8, 6), 5],
    "OneHot": [ROW, 5, 1, 0],
    "RandomStandardNormal": [[3, 4]],
    "RandomUniform": [[3, 4]],
    "RandomUniformInt": [[3, 4], 0, 9],
    "StatelessRandomNormalV2": [[3, 4], KEY, COUNTER, 1],
    "StatelessRandomUniformV2": [[3, 4], KEY, COUNTER, 1],
    "StridedSliceGrad": [[8, 6, 4], [0, 0, 0], [8, 6, 4], [1, 1, 1], X],
    "TruncatedNormal": [[3, 4]],
    # By the rule for all others.
    "Mean": [X, [1, 2]],
    "Reshape": [X, [48, 4]],
    "StridedSlice": [X, [0, 0, 0], [8, 6, 4], [1, 1, 1]],
    "Tile": [X, [1, 2, 2]],
}
MANY = 16  # of each, so that what a graph takes anyway does not count


def given(what: Any, *, known: bool) -> Any:
    if isinstance(what, tuple):
        return tf.compat.v1.placeholder(what[0], what[1:])
    if isinstance(what, list) and isinstance(what[0], list):
        return [given(each, known=known) for each in what]
    constant = tf.constant(what, tf.int32)
    return constant if known else tf.compat.v1.placeholder(tf.int32, constant.shape)


def kept_bytes(op_type: str, unknown: int = -1) -> int:
    """What a graph keeps of ops whose inputs are constants, but for one."""
    with tf.Graph().as_default() as graph:
        for _ in range(MANY):
            MAKE[op_type](*(given(e, known=i != unknown) for i, e in enumerate(OPS[op_type])))
    graph_def = graph.as_graph_def()
    gc.collect()  # graphs from before, which would go meanwhile
    before_bytes = arena.in_use_bytes()
    with tf.Graph().as_default() as imported:
        tf.graph_util.import_graph_def(graph_def, name="")
    taken_bytes = arena.in_use_bytes() - before_bytes
    del imported
    return taken_bytes


MAKE: dict[str, Callable[..., Any]] = {
    "Cast": lambda x: tf.raw_ops.Cast(x=x, DstT=tf.float32),
    "Pack": lambda values: tf.raw_ops.Pack(values=values),
    "Roll": lambda x, by, axis: tf.raw_ops.Roll(input=x, shift=by, axis=axis),
    "Cumsum": lambda x, axis: tf.raw_ops.Cumsum(x=x, axis=axis),
    "Equal": lambda x, y: tf.raw_ops.Equal(x=x, y=y),
    "Greater": lambda x, y: tf.raw_ops.Greater(x=x, y=y),
    "Less": lambda x, y: tf.raw_ops.Less(x=x, y=y),
    "BroadcastGradientArgs": lambda a, b: tf.raw_ops.BroadcastGradientArgs(s0=a, s1=b),
    "GatherV2": lambda x, at, axis: tf.raw_ops.GatherV2(params=x, indices=at, axis=axis),
    "OneHot": lambda at, depth, on, off: tf.raw_ops.OneHot(
        indices=at, depth=depth, on_value=on, off_value=off
    ),
    "Multinomial": lambda logits, many: tf.raw_ops.Multinomial(logits=logits, num_samples=many),
    "RandomStandardNormal": lambda shape: tf.raw_ops.RandomStandardNormal(
        shape=shape, dtype=tf.float32
    ),
    "RandomUniform": lambda shape: tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32),
    "RandomUniformInt": lambda shape, least, most: tf.raw_ops.RandomUniformInt(
        shape=shape, minval=least, maxval=most
    ),
    "StatelessRandomNormalV2": lambda shape, key, counter, alg: tf.raw_ops.StatelessRandomNormalV2(
        shape=shape, key=key, counter=counter, alg=alg
    ),
    "StatelessRandomUniformV2": lambda shape, key, counter, alg: (
        tf.raw_ops.StatelessRandomUniformV2(shape=shape, key=key, counter=counter, alg=alg)
    ),
    "StridedSliceGrad": lambda shape, begin, end, by, dy: tf.raw_ops.StridedSliceGrad(
        shape=shape, begin=begin, end=end, strides=by, dy=dy
    ),
    "TruncatedNormal": lambda shape: tf.raw_ops.TruncatedNormal(shape=shape, dtype=tf.float32),
    "Mean": lambda x, axis: tf.raw_ops.Mean(input=x, axis=axis),
    "Reshape": lambda x, shape: tf.raw_ops.Reshape(tensor=x, shape=shape),
    "StridedSlice": lambda x, begin, end, by: tf.raw_ops.StridedSlice(
        input=x, begin=begin, end=end, strides=by
    ),
    "Tile": lambda x, times: tf.raw_ops.Tile(input=x, multiples=times),
}

arena = Arena(256 << 20)
arena.start()
found = {
    op_type: [
        i
        for i, each in enumerate(inputs)
        if not isinstance(each, tuple) and kept_bytes(op_type) > kept_bytes(op_type, i)
    ]
    for op_type, inputs in OPS.items()
}
print(json.dumps(found))
