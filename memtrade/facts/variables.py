"""Where the values of variables lie: which are written in place, and which reads copy.

    AssignVariableOp            the value's buffer becomes the variable's: it moves
      ... in rewritten steps    written into the buffer that the variable has, where that costs
                                little: the value would lie about between the step's large tensors
    ReadVariableOp              the variable's own buffer
      ... of copied variables   a copy, once anything has read or written a part of the variable
    AssignAdd, ResourceApply... into the buffer that the variable has
      ... of copied variables   into a copy, which becomes the variable's

Of copied variables something has read or written rows: with the first of these TensorFlow has each
read copy, for good.
"""

from __future__ import annotations

from memtrade.graph import Op, StepGraph, once_per_graph
from memtrade.op_types import READ_TYPES, ROWS_OF_VARIABLES, UPDATE_TYPES

# Values up to here are written in place though a read of the variable then copies it.
_IN_PLACE_BYTES = 64 * 1024


def keeps_place(op: Op, graph: StepGraph) -> bool:
    """Whether rewritten steps write in place what `op` assigns.

    A read of the variable then copies it, so the value is small (a moving average), or nothing
    before the loss reads the variable (an optimizer's slot). One that is updated, too, would move
    with each update.
    """
    if op.type != "AssignVariableOp":
        return False
    value, users = graph.tensors[op.inputs[1]], graph.consumers[op.inputs[0]]
    if any(graph.ops[user].type.startswith(UPDATE_TYPES) for user in users):
        return False
    if value.id in graph.data.sized or value.shape is None or not value.size_bytes:
        return False
    return graph.forward.isdisjoint(users) or value.size_bytes <= _IN_PLACE_BYTES


@once_per_graph
def placed(graph: StepGraph) -> frozenset[int]:
    """The handles of variables that are written in place."""
    return frozenset(op.inputs[0] for op in graph.ops if keeps_place(op, graph))


@once_per_graph
def copied_variables(graph: StepGraph) -> frozenset[int]:
    """The handles of variables that each read copies: those that are written in place, and those
    of which ops read or write rows, as embeddings' are."""
    by_rows = (op for op in graph.ops if op.type.startswith(ROWS_OF_VARIABLES))
    handles = {t for op in by_rows for t in op.inputs if graph.tensors[t].dtype == "resource"}
    return placed(graph) | handles


def reads_by_copying(op: Op, graph: StepGraph) -> bool:
    return op.type in READ_TYPES and op.inputs[0] in copied_variables(graph)
