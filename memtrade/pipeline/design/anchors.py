"""Where each op of a step belongs, along the line of the forward pass.

The *line* is the forward ops that compute from the batch, in the order of creation. A pipeline
cuts the line; every other op follows the op of the line that it is *anchored* at:

    weights          the read of a variable at the first op of the line that needs the variable;
                     what is computed from weights alone at the last of its inputs
    constants        at the first reader (each stage makes its own copy)
    gradients        at the op whose gradient they compute
    updates          at the variable's first reader
    moving averages  at the last of what they average

The op whose gradient a backward op computes is not written in the graph, but follows from its
edges. It reads the inputs or the outputs of that op: so for each forward tensor that it reads, the
op is its producer or one of its readers, and it is before the ops whose gradients came in. Of the
ops that all of this allows, the last is taken. What reads no forward tensor stays where the last
gradient came from (a sum of gradients belongs there), unless it only feeds updates: then it belongs
to the variable. So an op such as the negation in a subtraction's gradient may be anchored at the
next reader instead, which matters only where a cut lies between the two: tests/pipeline holds how
much time that misplaces against the names that TensorFlow gives gradients.

O(ops + edges), but for tensors with very many readers.
"""

from collections.abc import Iterable

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import Op, StepGraph
from memtrade.op_types import ALIAS_TYPES, READ_TYPES

Allowed = frozenset[int] | None  # ops of the line; None: no constraint


class Anchors:
    """Where the ops of a graph belong.

    Attributes:
        line: ids of the forward ops that compute from the batch, ascending.
        constants: ids of the forward ops that compute from constants alone.
        at: for each op, the id of the op of the line where it belongs; None for what no op of
            the line leads to or reads (an optimizer's bookkeeping).

    Raises UnsupportedGraphError where the loss does not depend on the batch.
    """

    def __init__(self, graph: StepGraph):
        self.graph = graph
        self.line = tuple(sorted(graph.from_batch))
        loss = graph.tensors[graph.loss].op
        if loss not in graph.from_batch:
            raise UnsupportedGraphError(
                f"the loss {graph.ops[loss].name!r} does not depend on the batch: "
                "there is nothing to cut into stages"
            )
        self._forward = sorted(graph.forward)
        self.constants = self._from_constants()
        self.at: list[int | None] = [None] * len(graph.ops)
        self._place_forward()
        # For each tensor, the ops of the line that may own a gradient op that reads it.
        self._candidates = self._find_candidates()
        for op in graph.ops:
            if op.id not in graph.forward:
                self.at[op.id] = self._place(op)
        self._sink()

    def _producers(self, op_id: int) -> list[int]:
        return [self.graph.tensors[t].op for t in self.graph.ops[op_id].inputs]

    def _from_constants(self) -> frozenset[int]:
        graph, known = self.graph, set[int]()
        batch = set(graph.data.inputs)
        for op_id in self._forward:
            op = graph.ops[op_id]
            tensors = (*op.inputs, *op.outputs)
            outside = any(graph.tensors[t].dtype == "resource" or t in batch for t in tensors)
            changes = op.stateful or outside or op_id in graph.from_batch or op.type in READ_TYPES
            if not changes and known.issuperset(self._producers(op_id)):
                known.add(op_id)
        return frozenset(known)

    def _place_forward(self) -> None:
        """The line at itself, sources and constants at their first reader, the rest between."""
        graph, at = self.graph, self.at
        first: dict[int, int] = {}  # op -> first op of the line that it is, or leads to
        for op_id in reversed(self._forward):
            readers = (c for t in graph.ops[op_id].outputs for c in graph.consumers[t])
            on_line = op_id in graph.from_batch
            first[op_id] = op_id if on_line else min(first[c] for c in readers if c in first)
        for op_id in self._forward:
            known = []
            if op_id not in graph.from_batch and op_id not in self.constants:
                before = (at[p] for p in self._producers(op_id) if p not in self.constants)
                known = [place for place in before if place is not None]
            at[op_id] = max(known, default=first[op_id])

    def _find_candidates(self) -> list[Allowed]:
        """For a forward tensor, its producer and the readers of all its views."""
        graph = self.graph
        owners: dict[int, set[int]] = {}
        for op_id in self._forward:
            place = self.at[op_id]
            if op_id in self.constants or place is None:
                continue
            op = graph.ops[op_id]
            owned = [t for t in op.inputs if graph.tensors[t].op not in self.constants]
            for t in (*owned, *(op.outputs if op_id in graph.from_batch else ())):
                owners.setdefault(graph.root[t], set()).add(place)
        frozen = {root: frozenset(places) for root, places in owners.items()}
        return [
            frozen.get(graph.root[t.id]) if t.op in graph.forward else None for t in graph.tensors
        ]

    def _place(self, op: Op) -> int | None:
        """The anchor of an op outside the forward part; inputs are placed already."""
        graph = self.graph
        allowed = _intersect(self._candidates[t] for t in op.inputs)
        producers = self._producers(op.id)
        if op.id not in graph.backward:
            for t in op.outputs:
                self._candidates[t] = allowed
            beside = (p for p in producers if p in graph.from_batch or p not in graph.forward)
            return max((place for p in beside if (place := self.at[p]) is not None), default=None)
        if op.stateful and not op.outputs:
            for t in op.inputs:
                home = self.at[graph.tensors[t].op]
                if graph.tensors[t].dtype == "resource" and home is not None:
                    return home
        arriving = [self.at[p] for p in producers if p in graph.backward]
        # What reads the turn directly starts the backward part.
        latest = min((place for place in arriving if place is not None), default=graph.turn)
        if allowed is None:
            return latest
        before = [place for place in allowed if place < latest] or [
            place for place in allowed if place <= latest
        ]
        return max(before, default=latest)

    def _sink(self) -> None:
        """Moves what could run later than where its inputs come from, and should.

        What reads no forward tensor and only feeds updates goes to the variable. An alias goes to
        its first reader, so that it is the buffer itself that crosses between stages, once.
        """
        graph = self.graph
        into_updates: set[int] = set()
        for op_id in sorted(graph.backward, reverse=True):
            op = graph.ops[op_id]
            if op.stateful:
                if not op.outputs:
                    into_updates.add(op_id)
                continue
            readers = {c for t in op.outputs for c in graph.consumers[t]}
            homes = {place for c in readers if (place := self.at[c]) is not None}
            if not homes:
                continue
            free = all(self._candidates[t] is None for t in op.inputs)
            if free and len(homes) == 1 and readers <= into_updates:
                into_updates.add(op_id)
                self.at[op_id] = homes.pop()
            elif op.type in ALIAS_TYPES:
                self.at[op_id] = max(homes)


def _intersect(constraints: Iterable[Allowed]) -> Allowed:
    """What all constraints allow; their union where nothing is."""
    given = [each for each in constraints if each is not None]
    if not given:
        return None
    common = frozenset.intersection(*given)
    return common or frozenset.union(*given)
