"""What the runtime computes once, before the first step: ops that hang on nothing but constants.

    Const ─► Tile, 5 MB ──► Mul by a variable    the tile is a constant from then on
    Const ─► Tile, 20 MB ─► Mul by a variable    it is computed, too, but too large to be kept:
                                                 each step computes it again
    Const ─► Tile, 20 MB ─► Sum ─► Mul ...       only the sum is kept

With a pinned order the ops themselves still run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from memtrade.op_types import NEVER_FOLDED_TYPES

if TYPE_CHECKING:
    from memtrade.graph import StepGraph, Tensor

# The largest tensor that becomes a constant.
KEPT_BYTES = 10 << 20
_COUNTS = ("int32", "int64")


class Folding(NamedTuple):
    """Attributes:
    computed: of each op, whether the runtime computes it before the first step.
    folded: whether no step does: what is read of it is a constant by then.
    asked: the tensors that it is computed for.
    kept: those of them that become constants; the others are too large.
    """

    computed: list[bool]
    folded: list[bool]
    asked: frozenset[int]
    kept: frozenset[int]


def folding_of(graph: StepGraph) -> Folding:
    """O(ops + edges)."""
    computed = [op.type == "Const" for op in graph.ops]
    for op in graph.ops:
        runs = op.stateful or not op.inputs or op.type in NEVER_FOLDED_TYPES
        if not runs and all(computed[graph.tensors[t].op] for t in op.inputs):
            computed[op.id] |= all(_is_known(graph.tensors[t], graph) for t in op.outputs)
    asked = asked_of(graph, computed, graph.consumers)
    kept = frozenset(t for t in asked if graph.tensors[t].size_bytes <= KEPT_BYTES)
    folded = computed[:]
    for op in reversed(graph.ops):
        if computed[op.id] and op.type != "Const":
            others = [t for t in op.outputs if t not in kept]
            folded[op.id] = asked.isdisjoint(others) and all(
                folded[c] for t in others for c in graph.consumers[t]
            )
    return Folding(computed, folded, asked, kept)


def asked_of(
    graph: StepGraph, computed: Sequence[bool], consumers: Sequence[Sequence[int]]
) -> frozenset[int]:
    """`Folding.asked`, where these `consumers` read each tensor."""
    return frozenset(
        t
        for op in graph.ops
        if computed[op.id] and op.type != "Const"
        for t in op.outputs
        if t in graph.data.outputs or not all(computed[c] for c in consumers[t])
    )


def _is_known(tensor: Tensor, graph: StepGraph) -> bool:
    """Of no bytes only if it is empty, as the axes that a gradient sums over are where nothing was
    broadcast; handles, lists and strings lie elsewhere."""
    if tensor.size_bytes or 0 in (tensor.shape or ()):
        return True
    return tensor.dtype in _COUNTS and graph.label(tensor.id) not in graph.data.unsized
