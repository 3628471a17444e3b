"""What is known of tensors' values before a step runs, by tensor id."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.graph import Op, repeats
from memtrade.tf.nodes import Constant, folded, is_few


def known_numbers(
    operations: Sequence[tf.Operation], tensor_ids: dict[str, int]
) -> dict[int, tuple[int, ...]]:
    """Values of the small whole-number tensors that do not depend on the batch."""
    return {
        tensor_ids[name]: tuple(int(each) for each in constant.array.flat)
        for name, constant in known_constants(operations).items()
        if constant.array.dtype != np.bool_
    }


def known_constants(operations: Sequence[tf.Operation]) -> dict[str, Constant]:
    """By names of small whole-number tensors: what TensorFlow knows, and what follows from that."""
    known: dict[str, Constant] = {}
    for operation in operations:
        for t in operation.outputs:
            if not is_few(t):
                continue
            value = tf.get_static_value(t)
            found = None if value is None else Constant(value)
            if found is None and len(operation.outputs) == 1:
                inputs = [known[each.name] for each in operation.inputs if each.name in known]
                if len(inputs) == len(operation.inputs):
                    found = folded(operation.node_def, inputs)
            if found is not None:
                known[t.name] = found
        if operation.type == "ConcatOffset":
            known |= _offsets(operation, known)
    return known


def _offsets(
    operation: tf.Operation, known: Mapping[str, Constant]
) -> Iterator[tuple[str, Constant]]:
    """Where each of the tensors begins that a concat puts behind each other."""
    read = [known[t.name].array for t in operation.inputs if t.name in known]
    if len(read) < len(operation.inputs):
        return
    along, *shapes = read
    begin = np.zeros_like(shapes[0])
    for t, shape in zip(operation.outputs, shapes, strict=True):
        yield t.name, Constant(begin.copy())
        begin[along] += shape[along]


def equal_constants(graph_def: Any, ops: Sequence[Op]) -> dict[int, int]:
    """Constants that hold the same as one before them -> that one."""

    def held(node: Any) -> bytes:
        value = node.attr["value"].SerializeToString(deterministic=True)
        return hashlib.sha256(value).digest()

    return repeats((t, held(node)) for t, node in _constants(graph_def, ops))


def uniform_constants(graph_def: Any, ops: Sequence[Op]) -> dict[int, bytes]:
    """Constants that hold one number all over -> its type and bytes."""
    found: dict[int, bytes] = {}
    for t, node in _constants(graph_def, ops):
        held = tf.make_ndarray(node.attr["value"].tensor)
        if held.size and held.dtype != object:
            number = held.flat[0].tobytes()
            if held.tobytes() == number * held.size:
                found[t] = str(held.dtype).encode() + number
    return found


def _constants(graph_def: Any, ops: Sequence[Op]) -> Iterator[tuple[int, Any]]:
    """Their tensors and nodes."""
    constants = {op.name: op.outputs[0] for op in ops if op.type == "Const"}
    for node in graph_def.node:
        if node.name in constants:
            yield constants[node.name], node
