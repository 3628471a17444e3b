"""Nodes of a GraphDef as they are written, one after the other, and what is known of their values.

A *value* is a tensor as the writer knows it:

    str       a reference to a tensor of the written graph, "op" or "op:1"
    Constant  whole numbers or truth values; a node is written once one reads them as a tensor
    Late      what is written when it is first read: an element of a list, or the list itself
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

NodeDef = GraphDef = Any  # of tf.compat.v1: protobuf classes, which type checkers cannot see

# More elements are nothing that a loop counts by.
MOST_VALUES = 64


def make_node(
    op: str, name: str = "", inputs: Iterable[str] = (), *, device: str = "", **attrs: Any
) -> NodeDef:
    """A node with these attributes: dtypes or their names, TensorFlow's shapes, arrays, numbers."""
    node = tf.compat.v1.NodeDef(op=op, name=name, device=device, input=inputs)
    typed = {k: tf.as_dtype(each) if isinstance(each, str) else each for k, each in attrs.items()}
    set_attributes(node, typed)
    return node


def set_attributes(node: NodeDef, attrs: Mapping[str, Any]) -> None:
    """As in `make_node`, but that words are texts."""
    for key, value in attrs.items():
        made = node.attr[key]
        if isinstance(value, tf.DType):
            made.type = value.as_datatype_enum
        elif isinstance(value, tf.TensorShape):
            made.shape.CopyFrom(value.as_proto())
        elif isinstance(value, str):
            made.s = value.encode()
        elif isinstance(value, int):
            made.i = value
        else:
            made.tensor.CopyFrom(tf.make_tensor_proto(value))


def with_nodes(graph_def: GraphDef, nodes: Iterable[NodeDef]) -> GraphDef:
    """These nodes beside the functions of `graph_def`."""
    return tf.compat.v1.GraphDef(node=nodes, library=graph_def.library, versions=graph_def.versions)


def copied(node: NodeDef, name: str, inputs: Iterable[str]) -> NodeDef:
    """A copy that reads other inputs, and is beside no other op: those may be gone."""
    made = tf.compat.v1.NodeDef()
    made.CopyFrom(node)
    made.attr.pop("_class", None)
    made.name, made.input[:] = name, list(inputs)
    return made


def make_call(op: str, name: str, signature: Any) -> NodeDef:
    """A call of a function of the library, without its inputs."""
    call = make_node(op, name)
    call.attr["f"].func.name = signature.name
    call.attr["Tin"].list.type.extend(each.type for each in signature.input_arg)
    call.attr["Tout"].list.type.extend(each.type for each in signature.output_arg)
    return call


class Constant:
    """Few whole numbers, or truth values.

    Attributes:
        reference: the node that holds them, if there is one.
    """

    def __init__(self, array: Any, reference: str = ""):
        self.array, self.reference = np.asarray(array), reference


class Late(ABC):
    """A tensor that is written when it is first read. `reference`: to it, once it is."""

    reference = ""

    def written(self, writer: Writer) -> str:
        """A reference to it; each call gives the same."""
        self.reference = self.reference or self._write(writer)
        return self.reference

    @abstractmethod
    def _write(self, writer: Writer) -> str: ...


NodeInput = str | Constant | Late


class Writer:
    """Writes nodes under names of their own.

    Attributes:
        nodes: what was written, each behind those that it reads.
        dry: nothing is written, and references lead nowhere: to see what becomes of constants.
        rows: of tensors by their references, the size of the first dimension.
    """

    def __init__(self, rows: dict[str, int], names: Iterable[str] = ()):
        self.nodes: list[NodeDef] = []
        self.dry = False
        self.rows = rows
        self._names = set(names)
        self._constants: dict[tuple[Any, ...], str] = {}

    def add(
        self,
        like: NodeDef,
        name: str,
        inputs: Sequence[NodeInput],
        controls: Iterable[str] = (),
        *,
        own_name: bool = False,
    ) -> str:
        """A copy of `like` that reads other inputs; its name, with a number if that is taken by
        another (`own_name` says it is not)."""
        references = [self.reference(each) for each in inputs]
        if self.dry:
            return name
        name = name if own_name else self._unique(name)
        inputs = [*references, *(f"^{each}" for each in controls)]
        self.nodes.append(copied(like, name, inputs))
        return name

    def make(self, op: str, name: str, inputs: Sequence[NodeInput], **attrs: Any) -> str:
        return self.add(make_node(op, **attrs), name, inputs)

    def reference(self, value: NodeInput) -> str:
        """The tensor, written now if it was not before."""
        if isinstance(value, str):
            return value
        if isinstance(value, Late):
            return "" if self.dry else value.written(self)
        if not value.reference and not self.dry:
            value.reference = self.constant(value.array)
        return value.reference

    def constant(self, array: np.ndarray) -> str:
        """A Const of few values, one for all that are the same."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if self.dry:
            return ""
        if key not in self._constants:
            like = make_node("Const", dtype=tf.as_dtype(array.dtype), value=array)
            self._constants[key] = self.add(like, f"constant{len(self._constants)}", ())
        return self._constants[key]

    def filled(self, shape: Constant, value: str, dtype: tf.DType) -> str:
        """A tensor of one and the same value; there is one of a kind, too."""
        key = ("Fill", value, shape.array.tobytes())
        if key not in self._constants:
            inputs = [shape, value]
            made = self.make("Fill", "filled", inputs, T=dtype, index_type=tf.int32)
            self._constants[key] = made
        return self._constants[key]

    def _unique(self, name: str) -> str:
        found, count = name, 0
        while found in self._names:
            count += 1
            found = f"{name}_{count}"
        self._names.add(found)
        return found


def _ranged(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray | None:
    if not delta.all():
        return None
    counted = range(int(start), int(limit), int(delta))
    return np.asarray(counted, start.dtype) if len(counted) <= MOST_VALUES else None


def _tiled(array: np.ndarray, times: np.ndarray) -> np.ndarray | None:
    size = array.size * math.prod(int(each) for each in times)
    return np.tile(array, times) if size <= MOST_VALUES else None


# Ops on whole numbers and truth values that loops count by, and that make up the order in which a
# gradient transposes (of a gather from each example of a batch).
_COUNTED: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "AddV2": np.add,
    "ConcatV2": lambda *arrays: np.concatenate(arrays[:-1], axis=int(arrays[-1])),
    "Equal": np.equal,
    "ExpandDims": lambda array, axis: np.expand_dims(array, int(axis)),
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "InvertPermutation": lambda places: np.argsort(places).astype(places.dtype),
    "Less": np.less,
    "LessEqual": np.less_equal,
    "LogicalAnd": np.logical_and,
    "LogicalNot": np.logical_not,
    "LogicalOr": np.logical_or,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "NotEqual": np.not_equal,
    "Range": _ranged,
    "Select": np.where,
    "SelectV2": np.where,
    "Sub": np.subtract,
    "Tile": _tiled,
}
_REDUCED: dict[str, Callable[..., Any]] = {"Max": np.max, "Min": np.min, "Prod": np.prod}
# What one known input may decide alone.
_DECIDED = {"LogicalAnd": False, "LogicalOr": True}
KNOWN_TYPES = (tf.bool, tf.int32, tf.int64)


def folded(node: NodeDef, inputs: Sequence[NodeInput]) -> Constant | None:
    """What `node` computes, if its inputs are known and whole."""
    known = [each.array for each in inputs if isinstance(each, Constant)]
    decided = _DECIDED.get(node.op)
    if decided is not None and any(each.ndim == 0 and bool(each) is decided for each in known):
        return Constant(decided)
    if not inputs or len(known) < len(inputs):
        return None
    if node.op == "Cast" and tf.as_dtype(node.attr["DstT"].type) in KNOWN_TYPES:
        return Constant(known[0].astype(tf.as_dtype(node.attr["DstT"].type).as_numpy_dtype))
    if node.op in _REDUCED:
        axes = tuple(int(axis) for axis in known[1].flat)
        kept = node.attr["keep_dims"].b
        found = _REDUCED[node.op](known[0], axis=axes, keepdims=kept)
        return Constant(np.asarray(found, known[0].dtype))
    if node.op == "Pack" and len(known) * known[0].size <= MOST_VALUES:
        return Constant(np.stack(known, axis=node.attr["axis"].i))
    if node.op == "StridedSlice":
        return _sliced(node, *known)
    compute = _COUNTED.get(node.op)
    if compute is None or (node.op in ("FloorDiv", "FloorMod") and not known[1].all()):
        return None
    if node.op == "Select" and known[0].ndim and known[0].shape != known[1].shape:
        return None  # a truth value for each row
    found = compute(*known)
    return None if found is None or np.size(found) > MOST_VALUES else Constant(found)


def _sliced(
    node: NodeDef, source: np.ndarray, start: np.ndarray, stop: np.ndarray, step: np.ndarray
) -> Constant | None:
    """Of a vector, one number or several in a row: a dimension of a shape."""
    if source.ndim != 1 or start.shape != (1,) or node.attr["new_axis_mask"].i:
        return None
    if node.attr["shrink_axis_mask"].i:
        return Constant(source[start[0]]) if -len(source) <= start[0] < len(source) else None
    first = None if node.attr["begin_mask"].i else int(start[0])
    last = None if node.attr["end_mask"].i else int(stop[0])
    return None if node.attr["ellipsis_mask"].i else Constant(source[first : last : int(step[0])])


def output_count(argument: Any, node: NodeDef) -> int:
    """How many tensors one output argument of a node's definition is: some are lists."""
    if argument.number_attr:
        return node.attr[argument.number_attr].i
    if argument.type_list_attr:
        return len(node.attr[argument.type_list_attr].list.type)
    return 1


def tensor_name(reference: str) -> str:
    """What a graph calls the tensor that a node reads as "op" or "op:1"."""
    return reference if ":" in reference else f"{reference}:0"


def is_few(t: tf.Tensor) -> bool:
    """Whether a tensor has a few whole numbers or truth values."""
    known = t.dtype in KNOWN_TYPES and t.shape.is_fully_defined()
    return known and t.shape.num_elements() <= MOST_VALUES


def readers(operation: tf.Operation) -> list[tf.Operation]:
    return [each for t in operation.outputs for each in t.consumers()]


def awaited(operation: tf.Operation) -> list[tf.Operation]:
    """What it reads, and what it waits for."""
    return [*(t.op for t in operation.inputs), *operation.control_inputs]


def reached(
    start: Iterable[tf.Operation], following: Callable[[tf.Operation], Iterable[tf.Operation]]
) -> set[str]:
    """The names of the ops `start`, of those that follow on these, and so on."""
    stack = list(start)
    found = {operation.name for operation in stack}
    while stack:
        for operation in following(stack.pop()):
            if operation.name not in found:
                found.add(operation.name)
                stack.append(operation)
    return found


def known_values(operations: Sequence[tf.Operation]) -> dict[str, list[Constant]]:
    """By ops, what their outputs are where tracing knows all of them: few whole numbers."""
    known = {}
    for operation in operations:
        values = []
        for t in operation.outputs:
            value = tf.get_static_value(t) if is_few(t) else None
            if value is None:
                break
            name = operation.name if operation.type == "Const" else ""
            values.append(Constant(value, name))
        else:
            if values:
                known[operation.name] = values
    return known


def first_sizes(operations: Sequence[tf.Operation]) -> dict[str, int]:
    """By tensors, the sizes of their first dimensions where they are known."""
    sizes = {}
    for operation in operations:
        for t in operation.outputs:
            size = t.shape.as_list()[0] if t.shape.rank else None
            if size is not None:
                sizes[t.name.removesuffix(":0")] = size
    return sizes
