"""Calls that stay one op of the graph: what can be told of them by their functions' bodies."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import tensorflow as tf

from memtrade.op_types import CALL_TYPES
from memtrade.tf.inline import COMPILED, Inlined, by_xla, called_body, op_defs, still_called
from memtrade.tf.nodes import NodeDef, with_nodes

_CONVOLVES = ("Conv2D", "Conv2DBackpropInput")
_FILTER_GRADIENT = "Conv2DBackpropFilter"

# How a call is to be run, by devices and processes that the one who asks has not.
_SURROUNDINGS = frozenset({"config", "config_proto", "executor_type"})
# The attribute of an argument that says what lies behind a handle.
_SHAPES = "_output_shapes"


class Alone(NamedTuple):
    """A call without its graph: its NodeDef, and a FunctionDefLibrary with what it calls, first of
    all its function, which takes values where the graph has variables."""

    node: bytes
    functions: bytes


class Calls:
    """The calls among the nodes of a GraphDef.

    Args:
        variables: what lies behind the handles that the graph takes, by these inputs' names.
    """

    def __init__(self, graph_def: Any, variables: Mapping[str, tf.TensorSpec]):
        self._graph_def = graph_def
        self._library = {each.signature.name: each for each in graph_def.library.function}
        self._variables = variables

    def about(self, node: NodeDef) -> dict[str, Any]:
        """Attributes for cost models: which inputs are the filter and the images of a convolution
        that the function makes or differentiates, and whether it makes the filter's gradient."""
        function = called_body(node, self._library)
        if function is None or node.op not in CALL_TYPES:
            return {}
        position = {each.name: i for i, each in enumerate(function.signature.input_arg)}
        found: dict[str, Any] = {}
        for each in function.node_def:
            if each.op in _CONVOLVES and each.input[1] in position:
                found["filter"] = position[each.input[1]]
            if each.op in ("Conv2D", _FILTER_GRADIENT) and each.input[0] in position:
                found["images"] = position[each.input[0]]
        if not {"filter", "images"} <= found.keys():
            return {}
        return found | {"filter_gradient": any(n.op == _FILTER_GRADIENT for n in function.node_def)}

    @cached_property
    def pure(self) -> frozenset[str]:
        """The names of calls whose functions do nothing but compute, all the way down. TensorFlow
        takes any function that XLA compiles for a stateful one."""
        calls = (node for node in self._graph_def.node if node.op in CALL_TYPES)
        return frozenset(node.name for node in calls if self._computes(node))

    def alone(self, node: NodeDef) -> Alone | None:
        """A call that another process can run, the same bytes in every process; None where it does
        more than compute with what it is given and with variables that it reads."""
        function = called_body(node, self._library)
        if function is None or node.op not in CALL_TYPES:
            return None
        read = self._read(node, function)
        inner = [each for each in function.node_def if each.name not in read]
        compiled = by_xla(node, function)
        if not all(self._computes(each) for each in inner) or (
            not compiled and any(self._compiles(each) for each in inner)
        ):
            return None
        # Tracing counts functions, and writes the count into their names.
        functions = list(still_called([node], self._library))
        names = {each.signature.name: f"f{i}" for i, each in enumerate(functions)}
        encoded = _renamed(functions, names, read).SerializeToString(deterministic=True)
        bare = tf.compat.v1.NodeDef(op=node.op)
        _take_attributes(bare.attr, node.attr, names)
        bare.attr[COMPILED].b = compiled
        for i, argument in enumerate(_given_values(function, read)):
            bare.attr["Tin"].list.type[i] = argument
        return Alone(bare.SerializeToString(deterministic=True), encoded)

    def _read(self, call: NodeDef, function: Any) -> dict[str, tf.TensorSpec]:
        """The function's own reads of variables that it is given: what each reads."""
        given = {
            argument.name: self._variables[reference.partition(":")[0]]
            for argument, reference in zip(function.signature.input_arg, call.input, strict=False)
            if reference.partition(":")[0] in self._variables
        }
        return {
            each.name: given[each.input[0]]
            for each in function.node_def
            if each.op == "ReadVariableOp" and each.input[0] in given
        }

    @cached_property
    def _defined(self) -> dict[str, Any]:
        return op_defs(self._graph_def)

    def _computes(self, node: NodeDef) -> bool:
        body = called_body(node, self._library)
        if body is None:
            return not self._defined[node.op].is_stateful
        return all(map(self._computes, body.node_def))

    def _compiles(self, node: NodeDef) -> bool:
        body = called_body(node, self._library)
        return body is not None and (by_xla(node, body) or any(map(self._compiles, body.node_def)))


class CallBody(NamedTuple):
    """What a call does, as a graph that reads the inputs `read` and does not hold them."""

    graph_def: Any
    read: frozenset[str]
    results: list[str]


def body_of(alone: Alone, inputs: Sequence[str]) -> CallBody:
    """The body of a call of `inputs`. What it hands on unchanged passes through an Identity."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    graph_def.library.ParseFromString(alone.functions)
    call = tf.compat.v1.NodeDef.FromString(alone.node)
    call.name = "call"
    call.attr.pop(COMPILED)
    for name, dtype in zip(inputs, call.attr["Tin"].list.type, strict=True):
        node = graph_def.node.add(op="Placeholder", name=name)
        node.attr["dtype"].type = dtype
        call.input.append(name)
    graph_def.node.append(call)
    handed = []
    for i, dtype in enumerate(call.attr["Tout"].list.type):
        node = graph_def.node.add(op="Identity", name=f"out{i}", input=[f"call:{i}"])
        node.attr["T"].type = dtype
        handed.append(f"{node.name}:0")
    opened = Inlined(graph_def).graph_def
    left = [node for node in opened.node if node.name not in inputs]
    read = {reference.partition(":")[0] for node in left for reference in node.input}
    return CallBody(
        with_nodes(opened, left),
        frozenset(read.intersection(inputs)),
        handed,
    )


def values_read(alone: Alone) -> dict[int, tuple[str, tuple[int, ...]]]:
    """(dtype, shape) of what the call is given where the graph has a variable, by position."""
    library = tf.compat.v1.GraphDef().library
    library.ParseFromString(alone.functions)
    function = library.function[0]
    return {
        i: (
            tf.as_dtype(function.signature.input_arg[i].type).name,
            tuple(dim.size for dim in attributes.attr[_SHAPES].list.shape[0].dim),
        )
        for i, attributes in function.arg_attr.items()
        if _SHAPES in attributes.attr
    }


def is_compiled(alone: Alone) -> bool:
    """By XLA."""
    return by_xla(tf.compat.v1.NodeDef.FromString(alone.node))


def _given_values(function: Any, read: Mapping[str, tf.TensorSpec]) -> list[int]:
    """The types of the function's arguments, of variables those of their values."""
    behind = {
        each.input[0]: read[each.name].dtype.as_datatype_enum
        for each in function.node_def
        if each.name in read
    }
    return [behind.get(each.name, each.type) for each in function.signature.input_arg]


def _renamed(
    functions: Sequence[Any], names: Mapping[str, str], read: Mapping[str, tf.TensorSpec]
) -> Any:
    """A library of the functions under new names, with nothing that only tracing knows; the first
    one takes the values of what it `read`."""
    library = tf.compat.v1.GraphDef().library
    for function in functions:
        made = library.function.add()
        made.CopyFrom(function)
        made.signature.name = names[function.signature.name]
        made.signature.is_stateful = False
        made.ClearField("attr")
        made.ClearField("arg_attr")
        for own, inner in zip(made.node_def, function.node_def, strict=True):
            own.ClearField("attr")
            own.ClearField("experimental_debug_info")
            own.op = names.get(inner.op, inner.op)
            _take_attributes(own.attr, inner.attr, names)
    _take_values(library.function[0], read)
    return library


def _take_values(function: Any, read: Mapping[str, tf.TensorSpec]) -> None:
    """Reads of variables become the arguments themselves."""
    places = {each.name: i for i, each in enumerate(function.signature.input_arg)}
    instead: dict[str, str] = {}
    for i, dtype in enumerate(_given_values(function, read)):
        function.signature.input_arg[i].type = dtype
    for node in function.node_def:
        if node.name in read:
            spec, place = read[node.name], places[node.input[0]]
            function.arg_attr[place].attr[_SHAPES].list.shape.add().CopyFrom(spec.shape.as_proto())
            node.op = "Identity"
            node.ClearField("attr")
            node.attr["T"].type = spec.dtype.as_datatype_enum
            instead[f"{node.name}:value:0"] = f"{node.name}:output:0"
    for node in function.node_def:
        node.input[:] = [instead.get(each, each) for each in node.input]
    for name, reference in list(function.ret.items()):
        function.ret[name] = instead.get(reference, reference)


def _take_attributes(to: Any, attributes: Any, names: Mapping[str, str]) -> None:
    """Those that say what runs, with functions under their new `names`."""
    for key, value in attributes.items():
        if key in _SURROUNDINGS or key.startswith("_"):
            continue
        to[key].CopyFrom(value)
        for function in (to[key].func, *to[key].list.func):
            if function.name in names:
                function.name = names[function.name]
