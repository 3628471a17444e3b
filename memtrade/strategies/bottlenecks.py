"""OpenAI's gradient-checkpointing as the tool does it: which tensors, and when what is run again.

After T. Salimans and Y. Bulatov, gradient-checkpointing (2018), mode "memory":

    candidates   the tensors that the gradients read; a bottleneck is one that no considered tensor
                 passes by. If they are few, any considered tensor may be one
    every k-th   of B bottlenecks among N candidates every ceil(B / sqrt(N))-th is kept, from the
                 k-th on
    segments     what lies between two checkpoints is run again as a whole, once the gradient of
                 its end is there; behind the last one, once the loss is

    forward  ── a ══ b ── c ══ d ── loss            ══ checkpoint
    backward    loss ─► [loss again] d' ─► [c, d again] b' ─► [a, b again] ...

Considered are tensors of more than 1,024 elements that descend from weights. The tool leaves some
out by their names (batch norm, losses, dropout); here it goes by op types. Where one op serves two
segments (a projection beside a checkpoint), the later one runs it; the tool runs it in both.
"""

import itertools
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph, reached
from memtrade.op_types import READ_TYPES
from memtrade.plan import CHECKPOINT, Action, Fate
from memtrade.schedule import lower
from memtrade.strategies.base import MIN_ELEMENTS

# Ops whose outputs are not considered.
_PASSED_OVER = frozenset(
    {"FusedBatchNormV3", "L2Loss", "SoftmaxCrossEntropyWithLogits",
     "SparseSoftmaxCrossEntropyWithLogits"}
)  # fmt: skip


class Trained:
    """The part of a step that descends from its variables: all that the tool looks at.

    Attributes:
        ops: ids of the forward ops that descend from variables.
        considered: tensor ids.
    """

    def __init__(self, graph: StepGraph):
        self.graph = graph
        self.ops: set[int] = set()
        for op in graph.ops:
            if op.id in graph.forward and op.type not in READ_TYPES:
                producers = [graph.ops[graph.tensors[t].op] for t in op.inputs]
                if any(p.id in self.ops or p.type in READ_TYPES for p in producers):
                    self.ops.add(op.id)
        logits = set(graph.ops[graph.turn].inputs)
        self.considered = {
            t
            for op_id in sorted(self.ops)
            for t in graph.ops[op_id].outputs
            if graph.consumers[t]
            and math.prod(graph.tensors[t].shape or (0,)) > MIN_ELEMENTS
            and graph.ops[op_id].type not in _PASSED_OVER
            and t not in logits
        }

    def checkpoints(self) -> list[int]:
        """The tensors that are kept, in forward order. O(candidates * ops).

        Raises:
            UnsupportedGraphError: there is no bottleneck.
        """
        graph = self.graph
        gradients = graph.backward
        read = [t for t in sorted(self.considered) if not gradients.isdisjoint(graph.consumers[t])]
        root = math.sqrt(len(read))
        found = self.bottlenecks(read)
        if len(found) < root:
            found = self.bottlenecks(sorted(self.considered))
        if not found:
            raise UnsupportedGraphError(
                f"rule=openai finds no tensor that cuts {graph.name} in two: leave the rule out, "
                "or use mode=speed"
            )
        if len(found) <= math.ceil(root):
            return found
        each = math.ceil(len(found) / root)
        return found[each::each]

    def bottlenecks(self, candidates: Iterable[int]) -> list[int]:
        """Those that no considered tensor passes by: what the ops up to it read and what the ops
        behind it read are different tensors, and together all."""
        graph, found = self.graph, []
        for t in candidates:
            before = set(reached([graph.tensors[t].op], self._producers))
            behind = set(reached([graph.tensors[t].op], self._readers))
            behind.discard(graph.tensors[t].op)
            ahead = {i for op_id in before for i in graph.ops[op_id].inputs} & self.considered
            later = {i for op_id in behind for i in graph.ops[op_id].inputs} & self.considered
            if not ahead & later and len(ahead) + len(later) == len(self.considered):
                found.append(t)
        return found

    def _producers(self, op_id: int) -> Iterator[int]:
        made_by = (self.graph.tensors[t].op for t in self.graph.ops[op_id].inputs)
        return (p for p in made_by if p in self.ops)

    def _readers(self, op_id: int) -> Iterator[int]:
        graph = self.graph
        return (c for t in graph.ops[op_id].outputs for c in graph.consumers[t] if c in self.ops)

    def segments(self, roots: Sequence[int]) -> dict[int, int]:
        """The ops that are run again -> how many checkpoints lie before their segment."""
        graph = self.graph
        kept = set(roots)

        def again(op_id: int) -> Iterator[int]:
            for t in graph.ops[op_id].inputs:
                producer = graph.tensors[t].op
                dropped = graph.root[t] not in kept
                if dropped and producer in self.ops and not graph.ops[producer].stateful:
                    yield producer

        needed = set(reached(itertools.chain.from_iterable(map(again, graph.backward)), again))
        ends = sorted(graph.tensors[root].op for root in roots)
        segment = {op_id: bisect_left(ends, op_id) for op_id in sorted(needed)}
        for op_id in sorted(needed, reverse=True):
            for t in graph.ops[op_id].inputs:
                producer = graph.tensors[t].op
                if producer in needed and graph.root[t] not in kept:
                    segment[producer] = max(segment[producer], segment[op_id])
        return segment


def by_segments(
    graph: StepGraph, kept: Iterable[int], swapped: dict[int, str]
) -> tuple[list[Fate], tuple[Action, ...]]:
    """The decisions, and the program that carries them out.

    Args:
        kept: the checkpoints. swapped: those of them that wait on the host, and why.
    """
    roots = sorted({graph.root[t] for t in kept})
    segment = Trained(graph).segments(roots)
    fates = []
    for t in sorted({*roots, *graph.activations}):
        if t in swapped:
            fates.append(Fate(t, "swap", f"{CHECKPOINT}, {swapped[t]}"))
        elif t in roots:
            fates.append(Fate(t, "keep", CHECKPOINT))
        elif graph.tensors[t].op in segment:
            fates.append(Fate(t, "recompute", "between checkpoints"))
        else:
            fates.append(Fate(t, "keep", "its op does not descend from weights, or is stateful"))
    return fates, _program(graph, set(roots), segment, set(swapped))


def _program(
    graph: StepGraph, kept: set[int], segment: dict[int, int], swapped: set[int]
) -> tuple[Action, ...]:
    """The step's ops in memtrade's order, and each segment where the gradient of its end is."""
    members: dict[int, list[int]] = defaultdict(list)
    for op_id, number in sorted(segment.items()):
        members[number].append(op_id)
    made: list[Action] = []
    back: set[int] = set()  # swapped tensors that have come back
    again: set[int] = set()  # segments that have been run again

    def bring_back(tensor: int) -> None:
        """Whatever has to be there before a gradient op or a clone reads `tensor`."""
        root, producer = graph.root[tensor], graph.tensors[tensor].op
        if root in kept:
            if root in swapped and root not in back:
                back.add(root)
                made.append(Action("swap_in", root))
        elif producer in segment:
            run_again(segment[producer])

    def run_again(number: int) -> None:
        if number in again:
            return
        again.add(number)
        for op_id in members[number]:
            for t in graph.ops[op_id].inputs:
                bring_back(t)
            made.append(Action("recompute", op_id))

    starts, ran = _starts(graph, segment, len(kept)), set[int]()
    waiting = sorted(starts, reverse=True)
    for action in lower(graph, dict.fromkeys(graph.activations, "keep")):
        op = graph.ops[action.id]
        if op.id in graph.backward:
            while waiting and starts[waiting[0]] <= ran:
                run_again(waiting.pop(0))
            for t in op.inputs:
                bring_back(t)
        made.append(action)
        ran.add(op.id)
        made += [Action("swap_out", t) for t in sorted(swapped.intersection(op.outputs))]
    return tuple(made)


def _starts(graph: StepGraph, segment: dict[int, int], last: int) -> dict[int, set[int]]:
    """Segment -> the gradient ops that hand over to it: where the gradient of its end is made;
    behind the last checkpoint, the turn.

    A gradient op belongs to the first segment that it or what it descends from reads.
    """
    belongs: dict[int, int] = {}
    for op_id in sorted(graph.backward):
        producers = (graph.tensors[t].op for t in graph.ops[op_id].inputs)
        read = (segment.get(p, belongs.get(p, last)) for p in producers)
        belongs[op_id] = min(read, default=last)
    starts: dict[int, set[int]] = {last: {graph.turn}} if last in segment.values() else {}
    for op_id, number in belongs.items():
        for t in graph.ops[op_id].inputs:
            producer = graph.tensors[t].op
            large = math.prod(graph.tensors[t].shape or (0,)) > MIN_ELEMENTS
            if large and belongs.get(producer, number) > number:
                starts.setdefault(number, set()).add(producer)
    return starts
