"""Which of the values that a step returns is the loss, and where it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import READ_TYPES, Op, Tensor
from memtrade.tf.structure import named_leaves

NAME = "loss"

# Ops that give a variable a new value, and the position of what it is made of.
_ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
_VALUE = 1


def find_loss(returned: Any) -> tf.Tensor:
    """The floating-point scalar in a structure of tensors, or of several the one called "loss".

    Raises:
        UnsupportedGraphError: there is none, or it is not clear which.
    """
    scalars = {
        path: value
        for path, value in named_leaves(returned)
        if isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank == 0
    }
    if len(scalars) == 1:
        return next(iter(scalars.values()))
    if not scalars:
        raise UnsupportedGraphError(
            "no loss found: the step returns no floating-point scalar. "
            "Return the loss, alone or in a structure"
        )
    for fits in (lambda name: name == NAME, lambda name: name.endswith(NAME)):
        named = [path for path in scalars if fits(path.rpartition("/")[2])]
        if len(named) == 1:
            return scalars[named[0]]
    raise UnsupportedGraphError(
        f"it is not clear which of the returned scalars is the loss ({', '.join(scalars)}): "
        f'return the one that is differentiated by name, as in {{"{NAME}": ...}}'
    )


def computed_loss(
    ops: Sequence[Op], tensors: Sequence[Tensor], batch: Sequence[int], returned: int
) -> int:
    """The tensor that the returned loss is computed from.

    Often `returned` itself. Keras returns a running mean: a variable that the step reads after it
    has added the loss to it. There is no data edge from the loss to what is returned then, so the
    way leads through the variable; of what was assigned, it is what most ops lead to.
    O(ops + edges) for each variable on the way.
    """
    if not set(batch).isdisjoint(_ancestors(ops, tensors, returned)):
        return returned
    assigned: dict[int, list[tuple[int, int]]] = {}  # handle -> (op, what it assigned)
    for op in ops:
        if op.type in _ASSIGNMENTS:
            assigned.setdefault(op.inputs[0], []).append((op.id, op.inputs[_VALUE]))
    best, most = returned, 0
    seen: set[int] = set()
    waiting = [returned]
    while waiting:
        ancestors = _ancestors(ops, tensors, waiting.pop())
        for t in sorted(ancestors):
            reader = ops[tensors[t].op]
            if reader.type not in READ_TYPES:
                continue
            for assignment, value in assigned.get(reader.inputs[0], ()):
                if assignment > reader.id or value in seen:
                    continue
                seen.add(value)
                behind = _ancestors(ops, tensors, value)
                if behind.isdisjoint(batch):
                    waiting.append(value)
                elif len(behind) > most:
                    best, most = value, len(behind)
    return best


def _ancestors(ops: Sequence[Op], tensors: Sequence[Tensor], tensor: int) -> set[int]:
    """The tensors that `tensor` is computed from through data edges, itself included."""
    found, stack = {tensor}, [tensor]
    while stack:
        for t in ops[tensors[stack.pop()].op].inputs:
            if t not in found:
                found.add(t)
                stack.append(t)
    return found
