"""An assignment that leaves the variable where it lies.

AssignVariableOp makes the value's buffer the variable's. Keras's moving averages are assigned, so
with each step they would move, into holes between the step's large tensors, which then no longer
become one: the peak would creep up by several percent, and differ from step to step. Assigning to
the slice `[:]` of the variable writes the same bits into the buffer that it has.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from memtrade.facts.variables import copied_variables, placed
from memtrade.op_types import READING_TYPES
from memtrade.tf.assigned import whole_slice
from memtrade.tf.captured import captures, on_device, on_host, variable_spec
from memtrade.tf.device import address_of
from memtrade.tf.extract import Trace


def settle(trace: Trace, *, tables: bool = False) -> None:
    """Has the variables that the step changes move now if they will: better than between the large
    tensors of the first step.

    Those that are written in place are assigned to, once. To the others nothing is added: an update
    copies a variable whose buffer is not its own (slots that are made in a tf.function begin as one
    constant, all of a shape together). It would copy one that reads copy, each time: its buffer is
    its own.

    Args:
        tables: has reads copy tables, too, as they will once the step has looked at their rows:
            what it reads before, it takes the memory for in the first step, too. Nobody can tell
            where these lie any more.
    """
    graph = trace.graph
    written = {t for op in graph.ops if op.type not in READING_TYPES for t in op.inputs}
    with tf.init_scope():
        if not tf.executing_eagerly():
            return
        for handle, spec in _there(trace, written - placed(graph)):
            # In a branch or a loop, too: -0.0 leaves even 0.0 as it is.
            number = spec.dtype.is_floating or spec.dtype.is_integer
            if number and not _is_copied(handle, spec):
                nothing = tf.fill(spec.shape, tf.cast(-0.0, spec.dtype))
                tf.raw_ops.AssignAddVariableOp(resource=handle, value=nothing)
        _copied_by_reads(trace, copied_variables(graph) if tables else placed(graph))


def _is_copied(handle: tf.Tensor, spec: tf.TensorSpec) -> bool:
    """Whether reads copy the variable; on a GPU, nobody can tell."""
    if "GPU" in handle.device:
        return False
    one, other = (tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype) for _ in range(2))
    return address_of(one) != address_of(other)


def _copied_by_reads(trace: Trace, tensors: Iterable[int]) -> None:
    """With the first assignment to a slice TensorFlow makes a variable one that reads copy."""
    for handle, spec in _there(trace, tensors):
        if spec.shape.rank:
            _assign(handle, tf.zeros([0, *spec.shape[1:]], spec.dtype), ([0], [1], 0))
        else:  # by way of the heap, or the variable would be read while it is assigned
            held = on_host(tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype))
            put_in_place(handle, spec, held)


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
    _assign(handle, on_device(held, spec.dtype), whole_slice(len(spec.shape)))


def _assign(handle: tf.Tensor, value: tf.Tensor, to: tuple[list[int], list[int], int]) -> None:
    """To the slice that begins and ends there, in strides, by this mask of open ends."""
    start, stride, mask = to
    at = tf.constant(start, tf.int32)
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=handle,
        begin=at,
        end=at,
        strides=tf.constant(stride, tf.int32),
        value=value,
        begin_mask=mask,
        end_mask=mask,
    )
