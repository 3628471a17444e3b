"""Constants of one number: which of those that the runtime computes hold the same.

The gradient of a mean is the same number for every pixel. Cut into parts, or scaled in two places,
it is computed more than once; the runtime keeps constants of one shape and the same numbers once,
if all of them wait for the same.

    Fill ─► RealDiv ─┬─► Slice, the first examples ─┐
                     └─► Slice, the next ones      ─┴─► one constant
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable

from memtrade.facts import reuse
from memtrade.graph import Op, StepGraph
from memtrade.op_types import ALIAS_TYPES

# Of one number they make tensors of that number; Fill reads it behind the dimensions.
_SPREADING = ALIAS_TYPES | {"BroadcastTo", "Slice", "StridedSlice", "Tile"}
# These look at more than one number of an input, or at where it stands.
_NOT_EACH = {"BiasAdd", "LogSoftmax", "MatrixBandPart", "ScatterNdNonAliasingAdd", "Softmax"}
_EACH = (frozenset(reuse().tried) | {"Cast"}) - _NOT_EACH


def constants_alike(graph: StepGraph) -> dict[int, Hashable]:
    """For tensors made of constants that hold one number: equal where the runtime keeps one.

    It compares each with the first of its shape and number, and keeps both where one waits for
    other ops. Which is first is not foreseen: where some wait, each is taken to stay. O(edges).
    """
    number: dict[int, Hashable] = {}
    waits: dict[int, frozenset[int]] = {}  # of each op that makes constants
    for op in graph.ops:
        if not graph.folded[op.id]:
            continue
        before = {*op.controls, *(graph.tensors[t].op for t in op.inputs)}
        waits[op.id] = frozenset().union(*(waits.get(each, {each}) for each in before))
        if (known := _number(op, graph, number)) is not None:
            number.update(dict.fromkeys(op.outputs, known))
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for t, known in number.items():
        if t in graph.data.outputs or not all(graph.folded[c] for c in graph.consumers[t]):
            alike[known, graph.tensors[t].dtype, graph.tensors[t].shape].append(t)
    one = {
        key: len({waits[graph.tensors[t].op] for t in found}) < 2 for key, found in alike.items()
    }
    return {t: key if one[key] else t for key, found in alike.items() for t in found}


def _number(op: Op, graph: StepGraph, number: dict[int, Hashable]) -> Hashable:
    """What stands for the number that `op` makes its outputs of; None where it may be several."""
    known = None
    if op.type == "Fill":
        known = number.get(op.inputs[-1])
    elif op.type in _SPREADING:
        known = number.get(op.inputs[0])
    elif op.type in _EACH and all(t in number for t in op.inputs):
        read = tuple(number[t] for t in op.inputs)
        known = op.type, op.node, repr(sorted(op.attrs.items())), read
    if known is None and len(op.outputs) == 1:
        made = graph.tensors[op.outputs[0]]
        if made.shape is not None and math.prod(made.shape) == 1:
            return graph.data.equal.get(made.id, made.id)
    return known
