"""What a traced function closes over: tensors, variables with what they hold, and values that are
asked for anew at each call.

The keys by which collectives of different replicas find each other are of the last kind. To ask
for one is to use it up, so only calls may: `ConcreteFunction.captured_inputs` asks, too, outside
of a function that is being traced, and replicas in other processes would wait for the key.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from memtrade.tf.swap import MAX_SLICE_BYTES


def captures(concrete: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """For each input of the function's graph behind its arguments, itself and what it stands for;
    itself again where each call asks for that."""
    graph = concrete.graph
    found = list(zip(graph.internal_captures, graph.external_captures, strict=True))
    asked = tf.nest.flatten(graph.deferred_internal_captures, expand_composites=True)
    return found + [(each, each) for each in asked]


def on_host(handle: tf.Tensor, spec: tf.TensorSpec) -> Any:
    """The variable's value, as bytes on the heap if one string can hold them."""
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)
    small = (value.shape.num_elements() or 0) * spec.dtype.size <= MAX_SLICE_BYTES
    return tf.io.serialize_tensor(value) if small else value.numpy()


def on_device(value: Any, dtype: tf.DType) -> tf.Tensor:
    """What `on_host` gave, in the device's memory, and nothing else of it there."""
    if isinstance(value, tf.Tensor):
        return tf.io.parse_tensor(value, dtype)
    # A constant may lie in the array, and the variable with it outside of the device.
    return tf.raw_ops.DeepCopy(x=tf.constant(value))
