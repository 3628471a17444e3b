"""Where the values of variables lie: which are written in place, and which reads copy.

    AssignVariableOp            the value's buffer becomes the variable's: it moves
      ... in rewritten steps    written into the buffer that the variable has, where that costs
                                little: the value would lie about between the step's large tensors
    ReadVariableOp              the variable's own buffer
      ... of copied variables   a copy, once anything has read or written a part of the variable
    AssignAdd, ResourceApply... into the buffer that the variable has
      ... of copied variables   into a copy, which becomes the variable's; in rewritten steps
                                AssignAdd and AssignSub add to the rows that the variable has

Of copied variables something has read or written rows: with the first of these TensorFlow has each
read copy, for good.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from memtrade.graph import Op, StepGraph, once_per_graph
from memtrade.op_types import (
    BODY_TYPES,
    READ_TYPES,
    READING_TYPES,
    ROWS_OF_VARIABLES,
    UPDATE_TYPES,
)

# Values up to here are written in place though a read of the variable then copies it.
IN_PLACE_BYTES = 64 * 1024

# How a value is written into the buffer that a variable has.
_WRITE = "ResourceStridedSliceAssign"

# Of a row, at least: as much as its number takes, or a copy of the table would be less.
_ROW_BYTES = 4

# How the names of types end that every device's kernels add row by row.
_ADDED = ("float16", "float32", "float64")

_IN_PLACE = (*READING_TYPES, *ROWS_OF_VARIABLES)

# Updates of all of a variable, and those that do the same row by row.
BY_ROWS = {
    "AssignAddVariableOp": "ResourceScatterAdd",
    "AssignSubVariableOp": "ResourceScatterSub",
}


def touched(op: Op) -> Iterator[tuple[int, str]]:
    """What the bodies of a loop or branch do with handles but to read: (tensor id, op type)."""
    return ((op.inputs[place], type_) for place, type_ in op.attrs.get("touched", ()))


def moved(op: Op) -> frozenset[int]:
    """The handles of variables that lie elsewhere once `op`, a loop or a branch, has run: or not,
    as its condition has it."""
    return frozenset(t for t, type_ in touched(op) if type_ == "AssignVariableOp")


def keeps_place(op: Op, graph: StepGraph) -> bool:
    """Whether rewritten steps write in place what `op` assigns.

    A read of the variable then copies it, so the value is small (a moving average), or nothing
    before the loss reads the variable (an optimizer's slot). One that is updated, too, would move
    with each update.
    """
    if op.type != "AssignVariableOp":
        return False
    value, users = graph.tensors[op.inputs[1]], graph.consumers[op.inputs[0]]
    if any(type_.startswith(UPDATE_TYPES) for type_ in _done_with(graph)[op.inputs[0]]):
        return False
    if value.id in graph.data.sized or value.shape is None or not value.size_bytes:
        return False
    return graph.forward.isdisjoint(users) or value.size_bytes <= IN_PLACE_BYTES


def goes_by_rows(op: Op, graph: StepGraph) -> bool:
    """Whether rewritten steps add row by row what `op` adds to a table, an embedding's: where
    something reads rows, whatever adds to all of them would copy the table first."""
    if op.type not in BY_ROWS or op.inputs[0] not in _tables(graph):
        return False
    value = graph.tensors[op.inputs[1]]
    if value.id in graph.data.sized or not value.shape or not value.dtype.endswith(_ADDED):
        return False
    return value.size_bytes >= _ROW_BYTES * value.shape[0] > 0


class Brought(NamedTuple):
    """A constant that rewritten steps have beside the step's: a number of type int32 in so many
    dimensions. `looked_at`: whether TensorFlow infers shapes with it."""

    number: int
    rank: int
    looked_at: bool


@once_per_graph
def brought(graph: StepGraph) -> tuple[Brought, ...]:
    """What is written in place or row by row is written to a slice, or to rows that are counted:
    each number of that is there once."""
    rows = any(goes_by_rows(op, graph) for op in graph.ops)
    slices = any(keeps_place(op, graph) and written_rank(op, graph) for op in graph.ops)
    return tuple(
        Brought(number, rank, rows)
        for rank in (0, 1)
        for number in (0, 1)
        if rows or (slices and rank)
    )


def written_rank(op: Op, graph: StepGraph) -> int:
    """Of what an assignment writes."""
    return len(graph.tensors[op.inputs[1]].shape or ())


@once_per_graph
def placed(graph: StepGraph) -> frozenset[int]:
    """The handles of variables that are written in place, in branches (see `tf/assigned.py`) or
    outside of them."""
    in_branches = frozenset(
        t
        for t, types in _done_with(graph).items()
        if _WRITE in types and types <= READING_TYPES | {_WRITE}
    )
    moving = {t for op in graph.ops for t, type_ in touched(op) if type_ not in READING_TYPES}
    assigned, tables = set[int](), set[int]()
    for op in graph.ops:
        if goes_by_rows(op, graph):
            tables.add(op.inputs[0])
        elif keeps_place(op, graph):
            assigned.add(op.inputs[0])
        elif op.inputs and not op.type.startswith(_IN_PLACE):
            moving.add(op.inputs[0])
    return in_branches | assigned | (tables - moving)


@once_per_graph
def _tables(graph: StepGraph) -> frozenset[int]:
    """The handles of variables of which ops read or write rows."""
    return frozenset(
        t
        for t, types in _done_with(graph).items()
        if any(type_.startswith(ROWS_OF_VARIABLES) for type_ in types)
    )


@once_per_graph
def _done_with(graph: StepGraph) -> dict[int, set[str]]:
    """Of each variable's handle, the types of the ops that it is given to, in bodies, too."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for op in graph.ops:
        if op.type not in BODY_TYPES:
            for t in op.inputs:
                if graph.tensors[t].dtype == "resource":
                    found[t].add(op.type)
        for t, type_ in touched(op):
            found[t].add(type_)
    return dict(found)


@once_per_graph
def copied_variables(graph: StepGraph) -> frozenset[int]:
    """The handles of variables that each read copies: those that are written in place, and
    tables."""
    return placed(graph) | _tables(graph)


def reads_by_copying(op: Op, graph: StepGraph) -> bool:
    return op.type in READ_TYPES and op.inputs[0] in copied_variables(graph)
