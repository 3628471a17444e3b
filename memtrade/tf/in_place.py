"""An assignment that leaves the variable where it lies.

AssignVariableOp makes the value's buffer the variable's. Keras's moving averages are assigned, so
with each step they would move, into holes between the step's large tensors, which then no longer
become one: the peak would creep up by several percent, and differ from step to step. Assigning to
the slice `[:]` of the variable writes the same bits into the buffer that it has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

NodeDef = Any  # tf.compat.v1.NodeDef, a protobuf class that type checkers cannot see


def write_in_place(assign: NodeDef, rank: int) -> list[NodeDef]:
    """Turns an AssignVariableOp into one of a slice, and returns the slice's constants."""
    handle, value, *controls = assign.input
    dtype = assign.attr["dtype"].type
    constants = [
        _const(f"{assign.name}/{name}", [at] * min(rank, 1))
        for name, at in (("from", 0), ("by", 1))
    ]
    start, stride = (each.name for each in constants)
    assign.op = "ResourceStridedSliceAssign"
    assign.ClearField("attr")
    assign.attr["T"].type = dtype
    assign.attr["Index"].type = tf.int32.as_datatype_enum
    for mask in ("begin_mask", "end_mask"):
        assign.attr[mask].i = min(rank, 1)
    del assign.input[:]
    assign.input.extend([handle, start, start, stride, value, *controls])
    return constants


def _const(name: str, values: list[int]) -> NodeDef:
    node = tf.compat.v1.NodeDef(op="Const", name=name)
    node.attr["dtype"].type = tf.int32.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.asarray(values, np.int32)))
    return node
