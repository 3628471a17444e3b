"""The functions of loops and branches as graphs, with shapes as their callers know them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from memtrade.op_types import ALIAS_TYPES
from memtrade.tf.functions import opened_body
from memtrade.tf.nodes import NodeDef, make_node, tensor_name

# Ops that take an element out of a list, and which of their outputs that is.
_TAKES = {"TensorListPopBack": 1, "TensorListGetItem": 0}


class Argument(NamedTuple):
    """What is known of a function's input. `content`: of what a variable or a list holds."""

    dtype: tf.DType
    shape: tf.TensorShape
    content: tf.TensorSpec | None = None


class Body(NamedTuple):
    """`results` are computed from `arguments`. What is read from variables and lists takes no
    memory of its own: `contents` has the placeholder that stands for it, by the tensor's name."""

    graph: tf.Graph
    arguments: list[tf.Tensor]
    results: list[tf.Tensor]
    contents: dict[str, str]


def draw_body(library: Any, function: str, arguments: Sequence[Argument]) -> Body:
    """The body of `function`, calls in it opened, for inputs of these shapes.

    A variable's shape and a list's element are known to the caller alone, so what reads them
    becomes a placeholder of that shape.
    """
    known = {f"argument{i}": argument for i, argument in enumerate(arguments)}
    placeholders = [_argument(name, argument) for name, argument in known.items()]
    functions = {each.signature.name: each for each in library.function}
    inlined, results = opened_body(functions, function, placeholders)
    opened = inlined.graph_def
    drawn = tf.compat.v1.GraphDef(versions=opened.versions, library=opened.library)
    renamed: dict[str, str] = {}
    contents: dict[str, str] = {}
    behind: dict[str, str] = {name: name for name in known}  # through identities
    for node in opened.node:
        source = behind.get(node.input[0].removesuffix(":0")) if node.input else None
        if source and node.op in ("Identity", "TensorListPopBack", "TensorListPushBack"):
            behind[node.name] = source
        content = known[source].content if source else None
        if (
            content
            and content.shape.is_fully_defined()
            and (node.op == "ReadVariableOp" or node.op in _TAKES)
        ):
            index = _TAKES.get(node.op, 0)
            name = f"{node.name}/content"
            drawn.node.append(_placeholder(name, content))
            contents[f"{node.name}:{index}"] = name
            renamed[node.name if index == 0 else f"{node.name}:{index}"] = name
        drawn.node.append(node)
    for node in drawn.node:
        node.input[:] = [renamed.get(each.removesuffix(":0"), each) for each in node.input]
    wanted = [renamed.get(each, each) for each in results]
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(drawn, name="")
    tensors = [graph.get_tensor_by_name(tensor_name(each)) for each in (*known, *wanted)]
    return Body(graph, tensors[: len(known)], tensors[len(known) :], contents)


def original(t: tf.Tensor) -> tf.Tensor:
    """What is handed on, under whatever shape."""
    while t.op.type in ALIAS_TYPES and t.op.type != "IdentityN":
        t = t.op.inputs[0]
    return t


def _argument(name: str, argument: Argument) -> NodeDef:
    """A variable's handle says what shape it has to whatever reads it."""
    held = argument.content
    if argument.dtype == tf.resource and held:
        return make_node("VarHandleOp", name, dtype=held.dtype, shape=held.shape)
    return _placeholder(name, argument)


def _placeholder(name: str, like: Any) -> NodeDef:
    return make_node("Placeholder", name, dtype=like.dtype, shape=like.shape)
