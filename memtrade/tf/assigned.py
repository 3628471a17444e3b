"""Assignments that leave variables where they lie, in a step and in its branches.

AssignVariableOp makes the value's buffer the variable's. Assigning to the slice `[:]` of the
variable writes the same bits into the buffer that it has.

    cond ─► If ─┬─ then: gradients, summed up ─► update; zeros ─► the sum
                └─ else: the sum + gradients ─────────────────► the sum

An optimizer that accumulates gradients had its sums lie elsewhere after each step, in holes between
the step's large tensors, as `memtrade/tf/in_place.py` says of what is assigned outside of branches.
What they do no more with than to read and to assign it, branches write in place, and so do the
branches in them: what nobody else reads, and what is small, for each read of it then is a copy (see
`memtrade/facts/variables.py`).
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import tensorflow as tf

from memtrade.facts.variables import BY_ROWS, IN_PLACE_BYTES
from memtrade.op_types import BRANCH_TYPES, READING_TYPES
from memtrade.tf.captured import captures, variable_spec
from memtrade.tf.functions import Functions, chosen_functions
from memtrade.tf.graft import graft, grafted
from memtrade.tf.nodes import NodeDef, copied, make_node
from memtrade.tf.swap import const_node
from memtrade.tf.unroll import shapes_kept

_HARMLESS = READING_TYPES | {"AssignVariableOp", "ResourceStridedSliceAssign"}


def write_in_place(assign: NodeDef, rank: int, numbers: dict[str, str]) -> list[NodeDef]:
    """Turns an AssignVariableOp into one of a slice, and returns the slice's constants that are
    not there yet. `numbers`: the names of those that are, by what they hold. The runtime
    puts branches into the step's graph and merges a constant only with the first that holds the
    same: where that one is not in the same branch, all of the branch's stay apart. And it holds
    each twice, once for its kernel, while it computes what is made of constants alone."""
    handle, value, *controls = assign.input
    dtype = assign.attr["dtype"].type
    start, stride, open_ends = whole_slice(rank)
    constants: list[NodeDef] = []
    at = _constant(start, f"{assign.name}/from", numbers, constants)
    by = _constant(stride, f"{assign.name}/by", numbers, constants)
    assign.op = "ResourceStridedSliceAssign"
    assign.ClearField("attr")
    assign.attr["T"].type = dtype
    assign.attr["Index"].type = tf.int32.as_datatype_enum
    for mask in ("begin_mask", "end_mask"):
        assign.attr[mask].i = open_ends
    assign.input[:] = [handle, at, at, by, value, *controls]
    return constants


def write_by_rows(update: NodeDef, numbers: dict[str, str]) -> list[NodeDef]:
    """Turns an AssignAddVariableOp or AssignSubVariableOp into one of all rows, and returns what
    numbers these: of four constants those that are not there yet, and the chain that begins with
    the variable's shape. Numbers that the runtime could compute once would lie there for good.
    `numbers`: as in `write_in_place`."""
    handle, value, *controls = update.input
    dtype, name = update.attr["dtype"].type, update.name
    constants: list[NodeDef] = []
    none = _constant(0, f"{name}/none", numbers, constants)
    one = _constant(1, f"{name}/one", numbers, constants)
    start = _constant([0], f"{name}/start", numbers, constants)
    end = _constant([1], f"{name}/end", numbers, constants)
    shape = make_node("VariableShape", f"{name}/shape", [handle], out_type="int32")
    count = make_node(
        "StridedSlice", f"{name}/count", [shape.name, start, end, end],
        T="int32", Index="int32", shrink_axis_mask=1,
    )  # fmt: skip
    rows = make_node("Range", f"{name}/rows", [none, count.name, one], Tidx="int32")
    update.op = BY_ROWS[update.op]
    update.ClearField("attr")
    update.attr["dtype"].type = dtype
    update.attr["Tindices"].type = tf.int32.as_datatype_enum
    update.input[:] = [handle, rows.name, value, *controls]
    return [*constants, shape, count, rows]


def _constant(
    values: int | list[int], name: str, numbers: dict[str, str], made: list[NodeDef]
) -> str:
    """The name of the constant that holds this; `made` gets it where there is none."""
    if str(values) not in numbers:
        numbers[str(values)] = name
        made.append(const_node(name, values))
    return numbers[str(values)]


def whole_slice(rank: int) -> tuple[list[int], list[int], int]:
    """Start and stride of the slice that is all of a tensor, and the mask of open ends."""
    return ([0], [1], 1) if rank else ([], [], 0)


def branches_in_place(concrete: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """`concrete`, a function of `specs` that calls nothing, with branches that write in place."""
    if not any(operation.type in BRANCH_TYPES for operation in concrete.graph.get_operations()):
        return concrete
    graph_def = concrete.graph.as_graph_def()
    branches = [node for node in graph_def.node if node.op in BRANCH_TYPES]
    functions = Functions(graph_def)
    alone, read = _not_written_elsewhere(branches, graph_def)
    assigned = read - _updated(branches, functions.library)
    ranks = {
        name: len(spec.shape)
        for inner, outer in captures(concrete)
        if (name := inner.op.name) in assigned
        and (spec := variable_spec(outer))
        and spec.shape.rank is not None
        and (name in alone or _is_small(spec))
    }
    made: list[Any] = []
    for node in branches:
        read = {i: ranks[name] for i, name in enumerate(node.input[1:]) if name in ranks}
        chosen = chosen_functions(node)
        if any(_assigns(functions.library[each.name], read, functions.library) for each in chosen):
            for each in chosen:
                made += _written(functions, each.name, read)
                each.name = made[-1].name
    graph_def.library.function.extend(each.function_def for each in made)
    if not made:
        return concrete
    keep = shapes_kept(concrete.graph, made)
    return graft(concrete, graph_def, specs, on_import=keep).get_concrete_function()


def _not_written_elsewhere(
    branches: Sequence[NodeDef], graph_def: Any
) -> tuple[set[str], set[str]]:
    """The names of what these nodes are given: what no other is, and what others no more than
    read."""
    names = {node.name for node in branches}
    others = [node for node in graph_def.node if node.name not in names]
    writers = (node for node in others if node.op not in READING_TYPES)
    given = {each for node in branches for each in node.input}
    return (
        given - {each for node in others for each in node.input},
        given - {each for node in writers for each in node.input},
    )


def _is_small(spec: tf.TensorSpec) -> bool:
    elements = spec.shape.num_elements()
    return elements is not None and elements * spec.dtype.size <= IN_PLACE_BYTES


def _updated(branches: Sequence[NodeDef], library: Mapping[str, Any]) -> set[str]:
    """The names of what a branch does more with than to read or to assign it, in branches of its
    own, too (a loss scale counts the steps in one)."""
    found = set()
    for node in branches:
        for function in (library[each.name] for each in chosen_functions(node)):
            inner = [each for each in function.node_def if each.op in BRANCH_TYPES]
            users = [each for each in function.node_def if each.op not in _HARMLESS | BRANCH_TYPES]
            given = {name for each in users for name in each.input} | _updated(inner, library)
            arguments = zip(function.signature.input_arg, node.input[1:], strict=False)
            found.update(name for argument, name in arguments if argument.name in given)
    return found


def _assigns(function: Any, places: Container[int], library: Mapping[str, Any]) -> bool:
    arguments = enumerate(function.signature.input_arg)
    names = {each.name for i, each in arguments if i in places}
    for node in function.node_def:
        if node.op == "AssignVariableOp" and node.input[0] in names:
            return True
        if node.op in BRANCH_TYPES:
            inner = {i for i, name in enumerate(node.input[1:]) if name in names}
            chosen = (library[each.name] for each in chosen_functions(node))
            if any(_assigns(each, inner, library) for each in chosen):
                return True
    return False


def _written(functions: Functions, name: str, ranks: Mapping[int, int]) -> list[Any]:
    """A concrete function as the one of that name, but that it writes in place what it assigns to
    the variables of these arguments, whose ranks are given; before it, those that it calls."""
    template, signature = functions.template(name), functions.library[name].signature
    nodes = [copied(each, each.name, each.input) for each in template.nodes]
    made = tf.compat.v1.GraphDef(node=nodes)
    made.versions.producer = tf.version.GRAPH_DEF_VERSION
    rank_of = {template.arguments[i]: rank for i, rank in ranks.items()}
    called: list[Any] = []
    numbers: dict[str, str] = {}
    for node in [*made.node]:
        if node.op == "AssignVariableOp" and node.input[0] in rank_of:
            made.node.extend(write_in_place(node, rank_of[node.input[0]], numbers))
        inner = {i: rank_of[name] for i, name in enumerate(node.input[1:]) if name in rank_of}
        if node.op in BRANCH_TYPES and inner:
            for each in chosen_functions(node):
                called += _written(functions, each.name, inner)
                each.name = called[-1].name
    made.library.function.extend(functions.library.values())
    made.library.function.extend(each.function_def for each in called)

    def specs(arguments: Any) -> list[tf.TensorSpec]:
        unknown: Any = None  # the shapes
        return [tf.TensorSpec(unknown, tf.as_dtype(each.type)) for each in arguments]

    written = grafted(
        made,
        specs(signature.input_arg),
        names=template.arguments,
        captured=lambda: (),
        structure=specs(signature.output_arg),
        results=template.results,
        effects=[template.end],
        alone=False,
    ).get_concrete_function()
    return [*called, written]
