"""What ops are: as plain data, and apart from their names and where they stand."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import tensorflow as tf

from memtrade.graph import Op, Tensor
from memtrade.op_types import ALIAS_TYPES, CALL_TYPES, READ_TYPES, SOURCE_TYPES
from memtrade.tf.calls import Calls
from memtrade.tf.variables import static_shape


class Definitions:
    """The distinct definitions of kernels, without what makes each node its own.

    Attributes:
        places: definition, and what it calls -> its place, in the order of first use.
    """

    def __init__(self, graph_def: Any, calls: Calls | None = None):
        self.places: dict[tuple[bytes, bytes], int] = {}
        self._place_of: dict[str, int] = {}
        for node in graph_def.node:
            if node.op in ALIAS_TYPES | READ_TYPES | SOURCE_TYPES:
                continue
            if node.op in CALL_TYPES:
                definition = calls.alone(node) if calls else None
                if definition is None:
                    continue
            else:
                bare = tf.compat.v1.NodeDef(op=node.op)
                for key, value in node.attr.items():
                    if not key.startswith("_"):
                        bare.attr[key].CopyFrom(value)
                definition = bare.SerializeToString(deterministic=True), b""
            self._place_of[node.name] = self.places.setdefault(definition, len(self.places))

    @property
    def functions(self) -> dict[int, bytes]:
        return {place: called for (_, called), place in self.places.items() if called}

    def place_of(self, name: str) -> int:
        return self._place_of.get(name, -1)


def read_ops(
    operations: Sequence[tf.Operation],
    definitions: Definitions,
    attrs: Mapping[str, dict[str, Any]],
    sizes: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    captured: Container[str] = (),
    stateful: Container[str] = (),
) -> tuple[list[Op], list[Tensor], dict[str, int]]:
    """The ops and their outputs as plain data, and the tensors' ids by name.

    Args:
        attrs: of ops. sizes: of tensors, in bytes.
        shapes: of tensors, where tracing does not tell.
        captured: ops of small tensors that look like constants in the function's graph; the runtime
            hands them over as arguments, and computes with them in each step.
        stateful: ops.
    """
    op_ids = {operation.name: i for i, operation in enumerate(operations)}
    ops: list[Op] = []
    tensors: list[Tensor] = []
    ids: dict[str, int] = {}
    for op_id, operation in enumerate(operations):
        first = len(tensors)
        for index, t in enumerate(operation.outputs):
            shape = static_shape(t) if t.shape.is_fully_defined() else shapes.get(t.name)
            ids[t.name] = len(tensors)
            tensors.append(Tensor(len(tensors), op_id, index, t.dtype.name, shape, sizes[t.name]))
        ops.append(
            Op(
                id=op_id,
                name=operation.name,
                type="Placeholder" if operation.name in captured else operation.type,
                inputs=tuple(ids[t.name] for t in operation.inputs),
                # Sorted, so that the same step is the same data: TensorFlow keeps them in sets.
                controls=tuple(sorted(op_ids[each.name] for each in operation.control_inputs)),
                outputs=tuple(range(first, len(tensors))),
                stateful=operation.name in stateful,
                attrs=attrs[operation.name],
                node=definitions.place_of(operation.name),
            )
        )
    return ops, tensors, ids


def simple_attrs(node: Any) -> dict[str, Any]:
    """The attributes that cost models read: numbers, strings, types and lists of them."""
    simple: dict[str, Any] = {}
    for key, value in node.attr.items():
        kind = value.WhichOneof("value")
        if key.startswith("_") or kind is None:
            continue
        if kind in ("i", "f", "b"):
            simple[key] = getattr(value, kind)
        elif kind == "s":
            simple[key] = value.s.decode(errors="replace")
        elif kind == "type":
            simple[key] = tf.as_dtype(value.type).name
        elif kind == "list" and value.list.i:
            simple[key] = list(value.list.i)
    return simple
