"""Loops whose trip count tracing knows, unrolled: planned like any other chain.

    i ──► While(i < 3) ──► y            x ─► while/0/MatMul ─► while/1/MatMul ─► while/2/MatMul ─► y
    x ──►  body: MatMul       ──►                 │                  │                  │
    list ►  push what the                         ▼                  ▼                  ▼
            gradient reads              dy/dx ◄─ grad/2 ◄──────── grad/1 ◄───────── grad/0 ◄─ dy

One walk over the graph in a topological order knows constants by their values and lists of tensors
by their elements (`memtrade.tf.tensor_lists`). A loop is walked an iteration at a time while its
condition comes out as the constant True; what an iteration pushes to a list is, in the gradient's
loop, an edge. A branch whose predicate is known is walked alone.

Effects keep their number and their order: what has a state waits, in each iteration, for the one
before. Random numbers are drawn in that order, too: a loop that runs several iterations beside each
other (`parallel_iterations`) draws them in another order from run to run. Reads of variables that
the loop does not write to are all the same read.

Loops whose end depends on data stay one op, and so do those that would make the graph larger than
`MOST_OPS`, with the loops that share their lists. O(nodes + edges) of the result, but for what a
list of n elements costs to change, n in C.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from memtrade.iterations import iteration_name
from memtrade.op_types import LOOP_TYPES, READ_TYPES
from memtrade.tf.functions import START, Functions, kernel_function, ordered
from memtrade.tf.graft import graft
from memtrade.tf.inline import functions_named, still_called
from memtrade.tf.nodes import (
    Constant,
    NodeDef,
    NodeInput,
    Writer,
    first_sizes,
    folded,
    known_values,
    make_call,
    output_count,
)
from memtrade.tf.tensor_lists import Lists, TensorList

# No loop is unrolled in a step that would have more ops.
MOST_OPS = 60_000

# Two-way branches; a Case stays.
_IF_TYPES = frozenset({"If", "StatelessIf"})
# Loops of TensorFlow 1 are no functions, but circles.
_CIRCLE_TYPES = frozenset({"NextIteration", "RefNextIteration"})
# A NoOp that waits for fewer is left out: what waits for it waits for them.
_FEW_WAITS = 8

# Functions with one random kernel each, by the loop's body and the op.
RandomKernels = dict[tuple[str, str], Any]
_CALLED = "memtrade_called"  # a graph's collection of functions


def unrolled(concrete: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """`concrete`, a function of `specs` whose calls are opened, with its loops unrolled.

    In rounds: what stands in an unrolled loop has, in the next, shapes that are known.
    """
    kernels: RandomKernels = {}
    while True:
        further = _one_round(concrete, specs, kernels)
        if further is None:
            return concrete
        concrete = further


def _one_round(concrete: Any, specs: Sequence[tf.TensorSpec], kernels: RandomKernels) -> Any:
    """None where there is nothing to unroll."""
    func_graph = concrete.graph
    operations = func_graph.get_operations()
    types = {operation.type for operation in operations}
    to_do = any(each in LOOP_TYPES | _IF_TYPES or _of_lists(each) for each in types)
    if not to_do or types & _CIRCLE_TYPES:
        return None
    graph_def = func_graph.as_graph_def()
    kept: set[str] = set()
    while True:
        walk = _Walk(graph_def, operations, frozenset(kept), kernels)
        try:
            walk.top()
            break
        except _KeptError as error:
            kept |= error.functions
    lists = [sum(_of_lists(node.op) for node in nodes) for nodes in (graph_def.node, walk.nodes)]
    if not walk.opened and lists[1] >= lists[0]:
        return None
    top = walk.scope
    results = [walk.writer.reference(top.value(t.name)) for t in func_graph.outputs]
    made = tf.compat.v1.GraphDef(node=walk.nodes, versions=graph_def.versions)
    shared = [each.function_def for each in kernels.values()]
    library = walk.functions.library | {each.signature.name: each for each in shared}
    made.library.function.extend(still_called(walk.nodes, library))
    return graft(
        concrete,
        made,
        specs,
        results=results,
        effects=list(
            dict.fromkeys(n for op in func_graph.control_outputs for n in top.waits[op.name])
        ),
        on_import=shapes_kept(func_graph, kernels.values()),
    ).get_concrete_function()


def shapes_kept(func_graph: Any, called: Iterable[Any] = ()) -> Callable[[Any], None]:
    """For `graft`: the program may have said more of a shape than the ops do. With the graph go the
    functions `called` that are new in it: TensorFlow forgets one that nobody holds."""
    traced = {operation.name: operation for operation in func_graph.get_operations()}

    def keep(graph: Any) -> None:
        for function in called:
            graph.add_to_collection(_CALLED, function)
        for operation in graph.get_operations():
            known = traced.get(operation.name)
            if known is not None and known.type == operation.type:
                for t, before in zip(operation.outputs, known.outputs, strict=True):
                    if not t.shape.is_fully_defined():
                        t.set_shape(before.shape)

    return keep


def _of_lists(op_type: str) -> bool:
    return op_type.startswith("TensorList") or op_type == "EmptyTensorList"


class _KeptError(Exception):
    """These loops, by the functions of their bodies, have to stay one op each."""

    def __init__(self, functions: set[str]):
        super().__init__()
        self.functions = functions


class _Scope:
    """Where the ops of one graph, or of one iteration, are in the written graph: their outputs,
    and what is waited for in their place."""

    def __init__(self, prefix: str, function: str = ""):
        self.prefix, self.function = prefix, function
        self.values: dict[str, str | list[NodeInput]] = {}
        self.waits: dict[str, tuple[str, ...]] = {}

    def value(self, reference: str) -> NodeInput:
        name, _, index = reference.partition(":")
        made = self.values[name]
        if isinstance(made, str):
            return made if index in ("", "0") else f"{made}:{index}"
        return made[int(index or 0)]

    def controls(self, node: NodeDef) -> tuple[str, ...]:
        names = [self.waits[each[1:]] for each in node.input if each.startswith("^")]
        return tuple(dict.fromkeys(itertools.chain.from_iterable(names)))


class _Walk:
    """One walk over a graph.

    Attributes:
        opened: how many loops and branches are gone.
    """

    def __init__(
        self,
        graph_def: Any,
        operations: Sequence[tf.Operation],
        kept: frozenset[str],
        kernels: RandomKernels,
    ):
        self.graph_def, self.kept, self.kernels = graph_def, kept, kernels
        self.functions = Functions(graph_def)
        self.known = known_values(operations)
        names = [node.name for node in graph_def.node]
        self.writer = Writer(first_sizes(operations), names)
        self.nodes = self.writer.nodes
        self.lists = Lists(self.writer)
        self.scope = _Scope("")
        self.opened = 0
        self.reads: dict[tuple[str, int], str] | None = None  # in a loop that does not write
        self.drawn: dict[tuple[str, str], tuple[str, ...]] = {}  # the last call of each kernel
        self.hoisted: dict[tuple[Any, ...], str] = {}  # constants of bodies, by nodes and inputs
        self.constants: set[NodeInput] = set()

    def top(self) -> None:
        for node in ordered(self.graph_def.node):
            values = self.known.get(node.name)
            if values is None or node.op == "Const":
                self._visit(node, self.scope)
            if values is not None:
                self.scope.values[node.name] = list(values)
                self.scope.waits.setdefault(node.name, self.scope.controls(node))

    def _visit(self, node: NodeDef, scope: _Scope) -> None:
        inputs = [scope.value(each) for each in node.input if not each.startswith("^")]
        controls = scope.controls(node)
        made = self._stand_in(node, inputs, controls, scope)
        if made is None:
            inner = self.functions.effects(*functions_named(node)) if self.lists.loop else ()
            if any(map(self.functions.counts_on, inner)):
                raise _KeptError({self.lists.loop})  # each iteration's would have its own kernels
            made = self.writer.add(
                node, scope.prefix + node.name, inputs, controls, own_name=not scope.prefix
            )
            scope.waits[node.name] = (made,)
        scope.waits.setdefault(node.name, controls)
        scope.values[node.name] = made

    def _stand_in(
        self, node: NodeDef, inputs: list[NodeInput], controls: tuple[str, ...], scope: _Scope
    ) -> str | list[NodeInput] | None:
        """What stands for the outputs of `node`; None where it is written as it is."""
        if node.op in LOOP_TYPES:
            return self._loop(node, inputs, controls, scope)
        if node.op in _IF_TYPES:
            return self._branch(node, inputs, controls, scope)
        constant = folded(node, inputs)
        if constant is not None:
            return [constant]
        if node.op == "Identity" and not isinstance(inputs[0], str):
            return inputs
        listed = self.lists.outputs(node, scope.prefix + node.name, inputs)
        if listed is not None or not scope.prefix:
            return listed
        if self._is_constant(node, inputs):
            return self._hoisted(node, inputs, scope)
        if node.op == "Identity" and (self.reads is not None or not controls):
            return inputs
        if node.op == "NoOp" and len(controls) < _FEW_WAITS:
            return []
        if node.op in READ_TYPES and self.reads is not None:
            return self._read(node, inputs, controls, scope)
        if self.lists.loop and self.functions.counts_on(node) and not self.writer.dry:
            return self._drawn(node, inputs, controls, scope)
        return None

    def _is_constant(self, node: NodeDef, inputs: Sequence[NodeInput]) -> bool:
        """Whether each iteration would make the same of constants, as a Fill with zeros does.
        TensorFlow computes such ops before the first step, and keeps what each of them makes."""
        definition = self.functions.op_defs.get(node.op)
        return (
            definition is not None
            and not definition.is_stateful
            and len(definition.output_arg) == 1
            and all(isinstance(each, Constant) or each in self.constants for each in inputs)
        )

    def _hoisted(
        self, node: NodeDef, inputs: Sequence[NodeInput], scope: _Scope
    ) -> list[NodeInput]:
        """A constant of a body: one for all iterations."""
        scope.waits[node.name] = ()
        [returned] = self.functions.op_defs[node.op].output_arg
        count = output_count(returned, node)
        if self.writer.dry:
            return [""] * count
        key = (id(node), *map(self.writer.reference, inputs))
        if key not in self.hoisted:
            self.hoisted[key] = self.writer.add(node, scope.prefix + node.name, inputs)
        first = self.hoisted[key]
        made: list[NodeInput] = [first, *(f"{first}:{i}" for i in range(1, count))]
        self.constants.update(made)
        return made

    def _read(
        self, node: NodeDef, inputs: list[NodeInput], controls: tuple[str, ...], scope: _Scope
    ) -> str:
        assert self.reads is not None
        key = (self.writer.reference(inputs[0]), node.attr["dtype"].type)
        if key not in self.reads:
            name = self.writer.add(node, scope.prefix + node.name, inputs, controls)
            if self.writer.dry:
                return name
            self.reads[key] = name
        scope.waits[node.name] = (self.reads[key],)
        return self.reads[key]

    def _drawn(
        self, node: NodeDef, inputs: list[NodeInput], controls: tuple[str, ...], scope: _Scope
    ) -> list[NodeInput]:
        """Random numbers of a kernel that counts on from one iteration to the next: all call one
        function, which has one kernel. Each kernel of its own would start anew."""
        definition = self.functions.op_defs[node.op]
        key = (scope.function, node.name)
        if key not in self.kernels:
            self.kernels[key] = kernel_function(node, definition)
        made = self.kernels[key].function_def
        like = make_call("StatefulPartitionedCall", "", made.signature)
        waits = dict.fromkeys((*controls, *self.drawn.get(key, ())))  # one after the other
        call = self.writer.add(like, scope.prefix + node.name, inputs, waits)
        self.drawn[key] = scope.waits[node.name] = (call,)
        if not isinstance(inputs[0], Constant) or definition.input_arg[0].name != "shape":
            return [call]
        # A call does not say what shape it returns.
        shape = tf.TensorShape(inputs[0].array.tolist())
        dtype = tf.as_dtype(made.signature.output_arg[0].type)
        return [self.writer.make("EnsureShape", f"{call}/shape", [call], T=dtype, shape=shape)]

    # Loops and branches

    def _loop(
        self, node: NodeDef, inputs: list[NodeInput], controls: tuple[str, ...], scope: _Scope
    ) -> list[NodeInput] | None:
        """The loop's results, iteration after iteration; None where its end is not known."""
        function = node.attr["body"].func.name
        if self.writer.dry or function in self.kept:
            return None
        if (
            self.functions.writes(node.attr["cond"].func.name)
            or self._goes_on(node, inputs) is None
        ):
            return None
        kinds = node.attr["T"].list.type
        if any(
            kind == tf.variant.as_datatype_enum and isinstance(each, str)
            for kind, each in zip(kinds, inputs, strict=True)
        ):  # a list that is not taken apart: the loop that it comes from stays, too
            return None
        outermost, reads = self.lists.loop, self.reads
        self.lists.loop = outermost or function
        writes = self.functions.writes(function)
        self.reads = None if writes else {} if reads is None else reads
        variables, ends = inputs, controls
        at_once = node.attr["parallel_iterations"].i
        for i in itertools.count():
            goes_on = self._goes_on(node, variables)
            if goes_on is None:
                raise _KeptError({function})
            if not goes_on:
                break
            if len(self.nodes) + i > MOST_OPS:
                linked = {each.loop for each in inputs if isinstance(each, TensorList)}
                raise _KeptError({self.lists.loop} | linked - {""})
            prefix = iteration_name(scope.prefix + node.name, i, at_once)
            variables, left = self._walked(function, variables, ends, prefix)
            ends = left if writes else controls
            scope.waits[node.name] = left
        scope.waits.setdefault(node.name, controls)
        self.lists.loop, self.reads = outermost, reads
        self.opened += 1
        return variables

    def _branch(
        self, node: NodeDef, inputs: list[NodeInput], controls: tuple[str, ...], scope: _Scope
    ) -> list[NodeInput] | None:
        predicate = inputs[0]
        if self.writer.dry or not isinstance(predicate, Constant) or predicate.array.ndim:
            return None
        which = "then_branch" if predicate.array else "else_branch"
        function = node.attr[which].func.name
        results, ends = self._walked(function, inputs[1:], controls, f"{scope.prefix}{node.name}/")
        scope.waits[node.name] = ends
        self.opened += 1
        return results

    def _goes_on(self, node: NodeDef, variables: list[NodeInput]) -> bool | None:
        """The loop's condition, if it is known."""
        self.writer.dry = True
        (found,), _ = self._walked(node.attr["cond"].func.name, variables, (), "condition/")
        self.writer.dry = False
        return bool(found.array) if isinstance(found, Constant) else None

    def _walked(
        self, function: str, arguments: list[NodeInput], waits: tuple[str, ...], prefix: str
    ) -> tuple[list[NodeInput], tuple[str, ...]]:
        """The function's results, and what stands for the end of its effects."""
        template = self.functions.template(function)
        scope = _Scope(prefix, function)
        for name, value in zip(template.arguments, arguments, strict=True):
            scope.values[name], scope.waits[name] = [value], ()
        scope.values[START], scope.waits[START] = [], waits
        for node in template.nodes:
            if node.name not in scope.values:
                constant = template.constants.get(node.name)
                if constant is None:
                    self._visit(node, scope)
                else:
                    scope.values[node.name], scope.waits[node.name] = [constant], ()
        return [scope.value(each) for each in template.results], scope.waits[template.end]
