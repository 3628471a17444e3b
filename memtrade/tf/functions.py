"""Functions of loops and branches: their bodies as they are walked, and the ops with a state."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from memtrade.graph import reached
from memtrade.op_types import READ_TYPES
from memtrade.tf.inline import Inlined, functions_named, op_defs, still_called
from memtrade.tf.nodes import (
    KNOWN_TYPES,
    MOST_VALUES,
    Constant,
    NodeDef,
    copied,
    make_call,
    make_node,
)

# The NoOp in a body that stands for what its ops with a state wait for.
START = "start"
_BODY = "body"


class Template(NamedTuple):
    """A function's body, calls in it opened, as nodes in a topological order. `end` is the NoOp
    behind its effects."""

    nodes: list[NodeDef]
    arguments: list[str]
    results: list[str]
    end: str
    constants: dict[str, Constant]


class Functions:
    """The functions of a graph.

    Attributes:
        library: by their names.
        op_defs: the definitions of all ops in the graph and in them.
    """

    def __init__(self, graph_def: Any):
        self.library: dict[str, Any] = {f.signature.name: f for f in graph_def.library.function}
        self.op_defs = op_defs(graph_def)
        self._templates: dict[str, Template] = {}

    def template(self, function: str) -> Template:
        if function not in self._templates:
            self._templates[function] = _opened(function, self.library)
        return self._templates[function]

    def counts_on(self, node: NodeDef) -> bool:
        """Whether its kernel makes other random numbers each time, by a seed. The attributes of
        others, without one, differ from run to run anyway."""
        seeds = [node.attr[key].i for key in ("seed", "seed2") if key in node.attr]
        return any(seeds) and self.op_defs[node.op].is_stateful

    def writes(self, function: str) -> bool:
        return any(leaf.op not in READ_TYPES for leaf in self.effects(function))

    def effects(self, *functions: str) -> list[NodeDef]:
        """The ops with a state in these functions, all the way down."""
        found: list[NodeDef] = []

        def inside(name: str) -> Iterator[str]:
            for each in self.library[name].node_def:
                inner = [n for n in functions_named(each) if n in self.library]
                yield from inner
                if not inner and self.op_defs[each.op].is_stateful:
                    found.append(each)

        reached((name for name in functions if name in self.library), inside)
        return found


def chosen_functions(node: NodeDef) -> list[Any]:
    """The functions that an If or a Case chooses among."""
    if "branches" in node.attr:
        return [*node.attr["branches"].list.func]
    return [node.attr[f"{which}_branch"].func for which in ("then", "else")]


def opened_body(
    library: Mapping[str, Any], function: str, arguments: Sequence[NodeDef], start: str = ""
) -> tuple[Inlined, list[str]]:
    """The body of a function, calls in it opened, that reads `arguments` and waits for the NoOp
    `start`, if it is given one; and what its results are called."""
    signature = library[function].signature
    call = make_call("PartitionedCall", _BODY, signature)
    call.input.extend(each.name for each in arguments)
    waits = [make_node("NoOp", start)] if start else []
    call.input.extend(f"^{each.name}" for each in waits)
    around = tf.compat.v1.GraphDef(node=[*waits, *arguments, call])
    around.versions.producer = tf.version.GRAPH_DEF_VERSION
    around.library.function.extend(still_called([call], library))
    inlined = Inlined(around)
    results = [f"{_BODY}:{i}" if i else _BODY for i in range(len(signature.output_arg))]
    return inlined, [inlined.reference(each) for each in results]


def _opened(function: str, library: Mapping[str, Any]) -> Template:
    arguments = [
        make_node("Placeholder", f"argument{i}", dtype=tf.as_dtype(each.type))
        for i, each in enumerate(library[function].signature.input_arg)
    ]
    inlined, results = opened_body(library, function, arguments, START)
    nodes = ordered(inlined.graph_def.node)
    constants = {node.name: found for node in nodes if (found := _constant(node))}
    names = [each.name for each in arguments]
    return Template(nodes, names, results, inlined.effect(_BODY), constants)


def kernel_function(node: NodeDef, definition: Any) -> Any:
    """A concrete function that does what `node` does. All calls of it run the same kernel."""
    names = [each.name for each in definition.input_arg]
    graph_def = tf.compat.v1.GraphDef(node=[copied(node, "kernel", names)])
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    types = [each.type or node.attr[each.type_attr].type for each in definition.input_arg]
    unknown: Any = None  # the shapes
    results = [f"kernel:{i}" for i in range(len(definition.output_arg))]

    def kernel(*inputs: tf.Tensor) -> list[tf.Tensor]:
        given = dict(zip(names, inputs, strict=True))
        return tf.graph_util.import_graph_def(graph_def, given, results, name="")

    return tf.function(
        kernel,
        input_signature=[tf.TensorSpec(unknown, tf.as_dtype(each)) for each in types],
        autograph=False,
        experimental_attributes={"_noinline": True},
    ).get_concrete_function()  # pyright: ignore[reportFunctionMemberAccess]


def _constant(node: NodeDef) -> Constant | None:
    """A Const that a loop may count by."""
    if node.op != "Const" or tf.as_dtype(node.attr["dtype"].type) not in KNOWN_TYPES:
        return None
    array = tf.make_ndarray(node.attr["value"].tensor)
    return Constant(array) if array.size <= MOST_VALUES else None


def ordered(nodes: Sequence[NodeDef]) -> list[NodeDef]:
    """`nodes` so that each stands behind those it reads, and else as they were."""
    named = {node.name: node for node in nodes}
    done: set[str] = set()
    found: list[NodeDef] = []
    for first in nodes:
        stack: list[tuple[NodeDef, Iterator[str]]] = [(first, iter(first.input))]
        while stack:
            node, inputs = stack[-1]
            if node.name in done:
                stack.pop()
                continue
            for each in inputs:
                before = each.removeprefix("^").partition(":")[0]
                if before in named and before not in done:
                    stack.append((named[before], iter(named[before].input)))
                    break
            else:
                stack.pop()
                done.add(node.name)
                found.append(node)
    return found
