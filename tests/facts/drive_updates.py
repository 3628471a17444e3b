"""Child process of test_shipped.py: runs updates of variables, each alone, in an arena.

Usage: drive_updates.py TYPE...
Prints, as JSON, what each took of the arena beside what was there.
"""

import inspect
import json
import sys
from typing import Any

import tensorflow as tf

from memtrade.tf.device import Arena

SHAPE, ROWS = (512, 64), 100
VARIABLES = (
    "var", "accum", "accum_update", "linear", "m", "v", "vhat", "mg", "ms", "mom",
    "gradient_accumulator", "gradient_squared_accumulator", "resource", "ref",
)  # fmt: skip


def argument(name: str, op_type: str) -> Any:
    """What an update is given by that name; None of an option."""
    if name in VARIABLES:
        return tf.Variable(tf.fill(SHAPE, 0.1)).handle
    if name in ("grad", "value", "delta", "updates"):
        rows = op_type.startswith(("ResourceScatter", "ResourceSparseApply"))
        return tf.fill((ROWS, *SHAPE[1:]) if rows else SHAPE, 0.5)
    if name == "indices":
        indices = tf.range(ROWS)
        return indices[:, None] if "ScatterNd" in op_type else indices
    if name == "global_step":
        return tf.constant(3, tf.int64)
    options = ("name", "use_locking", "use_nesterov", "update_slots", "bad_indices_policy")
    if name in (*options, "multiply_linear_by_lr"):
        return None
    return tf.constant(-0.1 if name == "lr_power" else 0.1)


def taken_bytes(op_type: str, arena: Arena) -> int:
    update = getattr(tf.raw_ops, op_type)
    names = inspect.signature(update).parameters
    given = {n: a for n in names if (a := argument(n, op_type)) is not None}
    update(**given)  # with the first one of rows the variable is copied
    there_bytes = arena.in_use_bytes()
    arena.reset_peak()
    update(**given)
    return arena.peak_bytes() - there_bytes


started = Arena(256 << 20)
started.start()
print(json.dumps({op_type: taken_bytes(op_type, started) for op_type in sys.argv[1:]}))
