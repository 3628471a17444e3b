"""Child process of test_shipped.py: runs ops, each alone in a graph, in an arena.

Usage: drive_plain.py TYPE...
Prints, as JSON, what each took of the arena beside its outputs.
"""

import inspect
import json
import sys
from typing import Any

import tensorflow as tf

from memtrade.simulate.regions import round_up
from memtrade.tf.device import Arena

started = Arena(256 << 20)
started.start()
PARTS = 4
SHAPE = (64, 96, PARTS)
ROWS = tf.range(SHAPE[0])
TABLE = tf.Variable(tf.fill((512, 64), 0.1))
AXIS = {"axis": 1}
# What ops are given beside one or two tensors.
OTHERS: dict[str, dict[str, Any]] = {
    "ArgMax": {"dimension": 1},
    "ArgMin": {"dimension": 1},
    "BroadcastTo": {"shape": (2, *SHAPE)},
    "Cast": {"DstT": tf.float16},
    "ClipByValue": {"clip_value_min": 0.1, "clip_value_max": 0.9},
    "Cumprod": AXIS,
    "Cumsum": AXIS,
    "Empty": {"shape": SHAPE, "dtype": tf.float32},
    "MatrixDiagPartV3": {"k": 0, "padding_value": 0.0},
    "Max": AXIS,
    "Min": AXIS,
    "MirrorPad": {"paddings": [[1, 1]] * 3, "mode": "REFLECT"},
    "Prod": AXIS,
    "ResourceGather": {"resource": TABLE.handle, "indices": ROWS, "dtype": tf.float32},
    "ReverseV2": {"axis": [0, 1]},
    "ScatterNd": {"indices": ROWS[:, None], "shape": SHAPE},
    "SegmentMean": {"segment_ids": ROWS},
    "SegmentSum": {"segment_ids": ROWS},
    "TensorScatterAdd": {"indices": ROWS[:, None]},
    "TensorScatterUpdate": {"indices": ROWS[:, None]},
    "TopKV2": {"k": 2},
    "Unpack": {"num": PARTS, "axis": 2},
}
NAMES = ("data", "features", "input", "logits", "t", "tensor", "updates", "value", "x")
UNARY = tuple((name,) for name in NAMES)
BINARY = (
    ("gradients", "features"), ("gradients", "outputs"), ("tensor", "updates"), ("x", "y"),
    ("y", "dy"),
)  # fmt: skip


def called(op_type: str, x: tf.Tensor, y: tf.Tensor) -> Any:
    op, others = getattr(tf.raw_ops, op_type), OTHERS.get(op_type, {})
    if op_type == "Pack":
        return op(values=[x, y], axis=1)
    wanted = inspect.signature(op).parameters
    missing = {n for n, each in wanted.items() if each.default is each.empty} - others.keys()
    for names in ((), *UNARY, *BINARY):
        if set(names) == missing:
            return op(**dict(zip(names, (x, y), strict=False)), **others)
    raise ValueError(f"who knows how to call {op_type}?")


def extra_bytes(op_type: str, arena: Arena) -> int:
    x, y = tf.fill(SHAPE, 0.3), tf.fill(SHAPE, 0.6)
    # Of unknown shapes, or TensorFlow would know what ops such as Shape make.
    anything: Any = None
    unknown: Any = tf.TensorSpec(anything, tf.float32)
    run = tf.function(lambda x, y: called(op_type, x, y), (unknown, unknown), autograph=False)
    run(x, y)
    there_bytes = arena.in_use_bytes()
    arena.reset_peak()
    made = tf.nest.flatten(run(x, y))
    outputs = sum(round_up(t.dtype.size * t.shape.num_elements()) for t in made)
    return arena.peak_bytes() - there_bytes - outputs


print(json.dumps({op_type: extra_bytes(op_type, started) for op_type in sys.argv[1:]}))
