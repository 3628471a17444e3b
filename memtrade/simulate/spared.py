"""What a rewritten step does without, of what is made of constants alone.

The runtime computes that before the first step: all copies of it, each twice, before it keeps one.

    Fill ─► Add    Fill ─► Mul        of two that make the same, one is made
    one number ─► Tile ─► Mul         Mul reads the one number: it would be the same all over

Gradients have both: zeros that a gather's begins with, and of an L2 penalty a tensor as large as
the weight that holds twice the rate; and those of gradients have zeros of all that ReLU reads.
"""

import math
from typing import NamedTuple

from memtrade.graph import Op, StepGraph, once_per_graph
from memtrade.op_types import ALIAS_TYPES
from memtrade.simulate.unplanned import merged_tensors

# Of one number they make a tensor of that number; Fill reads it last.
_SPREADING = ALIAS_TYPES | {"BroadcastTo", "Fill", "Tile"}
# These take one number in the place of a tensor, and compute the same, to the bit: in which places.
_TWO = dict.fromkeys(("Add", "AddV2", "Maximum", "Minimum", "Mul", "RealDiv", "Sub"), (0, 1))
# A sum of two: the rewriter writes it as AddV2.
_BROADCASTING = {**_TWO, "AddN": (0, 1), "SelectV2": (1, 2)}


class Spared(NamedTuple):
    """Attributes:
    reads: (op, place of its input) -> the tensor that it reads there.
    left_out: ops that nobody reads then.
    consumers: as `StepGraph.consumers`, with all that.
    """

    reads: dict[tuple[int, int], int]
    left_out: frozenset[int]
    consumers: list[list[int]]

    def inputs(self, op: Op) -> list[int]:
        """What the op reads."""
        return [self.reads.get((op.id, place), t) for place, t in enumerate(op.inputs)]


def nothing_spared(graph: StepGraph) -> Spared:
    """Of the step as it came."""
    return Spared({}, frozenset(), graph.consumers)


@once_per_graph
def spared(graph: StepGraph) -> Spared:
    """O(edges). Nothing that waits for another op is left out, nor what the step hands out."""
    once, numbers = _made_once(graph), _numbers(graph)
    reads: dict[tuple[int, int], int] = {}
    consumers: list[list[int]] = [[] for _ in graph.tensors]
    left_out, decided = set[int](), set(graph.activations)  # no plan sends what is not there
    for op in reversed(graph.ops):
        made = graph.folding.computed[op.id] and op.type != "Const" and not op.controls
        if made and decided.isdisjoint(op.outputs):
            read = any(consumers[t] or t in graph.data.outputs for t in op.outputs)
            if not read and any(graph.consumers[t] for t in op.outputs):
                left_out.add(op.id)
                continue
        for place, t in enumerate(op.inputs):
            number = _number_for(op.id, place, graph, numbers)
            other = t if number is None else number
            other = once.get(other, other)
            if other != t:
                reads[op.id, place] = other
            consumers[other].append(op.id)
    return Spared(
        {place: t for place, t in reads.items() if place[0] not in left_out},
        frozenset(left_out),
        [[*dict.fromkeys(reversed(these))] for these in consumers],
    )


def _made_once(graph: StepGraph) -> dict[int, int]:
    """Copies -> the first. Each op makes what the first does, of the same constants."""
    same, found = merged_tensors(graph), dict[int, int]()
    for op in graph.ops:
        if op.type == "Const" or op.controls or not graph.folded[op.id]:
            continue
        first = {graph.tensors[same[t]].op for t in op.outputs if t in same}
        copied = all(t in same and t not in graph.data.outputs for t in op.outputs)
        if copied and all(graph.folded[each] for each in first):
            found |= {t: same[t] for t in op.outputs}
    return found


def _numbers(graph: StepGraph) -> dict[int, int]:
    """Tensors that are one number all over -> the one that holds it alone."""
    found: dict[int, int] = {}
    for op in graph.ops:
        spreads = op.type in _SPREADING and graph.folding.computed[op.id] and not op.controls
        if not spreads or len(op.outputs) != 1:
            continue
        source = op.inputs[-1 if op.type == "Fill" else 0]
        shape = graph.tensors[source].shape
        if source in found:
            found[op.outputs[0]] = found[source]
        elif shape is not None and math.prod(shape) == 1:
            found[op.outputs[0]] = source
    return found


def _number_for(op_id: int, place: int, graph: StepGraph, numbers: dict[int, int]) -> int | None:
    """What an op may read in place of a tensor that is one number all over."""
    op = graph.ops[op_id]
    if place not in _BROADCASTING.get(op.type, ()) or graph.folding.computed[op_id]:
        return None
    if op.type == "AddN" and len(op.inputs) != 2:
        return None
    made, read = graph.tensors[op.outputs[0]], graph.tensors[op.inputs[place]]
    number = numbers.get(read.id)
    beside = (t for t in op.inputs if t != read.id and t not in numbers)
    whole = any(graph.tensors[t].shape == made.shape for t in beside)
    if number is None or math.prod(read.shape or ()) == 1 or not whole:
        return None
    return number if len(graph.tensors[number].shape or ()) <= len(made.shape or ()) else None
