"""Branches that assign variables, made to leave these where they lie.

    cond ─► If ─┬─ then: gradients, summed up ─► update; zeros ─► the sum     the value's buffer
                └─ else: the sum + gradients ─────────────────► the sum       becomes the variable's

So an optimizer that accumulates gradients has its sums lie elsewhere after each step, in holes
between the step's large tensors, as `memtrade/tf/in_place.py` says of what is assigned outside of
branches. Variables that nothing but branches reads, and that nothing updates (see
`memtrade/facts/variables.py`), are written into the buffer that they have: the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from memtrade.op_types import BRANCH_TYPES, READING_TYPES
from memtrade.tf.captured import captures, variable_spec
from memtrade.tf.graft import graft, grafted
from memtrade.tf.in_place import write_in_place
from memtrade.tf.inline import Inlined
from memtrade.tf.nodes import NodeDef, make_call, make_node
from memtrade.tf.unroll import shapes_kept

_CALL = "branch"
_HARMLESS = READING_TYPES | {"AssignVariableOp", "ResourceStridedSliceAssign"}
_FUNCTIONS = "memtrade/branches"


def branches_in_place(concrete: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """`concrete`, a function of `specs` that calls nothing, with branches that write in place."""
    graph_def = concrete.graph.as_graph_def()
    branches = [node for node in graph_def.node if node.op in BRANCH_TYPES]
    library = {each.signature.name: each for each in graph_def.library.function}
    alone = _read_by_alone(branches, graph_def) - _updated(branches, library)
    ranks = {
        inner.op.name: len(spec.shape)
        for inner, outer in captures(concrete)
        if inner.op.name in alone and (spec := variable_spec(outer)) and spec.shape.rank is not None
    }
    made: list[Any] = []
    for node in branches:
        read = {i: ranks[name] for i, name in enumerate(node.input[1:]) if name in ranks}
        chosen = functions_of(node)
        if any(_assigns(library[each.name], read) for each in chosen):
            for each in chosen:
                made.append(_written(each.name, graph_def.library, read))
                each.name = made[-1].name
                graph_def.library.function.add().CopyFrom(made[-1].function_def)
    if not made:
        return concrete
    keep = shapes_kept(concrete.graph)

    def imported(graph: Any) -> None:
        keep(graph)
        for function in made:  # TensorFlow forgets a function that nobody holds
            graph.add_to_collection(_FUNCTIONS, function)

    return graft(concrete, graph_def, specs, on_import=imported).get_concrete_function()


def functions_of(node: NodeDef) -> list[Any]:
    """The functions that an If or a Case chooses among."""
    if "branches" in node.attr:
        return [*node.attr["branches"].list.func]
    return [node.attr[f"{which}_branch"].func for which in ("then", "else")]


def _read_by_alone(branches: Sequence[NodeDef], graph_def: Any) -> set[str]:
    """The names of what these nodes read, and no other does."""
    names = {node.name for node in branches}
    others = (node for node in graph_def.node if node.name not in names)
    return {each for node in branches for each in node.input} - {
        each for node in others for each in node.input
    }


def _updated(branches: Sequence[NodeDef], library: Mapping[str, Any]) -> set[str]:
    """The names of what a branch does more with than to read or to assign it."""
    found = set()
    for node in branches:
        for function in (library[each.name] for each in functions_of(node)):
            users = [each for each in function.node_def if each.op not in _HARMLESS]
            given = {name for each in users for name in each.input}
            arguments = zip(function.signature.input_arg, node.input[1:], strict=False)
            found.update(name for argument, name in arguments if argument.name in given)
    return found


def _assigns(function: Any, places: Mapping[int, int]) -> bool:
    names = {function.signature.input_arg[i].name for i in places}
    return any(n.op == "AssignVariableOp" and n.input[0] in names for n in function.node_def)


def _written(name: str, library: Any, ranks: Mapping[int, int]) -> Any:
    """A concrete function as the one of that name, but that it writes in place what it assigns to
    the variables of these arguments, whose ranks are given."""
    signature = next(each.signature for each in library.function if each.signature.name == name)
    arguments = [f"argument{i}" for i in range(len(signature.input_arg))]
    around = tf.compat.v1.GraphDef(library=library)
    around.versions.producer = tf.version.GRAPH_DEF_VERSION
    types = [tf.as_dtype(each.type) for each in signature.input_arg]
    for argument, dtype in zip(arguments, types, strict=True):
        around.node.append(make_node("Placeholder", argument, dtype=dtype))
    call = make_call("PartitionedCall", _CALL, signature)
    call.input.extend(arguments)
    around.node.append(call)
    inlined = Inlined(around)
    opened = inlined.graph_def
    for node in [*opened.node]:
        if node.op == "AssignVariableOp" and node.input[0] in arguments:
            rank = ranks.get(arguments.index(node.input[0]))
            if rank is not None:
                opened.node.extend(write_in_place(node, rank))
    results = [f"{_CALL}:{i}" if i else _CALL for i in range(len(signature.output_arg))]
    function = grafted(
        opened,
        [tf.TensorSpec(tf.TensorShape(()), dtype) for dtype in types],
        names=arguments,
        captured=lambda: (),
        structure=[tf.TensorSpec(tf.TensorShape(()), each) for each in call.attr["Tout"].list.type],
        results=[inlined.reference(each) for each in results],
        effects=[inlined.effect(_CALL)],
        alone=False,
    )
    return function.get_concrete_function()
