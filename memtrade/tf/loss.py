"""Which of a step's values is the loss, and where it is computed.

    named            loss="total", loss=0, or a function of what the step returns
    called "loss"    of the scalars that a step returns
    any scalar       that leads to the updates as a loss does: not a norm of gradients, not a loss
                     computed anew behind the updates
    none             where the most that comes from the batch is held for later: there the
                     gradients begin

What is computed stays the same whatever is taken for the loss; plans are better for the right one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from memtrade.errors import UnknownNameError, UnsupportedGraphError
from memtrade.facts import reuse
from memtrade.graph import Op, Tensor, led_to, reached
from memtrade.op_types import ALIAS_TYPES, READ_TYPES
from memtrade.tf.structure import named_leaves

NAME = "loss"

# How a user says which of the returned values it is: see `memtrade.apply`.
Named = int | str | Callable[[Any], Any] | None

# Ops that give a variable a new value, and the position of what it is made of.
_ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
_VALUE = 1

# A value is made of gradients if it is made of those of so much of what is updated.
_MOST = 0.5


def candidates(returned: Any, named: Named = None) -> list[list[tf.Tensor]]:
    """The values that may be the loss, in groups, in the order in which they are to be tried.

    Raises:
        UnknownNameError, UnsupportedGraphError: what was named is not there.
    """
    if named is not None:
        return [[_named(returned, named)]]
    scalars = {
        path: value
        for path, value in named_leaves(returned)
        if _is_float(value) and value.shape.rank == 0
    }
    groups: list[list[tf.Tensor]] = [[], [], []]
    for path, value in scalars.items():
        name = path.rpartition("/")[2]
        groups[0 if name == NAME else 1 if name.endswith(NAME) else 2].append(value)
    return [group for group in groups if group]


def returned_loss(returned: Any) -> tf.Tensor:
    """One number that stands for what a step returns: what may be its loss, or else 0."""
    found = candidates(returned)
    return found[0][0] if found else tf.zeros([])


def _is_float(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating


def _named(returned: Any, named: Any) -> tf.Tensor:
    leaves = {path: leaf for path, leaf in named_leaves(returned) if leaf is not None}
    found: Any
    if callable(named):
        try:
            found = named(returned)
        except Exception as error:
            raise UnsupportedGraphError(
                f"loss=... is a function that fails on what the step returns: {error}"
            ) from error
    else:
        found = leaves.get(str(named))
        if found is None and isinstance(named, int) and not isinstance(named, bool):
            values = list(leaves.values())
            found = values[named] if -len(values) <= named < len(values) else None
        if found is None and not any(leaves):  # a single value has no name
            what = "one value, which has no name" if leaves else "nothing"
            raise UnsupportedGraphError(
                f"loss={named!r} is to name what the step returns, and it returns {what}: leave "
                "loss= out, and what leads to the updates tells"
            )
        if found is None:
            raise UnknownNameError("loss among what the step returns", str(named), leaves)
    if not _is_float(found) or not any(found is value for value in leaves.values()):
        raise UnsupportedGraphError(
            f"loss={named!r} is no floating-point tensor that the step returns: name one of "
            f"{', '.join(leaves) or 'them'}"
        )
    return found


def find_loss(
    ops: Sequence[Op],
    tensors: Sequence[Tensor],
    *,
    batch: Sequence[int],
    returned: Sequence[Sequence[int]],
    outputs: Sequence[int],
    named: bool,
) -> int:
    """The tensor that the gradients descend from.

    Args:
        batch: tensor ids of the step's inputs. returned: those of its `candidates`. Of a group,
            the one counts that shares most with the updates.
        outputs: those of all that it returns. Where nothing is updated, these may be gradients.
        named: the user says that it is the only one.

    Raises:
        UnsupportedGraphError: nothing that is returned or updated comes from the batch, nor, of
            a step that takes none or does not use it, from variables.
    """
    groups = [[computed_loss(ops, tensors, batch, t) for t in group] for group in returned]
    if named:
        return groups[0][0]
    flow = _Flow(ops, tensors, batch)
    for group in groups:
        shared = {t: flow.shared(t) for t in group}
        best = max(group, key=lambda t: shared[t])  # the first of several
        if shared[best] or not flow.leading:
            return best
    read = [t for op in ops if op.type in READ_TYPES for t in op.outputs]
    for origin, ending in ((batch, outputs), (read, ()), (read, outputs)):
        flow = flow if flow.leading else _Flow(ops, tensors, origin, ending)
    if flow.leading:
        return flow.fullest
    raise UnsupportedGraphError(
        "no loss found: nothing that the step returns or updates is made from its batch or "
        "variables. Return the loss, alone or in a structure"
    )


@dataclass
class _Flow:
    """How values go from the batch to the updates, or to what is `returned` in place of them."""

    ops: Sequence[Op]
    tensors: Sequence[Tensor]
    batch: Sequence[int]
    returned: Sequence[int] = ()

    @cached_property
    def from_batch(self) -> set[int]:
        """Ids of the ops that the batch leads to through data edges, the inputs included."""
        return led_to(self.ops, self.tensors, self.batch)

    @cached_property
    def updates(self) -> dict[int, list[int]]:
        """For each op that changes something and that the batch leads to: the tensors it reads
        from there that are gradients, or made of them one by one: they look like each other."""
        found = {self.tensors[t].op: self._chain([t]) for t in self.returned if self._is_made(t)}
        for op in self.ops:
            handles = [t for t in op.inputs if self.tensors[t].dtype == "resource"]
            if not op.stateful or not handles or op.type in READ_TYPES:
                continue
            values = [t for t in op.inputs if self._is_made(t)]
            if values:
                found[op.id] = self._chain(values)
        return found

    def _is_made(self, tensor: int) -> bool:
        """Whether the step makes the tensor from the batch."""
        return self.tensors[tensor].op in self.from_batch and tensor not in self.batch

    def _chain(self, values: Sequence[int]) -> list[int]:
        """`values` and what they are made of element by element."""
        found = dict.fromkeys(values)
        stack = list(values)
        while stack:
            t = stack.pop()
            op = self.ops[self.tensors[t].op]
            for before in op.inputs if op.type in ALIAS_TYPES | set(reuse().tried) else ():
                same = self.tensors[before].shape == self.tensors[t].shape
                if same and before not in found and self._is_made(before):
                    found[before] = None
                    stack.append(before)
        return list(found)

    @cached_property
    def leading(self) -> set[int]:
        """Ids of the ops from the batch that lead to an update."""
        found = set(self.updates)
        for op in reversed(self.ops):
            if op.id in found:
                found.update(self.tensors[t].op for t in op.inputs)
        return found & self.from_batch

    def shared(self, tensor: int) -> int:
        """How many of the ops that lead to the updates it is made of; 0 of what is made of
        gradients, and so is no loss."""
        behind = _ancestors(self.ops, self.tensors, tensor)
        total = made_of = 0
        for chain in self.updates.values():
            size = self.tensors[chain[0]].size_bytes
            total += size
            made_of += size if any(t in behind for t in chain) else 0
        if made_of > _MOST * total:
            return 0
        batch = {self.tensors[t].op for t in self.batch}
        return len((self.leading & {self.tensors[t].op for t in behind}) - batch)

    @cached_property
    def fullest(self) -> int:
        """Of what leads to the updates, the tensor at which most bytes wait for a later reader;
        gradients themselves do not count."""
        gradients = {t for chain in self.updates.values() for t in chain}
        last: dict[int, int] = {}
        for op in self.ops:
            for t in op.inputs:
                if self.tensors[t].op in self.leading and t not in gradients:
                    last[t] = op.id
        ending: dict[int, int] = {}
        starting: dict[int, int] = {}
        for t, reader in last.items():
            made = self.tensors[t].op
            if self.ops[made].type in ALIAS_TYPES:
                continue
            starting[made] = starting.get(made, 0) + self.tensors[t].size_bytes
            ending[reader] = ending.get(reader, 0) + self.tensors[t].size_bytes
        alive, most, place = 0, -1, 0
        for op in self.ops:
            alive += starting.get(op.id, 0)
            if alive > most and op.id in self.leading and op.outputs:
                most, place = alive, op.id
            alive -= ending.get(op.id, 0)
        best = self.ops[place].outputs[0]
        return max(
            (t for t in last if self.tensors[t].op <= place),
            key=lambda t: (self._depth[self.tensors[t].op], t),
            default=best,
        )

    @cached_property
    def _depth(self) -> list[int]:
        """For each op, the longest way to it from the batch."""
        depth = [0] * len(self.ops)
        for op in self.ops:
            if op.id in self.from_batch:
                depth[op.id] = 1 + max((depth[self.tensors[t].op] for t in op.inputs), default=0)
        return depth


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
    return set(reached([tensor], lambda t: ops[tensors[t].op].inputs))
