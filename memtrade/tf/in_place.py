"""An assignment that leaves the variable where it lies.

AssignVariableOp makes the value's buffer the variable's. Keras's moving averages are assigned, so
with each step they would move, into holes between the step's large tensors, which then no longer
become one: the peak would creep up by several percent, and differ from step to step. Assigning to
the slice `[:]` of the variable writes the same bits into the buffer that it has.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from memtrade.facts.variables import placed
from memtrade.op_types import READING_TYPES
from memtrade.tf.assigned import whole_slice
from memtrade.tf.captured import captures, on_device, on_host, variable_spec
from memtrade.tf.extract import Trace


def settle(trace: Trace) -> None:
    """Has the variables that the step changes move now if they will: better than between the large
    tensors of the first step.

    Those that are written in place are assigned, once, what they hold: with the first such
    assignment TensorFlow makes a variable one that is read by copying. To the others nothing is
    added: an update copies a variable whose buffer is not its own (slots that are made in a
    tf.function begin as one constant, all of a shape together).
    """
    graph = trace.graph
    written = {t for op in graph.ops if op.type not in READING_TYPES for t in op.inputs}
    with tf.init_scope():
        if not tf.executing_eagerly():
            return
        for handle, spec in _there(trace, written - placed(graph)):
            # In a branch or a loop, too: -0.0 leaves even 0.0 as it is.
            if spec.dtype.is_floating or spec.dtype.is_integer:
                nothing = tf.fill(spec.shape, tf.cast(-0.0, spec.dtype))
                tf.raw_ops.AssignAddVariableOp(resource=handle, value=nothing)
        for handle, spec in _there(trace, placed(graph)):
            # By way of the heap, or the variable would be read while it is assigned.
            put_in_place(handle, spec, on_host(handle, spec))


def _there(trace: Trace, tensors: Iterable[int]) -> Iterator[tuple[tf.Tensor, tf.TensorSpec]]:
    """Those of these tensors that are variables and do not come as arguments: handles, and what
    lies behind."""
    captured = {inner.name: outer for inner, outer in captures(trace.concrete)}
    for handle in (captured.get(trace.graph.label(t)) for t in sorted(tensors)):
        if handle is not None and not tf.is_symbolic_tensor(handle):
            spec = variable_spec(handle)
            if spec is not None and spec.shape.is_fully_defined():
                yield handle, spec


def put_in_place(handle: tf.Tensor, spec: tf.TensorSpec, held: Any) -> None:
    """Gives a variable what `on_host` told of one, without moving it."""
    start, stride, mask = whole_slice(len(spec.shape))
    at = tf.constant(start, tf.int32)
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=handle,
        begin=at,
        end=at,
        strides=tf.constant(stride, tf.int32),
        value=on_device(held, spec.dtype),
        begin_mask=mask,
        end_mask=mask,
    )
