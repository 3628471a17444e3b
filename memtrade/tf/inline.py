"""Calls of functions, replaced by the bodies of these functions.

A tf.function that calls another one holds a single op for the call. Strategies decide per op, so
such calls are opened up, down to the last one; `tf.cond` and `tf.while_loop` stay whole, and so
does a function that XLA compiles or that says `_noinline`.

    caller   x ─► f ─► y                       x ─► f/conv ─► f/relu ─► y
                  │                     ──►               └─► f/assign ─► f/leave
                  └─^► z                                                     └─^► z

An IdentityN is a call without a body: each output is its input. As an op it would wait for the last
of its inputs, and Keras's optimizers hand all gradients through one, which would then all be held
until the first update.

TensorFlow, when it opens a call, hands each argument and each result on through an Identity, and
these stay: what two functions compute of one tensor, it does not merge. How many there would be
before each input of an op, the op's attribute HANDED says.

What the body does to variables keeps its place: its stateful ops wait for what the call waited for
(through the NoOp f/enter), and what waited for the call waits for its effects (f/leave).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from memtrade.op_types import CALL_TYPES
from memtrade.tf.nodes import GraphDef, NodeDef, copied, make_node, output_count

# The attribute of a function, or of a call, that XLA compiles.
COMPILED = "_XlaMustCompile"

# The attribute of an op some of whose inputs are arguments or results of calls: of each input, how
# many times it was handed on. While references are being led on, each time is a mark at their end.
HANDED = "_memtrade_handed"
_MARK = "~"


class Inlined:
    """`graph_def` with its calls inlined. O(nodes + edges) of the result.

    Attributes:
        graph_def: the nodes in an order in which each stands behind those it reads, as far as the
            given ones did; the library holds the functions that are still referred to.
    """

    def __init__(self, graph_def: GraphDef):
        self._library = {each.signature.name: each for each in graph_def.library.function}
        self._op_defs = op_defs(graph_def)
        self._names = {node.name for node in graph_def.node}
        self._nodes: list[NodeDef] = []
        self._results: dict[str, str] = {}  # reference to a call's output -> what it stands for
        self._leaves: dict[str, str] = {}  # call -> the NoOp that stands for its end
        for node in graph_def.node:
            self._add(node)
        for node in self._nodes:
            self._lead_on(node)
        self.graph_def = tf.compat.v1.GraphDef(node=self._nodes, versions=graph_def.versions)
        self.graph_def.library.function.extend(still_called(self._nodes, self._library))

    def reference(self, name: str) -> str:
        """What "op:index", "op" or "^op" of the given GraphDef is called in the inlined one."""
        return self._led_on(name)[0]

    def _led_on(self, name: str) -> tuple[str, int]:
        """The reference, and how many times it is handed on."""
        if name.startswith("^"):
            return "^" + self._leaves.get(name[1:], name[1:]), 0
        key, times = _bare(name), name.count(_MARK)
        while key in self._results:
            result = self._results[key]
            key, times = _bare(result), times + 1 + result.count(_MARK)
        return key, times

    def _lead_on(self, node: NodeDef) -> None:
        led = [self._led_on(each) for each in node.input]
        node.input[:] = [name for name, _ in led]
        times = [count for name, count in led if not name.startswith("^")]
        if any(times):
            before = list(node.attr[HANDED].list.i) or [0] * len(times)
            node.attr[HANDED].list.i[:] = [a + b for a, b in zip(before, times, strict=True)]

    def effect(self, op_name: str) -> str:
        """The op to run for the sake of op `op_name`'s effects."""
        return self._leaves.get(op_name, op_name)

    def _add(self, node: NodeDef) -> None:
        function = called_function(node, self._library)
        if function is None:
            # An IdentityN, too: a control edge may lead through it.
            self._nodes.append(copied(node, node.name, node.input))
            if is_identity(node):
                self._stand_for(node.name, node.input)
        else:
            self._open(node, function)

    def _open(self, call: NodeDef, function: Any) -> None:
        prefix = self._unique(call.name) + "/"
        arguments = [each for each in call.input if not each.startswith("^")]
        bound = dict(zip((a.name for a in function.signature.input_arg), arguments, strict=True))
        starts = {node.name: self._output_starts(node) for node in function.node_def}

        def inside(reference: str) -> str:
            """A reference of the function's body as one of the caller's graph."""
            if reference.startswith("^"):
                name = reference[1:]
                return "^" + (_op_of(bound[name]) if name in bound else prefix + name)
            if reference in bound:
                return bound[reference] + _MARK
            name, argument, index = reference.split(":")
            return f"{prefix}{name}:{starts[name][argument] + int(index)}"

        waits = [each for each in call.input if each.startswith("^")]
        if waits:
            self._nodes.append(make_node("NoOp", prefix + "enter", waits))
        for node in function.node_def:
            copy = copied(node, prefix + node.name, map(inside, node.input))
            if waits and self._definition(node).is_stateful:
                copy.input.append(f"^{prefix}enter")
            self._add(copy)
        results = [inside(function.ret[a.name]) for a in function.signature.output_arg]
        self._stand_for(call.name, results)
        effects = [f"^{prefix}{function.control_ret[n]}" for n in function.signature.control_output]
        ends = effects or [f"^{_op_of(result)}" for result in results]
        self._leaves[call.name] = prefix + "leave"
        self._nodes.append(make_node("NoOp", prefix + "leave", dict.fromkeys([*ends, *waits])))

    def _stand_for(self, name: str, results: Iterable[str]) -> None:
        """Op `name`'s outputs are `results`, one after the other."""
        for i, result in enumerate(results):
            self._results[name if i == 0 else f"{name}:{i}"] = result

    def _definition(self, node: NodeDef) -> Any:
        """Of its op, or of the function that stands in an op's place."""
        function = self._library.get(node.op)
        return self._op_defs[node.op] if function is None else function.signature

    def _output_starts(self, node: NodeDef) -> dict[str, int]:
        """For each of the op's output arguments, the index of its first tensor."""
        starts, start = {}, 0
        for argument in self._definition(node).output_arg:
            starts[argument.name] = start
            start += output_count(argument, node)
        return starts

    def _unique(self, name: str) -> str:
        """A scope for a call's body that no node of the graph lies in yet."""
        scope, count = name, 0
        while f"{scope}/leave" in self._names:
            count += 1
            scope = f"{name}_{count}"
        self._names.add(f"{scope}/leave")
        return scope


def by_xla(*carriers: Any) -> bool:
    """Whether a function's definition, or a call of it, has XLA compile it."""
    return any(COMPILED in each.attr and each.attr[COMPILED].b for each in carriers)


def opens(node: NodeDef, library: dict[str, Any]) -> bool:
    """Whether `Inlined` leads past the op."""
    return is_identity(node) or called_function(node, library) is not None


def is_identity(node: NodeDef) -> bool:
    """Whether each output of `node` is its input, and there is nothing else that it waits for."""
    return node.op == "IdentityN" and not any(each.startswith("^") for each in node.input)


def called_function(node: NodeDef, library: dict[str, Any]) -> Any:
    """The FunctionDef that `node` calls and whose body may take its place, or None."""
    function = called_body(node, library)
    if function is None:
        return None
    for attributes in (node.attr, function.attr):
        if any(attributes[key].b for key in (COMPILED, "_noinline") if key in attributes):
            return None
    return function


def called_body(node: NodeDef, library: dict[str, Any]) -> Any:
    """The FunctionDef that `node` calls, or None if it is an op."""
    return library.get(node.attr["f"].func.name if node.op in CALL_TYPES else node.op)


def op_defs(graph_def: GraphDef) -> dict[str, Any]:
    """The definitions of all ops that the graph and its functions use.

    A MetaGraphDef lists them: TensorFlow's public way to ask. It looks into what is called, but not
    into what a loop or a branch runs, so it is given the ops themselves.
    """
    functions = graph_def.library.function
    kinds = {
        node.op for body in (graph_def.node, *(f.node_def for f in functions)) for node in body
    }
    kinds -= {each.signature.name for each in functions}
    flat = tf.compat.v1.GraphDef(node=[tf.compat.v1.NodeDef(op=kind) for kind in sorted(kinds)])
    with tf.Graph().as_default() as empty:
        meta = tf.compat.v1.train.export_meta_graph(graph_def=flat, graph=empty)
    return {each.name: each for each in meta.meta_info_def.stripped_op_list.op}


def still_called(nodes: Iterable[NodeDef], library: Mapping[str, Any]) -> Iterable[Any]:
    """The functions of `library` that `nodes` name, and those that these name."""
    found: dict[str, Any] = {}
    stack = list(nodes)
    while stack:
        for name in functions_named(stack.pop()):
            if name in library and name not in found:
                found[name] = library[name]
                stack.extend(found[name].node_def)
    return found.values()


def functions_named(node: NodeDef) -> Iterable[str]:
    yield node.op
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            yield value.func.name
        for function in value.list.func:
            yield function.name


def functions_with(library: Iterable[Any], is_meant: Callable[[NodeDef], bool]) -> set[str]:
    """The names of the functions that hold such a node, or a node that runs one that does."""
    bodies = {each.signature.name: each.node_def for each in library}
    found: set[str] = set()

    def holds(node: NodeDef) -> bool:
        return is_meant(node) or not found.isdisjoint(functions_named(node))

    while new := {n for n, body in bodies.items() if n not in found and any(map(holds, body))}:
        found |= new
    return found


def changing(graph_def: GraphDef, is_harmless: Callable[[str], bool]) -> list[str]:
    """The names of the nodes that change something, themselves or in what they call. Of the types
    of ops with a state, `is_harmless` says which do not count."""
    defined, library = op_defs(graph_def), graph_def.library.function
    functions = {each.signature.name for each in library}

    def changes(node: NodeDef) -> bool:
        if not functions.isdisjoint(functions_named(node)):
            return False  # what it runs decides
        return defined[node.op].is_stateful and not is_harmless(node.op)

    found = functions_with(library, changes)
    return [
        node.name
        for node in graph_def.node
        if changes(node) or not found.isdisjoint(functions_named(node))
    ]


def _op_of(reference: str) -> str:
    return _bare(reference).partition(":")[0]


def _bare(reference: str) -> str:
    return reference.rstrip(_MARK).removesuffix(":0")
