"""Child process of test_shipped.py: runs ops, each alone in a graph, in an arena.

Usage: drive_plain.py TYPE...
Prints, as JSON, what each took of the arena beside its outputs.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from memtrade.simulate.regions import round_up
from memtrade.tf.device import Arena

r = tf.raw_ops
PARTS = 4
# What is called with more than two tensors, or not with tensors alone.
CALLS: dict[str, Callable[[tf.Tensor, tf.Tensor], Any]] = {
    "Cumsum": lambda x, _: r.Cumsum(x=x, axis=1),
    "Pack": lambda x, y: r.Pack(values=[x, y], axis=1),
    "ReverseV2": lambda x, _: r.ReverseV2(tensor=x, axis=[0, 1]),
    "Unpack": lambda x, _: r.Unpack(value=x, num=PARTS, axis=2),
}
UNARY = ("x",), ("features",)
BINARY = ("x", "y"), ("gradients", "features"), ("gradients", "outputs"), ("y", "dy")


def called(op_type: str, x: tf.Tensor, y: tf.Tensor) -> Any:
    if op_type in CALLS:
        return CALLS[op_type](x, y)
    op = getattr(r, op_type)
    for names in (*UNARY, *BINARY):
        if set(names) == set(op.__signature__.parameters) - {"name", "incompatible_shape_error"}:
            return op(**dict(zip(names, (x, y), strict=False)))
    raise ValueError(f"who knows how to call {op_type}?")


def extra_bytes(op_type: str, arena: Arena) -> int:
    shape = (64, 96, PARTS)
    x, y = tf.fill(shape, 0.3), tf.fill(shape, 0.6)
    run = tf.function(lambda x, y: called(op_type, x, y), autograph=False)
    run(x, y)
    there_bytes = arena.in_use_bytes()
    arena.reset_peak()
    made = tf.nest.flatten(run(x, y))
    outputs = sum(round_up(t.dtype.size * t.shape.num_elements()) for t in made)
    return arena.peak_bytes() - there_bytes - outputs


started = Arena(256 << 20)
started.start()
print(json.dumps({op_type: extra_bytes(op_type, started) for op_type in sys.argv[1:]}))
