"""Ops that oneDNN runs as one kernel, kept side by side so that it still can.

TensorFlow's CPU build merges the gradient of a convolution's filter with that of its bias, if both
read the same gradient and wait for the same ops:

    Conv2DBackpropFilter(x, shape, g)
    BiasAddGrad(g)                        ──► one kernel, which sums g in an order of its own

Apart, the bias's gradient would differ from the original's in its last bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memtrade.graph import StepGraph, once_per_graph
from memtrade.plan import Action


@once_per_graph
def bias_gradients(graph: StepGraph) -> dict[int, int]:
    """For each filter gradient that has one, the bias gradient that is merged with it: op ids."""
    reads: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
    for op in graph.ops:
        if op.type in ("BiasAddGrad", "Conv2DBackpropFilter"):
            reads.setdefault((op.type, op.inputs[-1], op.controls), []).append(op.id)
    pairs = {}
    for (kind, gradient, controls), filters in reads.items():
        if kind == "Conv2DBackpropFilter":
            biases = reads.get(("BiasAddGrad", gradient, controls), [])
            pairs.update(zip(filters, biases, strict=False))
    return pairs


def side_by_side(graph: StepGraph, actions: Sequence[Action]) -> tuple[Action, ...]:
    """`actions` with each bias gradient right behind its filter gradient.

    What reads a bias gradient before that, such as the update, moves behind it. O(actions).
    """
    pairs = bias_gradients(graph)
    if not pairs:
        return tuple(actions)
    mover = _Mover(graph, pairs)
    for action in actions:
        mover.take(action)
    # One that the filter gradient itself waits for cannot move: no kernel merges them either.
    return tuple(mover.placed) if not mover.waiting else tuple(actions)


class _Mover:
    def __init__(self, graph: StepGraph, pairs: Mapping[int, int]):
        self.graph, self.pairs = graph, pairs
        self.biases = set(pairs.values())
        self.placed: list[Action] = []
        self.waiting: list[Action] = []
        self.ran: set[int] = set()
        self.late: set[int] = set()  # ops whose turn has come, but that have not run

    def take(self, action: Action) -> None:
        if action.kind == "run" and action.id in self.biases:
            if action.id not in self.ran:
                self.late.add(action.id)
        elif self._must_wait(action):
            self.waiting.append(action)
            if action.kind == "run":
                self.late.add(action.id)
        else:
            self._place(action)

    def _must_wait(self, action: Action) -> bool:
        if not self.late or action.kind == "reserve":
            return False
        if action.kind in ("swap_out", "swap_in"):
            return self.graph.tensors[action.id].op in self.late
        op = self.graph.ops[action.id]
        before = {self.graph.tensors[t].op for t in op.inputs}
        return not self.late.isdisjoint(before.union(op.controls))

    def _place(self, action: Action) -> None:
        self.placed.append(action)
        if action.kind != "run":
            return
        self._ran(action.id)
        bias = self.pairs.get(action.id)
        if bias is not None:
            self.placed.append(Action("run", bias))
            self._ran(bias)
            released, self.waiting = self.waiting, []
            for each in released:
                self.take(each)

    def _ran(self, op_id: int) -> None:
        self.ran.add(op_id)
        self.late.discard(op_id)
