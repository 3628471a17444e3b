"""Where a forward pass can be cut, and which cuts to take.

A frontier is what a position of the forward pass hands over: the tensors from the batch that are
made before it and read after it. With a frontier kept, all after it can be recomputed without
anything before it. One tensor alone is a bottleneck (an articulation point of the graph, which
OpenAI's gradient-checkpointing looks for); networks with long skip connections have only wider
frontiers. Between two frontiers lies a segment, whose activations come back together.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memtrade.facts.calls import call_scratch_bytes
from memtrade.graph import StepGraph
from memtrade.strategies.base import worth_deciding
from memtrade.strategies.milp import Floats

# What a side path may carry past a bottleneck: partial losses and counters, never activations.
SIDE_BYTES = 64

# The dynamic program compares pairs of frontiers, so it looks at no more than this many.
MAX_FRONTIERS = 400


@dataclass(frozen=True)
class Frontier:
    """The tensors that are alive just after op `op`, in forward order, and their bytes."""

    op: int
    tensors: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Cut:
    """A choice of frontiers and what it comes to.

    Attributes:
        checkpoints: the tensors of the frontiers, each once, in forward order.
        checkpoint_bytes: of all of them together.
        backward_bytes: the most that the backward part holds at once: a segment's activations
            and, if checkpoints stay on the device, those before it.
    """

    checkpoints: tuple[int, ...]
    checkpoint_bytes: int
    backward_bytes: int


def frontiers(graph: StepGraph, *, wide: bool = False) -> list[Frontier]:
    """The narrow places of the forward pass: frontiers smaller than those around them; `wide`: all
    places, however much they hand over.

    In the order of creation, each tensor that comes from the batch is alive from its producer to
    its last forward reader. Tensors that come from weights alone (regularization) and scalars do
    not count. O(ops + edges).
    """
    last_read = _last_forward_reads(graph)
    changes: dict[int, tuple[list[int], list[int]]] = {}  # op -> (tensors that end, that begin)
    for t, last in last_read.items():
        changes.setdefault(last, ([], []))[0].append(t)
        changes.setdefault(graph.tensors[t].op, ([], []))[1].append(t)
    places: list[Frontier] = []
    alive: dict[int, None] = {}
    size_bytes = 0
    for op_id, (ending, beginning) in sorted(changes.items()):
        for t in ending:
            del alive[t]
            size_bytes -= graph.tensors[t].size_bytes
        for t in beginning:
            alive[t] = None
            size_bytes += graph.tensors[t].size_bytes
        places.append(Frontier(op_id, tuple(sorted(alive)), size_bytes))
    sizes = [float("inf"), *(place.size_bytes for place in places), float("inf")]
    narrow = [
        place
        for i, place in enumerate(places)
        if place.tensors and (wide or place.size_bytes <= min(sizes[i], sizes[i + 2]))
    ]
    return _thin(narrow)


def _last_forward_reads(graph: StepGraph) -> dict[int, int]:
    """For each tensor that comes from the batch, its last forward reader."""
    from_batch = set(graph.batch)
    last_read: dict[int, int] = {}
    for op_id in sorted(graph.forward):
        op = graph.ops[op_id]
        if any(t in from_batch for t in op.inputs):
            from_batch.update(op.outputs)
        for t in op.inputs:
            root = graph.root[t]
            if t in from_batch and graph.is_intermediate(root):
                last_read[root] = op_id
    return {t: last for t, last in last_read.items() if graph.tensors[t].size_bytes > SIDE_BYTES}


def _thin(found: list[Frontier]) -> list[Frontier]:
    """At most MAX_FRONTIERS, the narrowest of each stretch."""
    step = max(1, -(-len(found) // MAX_FRONTIERS))
    stretches = [found[i : i + step] for i in range(0, len(found), step)]
    return [min(stretch, key=lambda f: (f.size_bytes, f.op)) for stretch in stretches]


def cuts(graph: StepGraph, *, resident: bool, wide: bool = False) -> list[Cut]:
    """Choices of frontiers, each the one with the smallest checkpoints for its backward bytes.

    When the backward part comes to a segment, the checkpoints behind it are no longer needed, so
    early segments may be larger than late ones. For each limit on the backward bytes, by dynamic
    programming over the frontiers,

        cost(j) = min over i of cost(i) + bytes that frontier j adds to those before it,
        over the segments (i, j) with cost(i) + activations(i, j) + gradients(i, j) <= limit

    where cost(i) does not count towards the limit unless the checkpoints are `resident`, and the
    gradients are two of the segment's largest size (an op's incoming and outgoing one), or one and
    what a compiled call takes for itself. What is alive at j and was made before i is alive at i
    too, so the sum counts each tensor once.
    O(frontiers^2) for each of some 50 limits. Assumes that a segment's activations are all there
    at once, which is a little too many.
    """
    chain = _Chain(graph, resident, wide)
    found: dict[tuple[int, ...], Cut] = {}
    for limit in chain.limits():
        cut = chain.cheapest(limit)
        if cut is not None and cut.checkpoints:
            found.setdefault(cut.checkpoints, cut)
    return sorted(found.values(), key=lambda cut: (cut.backward_bytes, cut.checkpoints))


class _Chain:
    """The frontiers with running sums, for the dynamic program.

    Node 0 is the start of the forward pass, node j the j-th frontier, the last node the end.
    """

    def __init__(self, graph: StepGraph, resident: bool, wide: bool):
        self.graph, self.resident = graph, resident
        self.frontiers = frontiers(graph, wide=wide)
        activations = worth_deciding(graph)
        producers = [graph.tensors[t].op for t in activations]
        sizes = [graph.tensors[t].size_bytes for t in activations]
        sums = [0, *itertools.accumulate(sizes)]
        self.total = sums[-1]
        ends = [0, *(bisect_right(producers, f.op) for f in self.frontiers), len(activations)]
        largest = [0] + [max(sizes[a:b], default=0) for a, b in itertools.pairwise(ends)]
        scratch = self._scratch(activations, ends)
        # Beside the activations between each node and the one before it.
        self.beside = [max(2 * a, a + b) for a, b in zip(largest, scratch, strict=True)]
        self.whole = self.total + max(scratch)
        # Bytes of the activations made up to each node.
        self.made = [0, *(sums[bisect_right(producers, f.op)] for f in self.frontiers), self.total]
        nodes = range(len(self.made))
        self.added = [self._added_to(j) for j in nodes]
        # What a segment (i, j) holds in the backward part.
        self.segments = [self._segments_to(j) for j in nodes]

    def _scratch(self, activations: Sequence[int], ends: Sequence[int]) -> list[int]:
        """For each node, the most that a backward call takes which reads what lies before it."""
        graph = self.graph
        position = {t: i for i, t in enumerate(activations)}
        most = [0] * len(ends)
        for op_id in graph.backward:
            op = graph.ops[op_id]
            taken = call_scratch_bytes(op, graph)
            if not taken:
                continue
            read = [position[graph.root[t]] for t in op.inputs if graph.root[t] in position]
            if read:
                node = bisect_right(ends, max(read))
                most[node] = max(most[node], taken)
        return most

    def limits(self) -> list[int]:
        """Limits worth trying: every 5% from the largest single segment to the whole step."""
        nodes = range(1, len(self.made))
        limit = max(self.made[j] - self.made[j - 1] + self.beside[j] for j in nodes)
        found = []
        while 0 < limit < self.whole:
            found.append(limit)
            limit = limit * 21 // 20 + 1
        return found

    def cheapest(self, limit: int) -> Cut | None:
        nodes = len(self.made)
        cost = np.full(nodes, math.inf)
        cost[0] = 0.0
        previous = [0] * nodes
        for j in range(1, nodes):
            segments, added = self.segments[j], self.added[j]
            through = np.where(segments <= limit, cost[:j] + added, math.inf)
            if self.resident:
                through[cost[:j] + segments > limit] = math.inf
            nearest = j - 1 - int(through[::-1].argmin())  # of equals the shortest segment
            if through[nearest] < math.inf:
                cost[j], previous[j] = through[nearest], nearest
        if cost[-1] == math.inf:
            return None
        taken: list[Frontier] = []
        most, j = 0, nodes - 1
        while j > 0:
            i = previous[j]
            behind = int(cost[i]) if self.resident else 0
            beside = max(self.beside[i + 1 : j + 1])
            most = max(most, behind + self.made[j] - self.made[i] + beside)
            j = i
            if j > 0:
                taken.append(self.frontiers[j - 1])
        tensors = sorted({t for f in taken for t in f.tensors})
        return Cut(tuple(tensors), self.graph.bytes_of(tensors), most)

    def _segments_to(self, j: int) -> Floats:
        beside = np.maximum.accumulate(self.beside[j:0:-1])[::-1]
        return np.array([self.made[j] - made for made in self.made[:j]], float) + beside

    def _added_to(self, j: int) -> Floats:
        """For each node before frontier j, bytes of its tensors that are made after that node. The
        end keeps nothing."""
        kept = self.frontiers[j - 1].tensors if 0 < j <= len(self.frontiers) else ()
        tensors = [self.graph.tensors[t] for t in kept]
        nodes = np.array([-1, *(f.op for f in self.frontiers)])[:j, None]
        after = np.array([t.op for t in tensors]) > nodes
        return after.astype(float) @ np.array([t.size_bytes for t in tensors], float)


def useful(graph: StepGraph, checkpoints: Sequence[int]) -> list[int]:
    """`checkpoints` without those that nothing is recomputed from.

    That is, without tensors that the backward part does not read and whose forward readers make
    nothing but checkpoints: nobody would hold them.
    """
    chosen, read = set(checkpoints), set(graph.activations)

    def feeds_a_clone(tensor: int) -> bool:
        return any(
            graph.root[output] not in chosen
            for reader in graph.readers(tensor)
            if reader in graph.forward
            for output in graph.ops[reader].outputs
            if graph.root[output] != tensor
        )

    return [t for t in checkpoints if t in read or feeds_a_clone(t)]
