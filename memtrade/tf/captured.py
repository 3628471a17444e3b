"""What a traced function closes over: tensors, variables with what they hold, and values that are
asked for anew at each call.

The keys by which collectives of different replicas find each other are of the last kind. To ask
for one is to use it up, so only calls may: `ConcreteFunction.captured_inputs` asks, too, outside
of a function that is being traced, and replicas in other processes would wait for the key.
"""

import contextlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.op_types import ITERATING_TYPES
from memtrade.simulate.walk import MAX_SLICE_BYTES

# The handles of iterators, and where each stands, as TensorFlow writes it down.
Positions = Sequence[tuple[tf.Tensor, tf.Tensor]]


def captures(concrete: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """For each input of the function's graph behind its arguments, itself and what it stands for;
    itself again where each call asks for that."""
    graph = concrete.graph
    found = list(zip(graph.internal_captures, graph.external_captures, strict=True))
    asked = tf.nest.flatten(graph.deferred_internal_captures, expand_composites=True)
    return found + [(each, each) for each in asked]


def on_host(value: tf.Tensor) -> Any:
    """The tensor's value, as bytes of Python's if one string can hold them: nothing of it in the
    device's memory, where a string's tensor would lie."""
    small = (value.shape.num_elements() or 0) * value.dtype.size <= MAX_SLICE_BYTES
    return tf.io.serialize_tensor(value).numpy() if small else value.numpy()


def on_device(value: Any, dtype: tf.DType) -> tf.Tensor:
    """What `on_host` gave, or a tensor of these bytes, in the device's memory, and nothing else of
    it there."""
    if isinstance(value, bytes | tf.Tensor):
        return tf.io.parse_tensor(value, dtype)
    # A constant may lie in the array, and the variable with it outside of the device.
    return tf.raw_ops.DeepCopy(x=tf.constant(value))


def variable_spec(captured: tf.Tensor) -> tf.TensorSpec | None:
    """What lies behind a captured handle, if that is a variable."""
    # The handle's shape_and_type is what TensorFlow itself infers variables' shapes from; there
    # is no public accessor. tests/tf/test_extract.py notices when it moves.
    data = captured._handle_data if captured.dtype == tf.resource else None
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    behind = data.shape_and_type[0]
    return tf.TensorSpec(tf.TensorShape(behind.shape), tf.as_dtype(behind.dtype))


class Behind:
    """The variable behind a handle, with what comparisons ask of a tf.Variable."""

    def __init__(self, name: str, handle: tf.Tensor, spec: tf.TensorSpec):
        self.name, self.handle, self.shape, self.dtype = name, handle, spec.shape, spec.dtype

    def numpy(self) -> np.ndarray:
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype).numpy()

    def assign(self, value: Any) -> None:
        constant = tf.constant(value, self.dtype)
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=constant)


def positions_of(concrete: Any) -> Positions:
    """Where the iterators that a function captures stand in their data sets, as far as TensorFlow
    can tell that: of a Python generator it can't."""
    graph_def = concrete.graph.as_graph_def()
    nodes = chain(graph_def.node, *(each.node_def for each in graph_def.library.function))
    if not any(node.op in ITERATING_TYPES for node in nodes):
        return []
    found = []
    for _, handle in captures(concrete):
        if handle.dtype == tf.resource and variable_spec(handle) is None:
            with contextlib.suppress(tf.errors.OpError):  # a table's, for example
                found.append((handle, tf.raw_ops.SerializeIterator(resource_handle=handle)))
    return found


def go_back(positions: Positions) -> None:
    for handle, serialized in positions:
        tf.raw_ops.DeserializeIterator(resource_handle=handle, serialized=serialized)


def captured_variables(concrete: Any) -> list[Any]:
    """In the order of their first use; TensorFlow's own list has another in each run, and
    comparisons of two steps pair them. A concrete function knows its variables by weak references,
    and nobody else holds the slots of tf.compat.v1's optimizers: of these, the handle is left."""
    known = {id(variable.handle): variable for variable in concrete.variables}
    found = []
    for i, (_, handle) in enumerate(captures(concrete)):
        spec = variable_spec(handle)
        if id(handle) in known:
            found.append(known[id(handle)])
        elif spec is not None:
            found.append(Behind(f"captured {i}", handle, spec))
    return found
