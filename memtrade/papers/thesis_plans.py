"""What the thesis' tools did to a step: which tensors, and what waits for what. No TensorFlow.

checkpoints   OpenAI's gradient-checkpointing in mode "memory", by its own rule: bottlenecks are
              tensors that cut the forward pass in two; of B bottlenecks among N tensors that the
              gradients read, every ceil(B / sqrt(N))-th is kept. The segment before a checkpoint
              is recomputed once the checkpoint's gradient is there, all of it. For InceptionV4
              this gives eleven of the twelve checkpoints that the log of the thesis prints; the
              twelfth, the flattened features, has 0.2 MB.
ome           The same checkpoints, some of them swapped. For InceptionV4 the log prints which: the
              two that one forward op alone reads. For the ResNets it does not; there, those are
              swapped whose copies both ways fit between their uses, which is memtrade's own rule
              (`ome`, select "hidable") and comes to nearly all of them.
lms           IBM's TFLMS v1 with all tensors and lb 1, as the log says. It spares the outputs of
              some op types (`LMS_SPARES`), so the sums of a ResNet stay on the device, and copies
              a tensor back once for each gradient op that reads it (`fuse_swapins` is off). The
              op that starts a copy back is found by its chain rule.

The step itself is the original graph: clones and copies are tasks beside its ops, in no order but
that of what they read (`memtrade.simulate.executor`). The gates of memtrade's own gradients are
left out: `tf.gradients`, which the benchmark calls, makes none.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memtrade.graph import ALIAS_TYPES, READ_TYPES, SOURCE_TYPES, StepGraph
from memtrade.plan import Action
from memtrade.simulate.executor import Task

# OpenAI's MIN_CHECKPOINT_NODE_SIZE: a checkpoint has more elements than this.
SMALLEST_CHECKPOINT = 1024
# Ops whose outputs OpenAI's rule leaves out; it goes by their names.
NO_CHECKPOINTS = frozenset(
    {"FusedBatchNormV3", "L2Loss", "SoftmaxCrossEntropyWithLogits",
     "SparseSoftmaxCrossEntropyWithLogits"}
)  # fmt: skip
# TFLMS's ATOMIC_TYPES, as TensorFlow 2 names them.
LMS_SPARES = ALIAS_TYPES | SOURCE_TYPES | READ_TYPES | {"Add", "AddV2", "Mul", "Shape", "ShapeN"}
# FusedBatchNorm of TensorFlow 1 has no third output for its gradient.
LATER_OUTPUTS = frozenset({("FusedBatchNormV3", 5)})


class Step(NamedTuple):
    """A graph, and what both rules need of it.

    Attributes:
        trained: forward ops that descend from variables: what OpenAI's tool may run again.
    """

    graph: StepGraph
    trained: frozenset[int]

    @classmethod
    def of(cls, graph: StepGraph) -> Step:
        found: set[int] = set()
        for op in graph.ops:
            if op.id not in graph.forward or op.type in READ_TYPES:
                continue
            producers = [graph.tensors[t].op for t in op.inputs]
            if any(p in found or graph.ops[p].type in READ_TYPES for p in producers):
                found.add(op.id)
        return cls(graph, frozenset(found))

    def read_backward(self, tensor: int) -> list[int]:
        return [c for c in self.graph.consumers[tensor] if c in self.graph.backward]


# OpenAI's checkpoints


def checkpoints(step: Step) -> list[int]:
    """The tensors that OpenAI's mode "memory" keeps, in forward order."""
    considered = sorted(t for t in _considered(step) if step.read_backward(t))
    found = bottlenecks(step, considered)
    if len(found) < math.sqrt(len(considered)):
        found = bottlenecks(step, sorted(_considered(step)))
    root = math.sqrt(len(considered))
    if len(found) <= math.ceil(root):
        return found
    each = math.ceil(len(found) / root)
    return found[each::each]


def bottlenecks(step: Step, candidates: Iterable[int]) -> list[int]:
    """Those of `candidates` that no considered tensor passes by.

    The considered tensors that the ops up to the bottleneck read, and those that the ops behind it
    read, are different ones, and together they are all. O(candidates * ops).
    """
    graph, everything = step.graph, _considered(step)
    found = []
    for t in candidates:
        before = _walk(graph.tensors[t].op, lambda op_id: _producers(step, op_id))
        behind = _walk(graph.tensors[t].op, lambda op_id: _readers(step, op_id))
        behind.discard(graph.tensors[t].op)
        read_before = {i for op_id in before for i in graph.ops[op_id].inputs} & everything
        read_behind = {i for op_id in behind for i in graph.ops[op_id].inputs} & everything
        if not read_before & read_behind and len(read_before) + len(read_behind) == len(everything):
            found.append(t)
    return found


def _considered(step: Step) -> set[int]:
    """Large tensors of the trained part that something reads."""
    graph = step.graph
    logits = set(graph.ops[graph.turn].inputs)
    return {
        t
        for op_id in step.trained
        for t in graph.ops[op_id].outputs
        if graph.consumers[t]
        and math.prod(graph.tensors[t].shape or (0,)) > SMALLEST_CHECKPOINT
        and graph.ops[op_id].type not in NO_CHECKPOINTS
        and t not in logits
    }


def _walk(start: int, following) -> set[int]:
    seen, stack = {start}, [start]
    while stack:
        for op_id in following(stack.pop()):
            if op_id not in seen:
                seen.add(op_id)
                stack.append(op_id)
    return seen


def _producers(step: Step, op_id: int) -> Iterator[int]:
    graph = step.graph
    return (p for t in graph.ops[op_id].inputs if (p := graph.tensors[t].op) in step.trained)


def _readers(step: Step, op_id: int) -> Iterator[int]:
    graph = step.graph
    return (c for t in graph.ops[op_id].outputs for c in graph.consumers[t] if c in step.trained)


# Tasks


class Tasks:
    """Tasks by what they do; each waits for the tasks that were named."""

    def __init__(self, graph: StepGraph):
        self.graph = graph
        self._keys: dict[tuple, int] = {}
        self._actions: list[Action] = []
        self._after: list[dict[int, None]] = []

    def add(self, key: tuple, action: Action) -> None:
        self._keys[key] = len(self._actions)
        self._actions.append(action)
        self._after.append({})

    def wait(self, key: tuple, *others: tuple) -> None:
        self._after[self._keys[key]].update(dict.fromkeys(self._keys[other] for other in others))

    def finished(self) -> list[Task]:
        return [
            Task(action, tuple(after))
            for action, after in zip(self._actions, self._after, strict=True)
        ]


def original(step: Step) -> list[Task]:
    """The step as it is."""
    return _tasks(step, {}, frozenset()).finished()


def checkpointed(step: Step, kept: list[int], swapped: frozenset[int] = frozenset()) -> list[Task]:
    """All but `kept` is recomputed; of these, `swapped` wait for their segment on the host."""
    return _tasks(step, segments(step, kept), swapped, kept).finished()


def read_once(step: Step, kept: list[int]) -> frozenset[int]:
    """Those of `kept` that one forward op alone reads."""
    forward = step.graph.forward
    return frozenset(t for t in kept if sum(c in forward for c in _reading(step.graph, t)) == 1)


def _reading(graph: StepGraph, tensor: int) -> list[int]:
    """The ops that read a tensor or a view of it; views themselves do not count."""
    views = graph.views(graph.root[tensor])
    return [c for v in views for c in graph.consumers[v] if graph.ops[c].type not in ALIAS_TYPES]


def segments(step: Step, kept: list[int]) -> dict[int, int]:
    """The ops that are run again -> how many checkpoints lie before their segment.

    Where one op serves two segments (a projection beside a checkpoint), the later one runs it;
    OpenAI's tool would run it in both.
    """
    graph = step.graph
    roots = {graph.root[t] for t in kept}
    needed: set[int] = set()
    stack = [
        graph.tensors[t].op
        for op_id in graph.backward
        for t in graph.ops[op_id].inputs
        if graph.root[t] not in roots
    ]
    while stack:
        op_id = stack.pop()
        if op_id in needed or op_id not in step.trained or graph.ops[op_id].stateful:
            continue
        needed.add(op_id)
        stack += [
            graph.tensors[t].op for t in graph.ops[op_id].inputs if graph.root[t] not in roots
        ]
    ends = sorted(graph.tensors[root].op for root in roots)
    segment = {op_id: bisect_left(ends, op_id) for op_id in needed}
    for op_id in sorted(needed, reverse=True):
        for t in graph.ops[op_id].inputs:
            producer = graph.tensors[t].op
            if producer in needed and graph.root[t] not in roots:
                segment[producer] = max(segment[producer], segment[op_id])
    return segment


def _tasks(
    step: Step,
    segment: dict[int, int],
    swapped: frozenset[int],
    kept: Iterable[int] = (),
) -> Tasks:
    graph = step.graph
    tasks = Tasks(graph)
    roots = {graph.root[t]: t for t in swapped}
    stays = {graph.root[t] for t in kept}
    for op in graph.ops:
        tasks.add(("run", op.id), Action("run", op.id))
    for op_id in sorted(segment):
        tasks.add(("again", op_id), Action("recompute", op_id))
    for root in sorted(roots):
        tasks.add(("out", root), Action("swap_out", root))
        tasks.add(("in", root), Action("swap_in", root))

    def source(t: int, *, later: bool) -> tuple:
        """Where a reader gets tensor `t` from; `later`: behind the turn."""
        root, producer = graph.root[t], graph.tensors[t].op
        if later and root in roots and graph.tensors[root].op in graph.forward:
            return ("in", root)
        if later and producer in segment and root not in stays:
            return ("again", producer)
        return ("run", producer)

    for op in graph.ops:
        later = op.id in graph.backward
        tasks.wait(("run", op.id), *(source(t, later=later) for t in op.inputs))
        ungated = (c for c in op.controls if graph.ops[c].type != "NoOp")
        tasks.wait(("run", op.id), *(("run", c) for c in ungated))
    starts = _segment_starts(step, segment)
    for op_id, number in segment.items():
        inputs = graph.ops[op_id].inputs
        tasks.wait(("again", op_id), ("run", graph.turn), *starts[number])
        tasks.wait(("again", op_id), *(source(t, later=True) for t in inputs))
    for root in roots:
        tasks.wait(("out", root), ("run", graph.tensors[root].op))
        readers = [c for c in _reading(graph, root) if c in segment]
        number = max((segment[c] for c in readers), default=None)
        begin = starts[number] if number is not None else []
        tasks.wait(("in", root), ("out", root), ("run", graph.turn), *begin)
    return tasks


def _segment_starts(step: Step, segment: dict[int, int]) -> dict[int, list[tuple]]:
    """Segment -> the gradient ops that hand over to it: where the gradient of its end is made.

    A gradient op belongs to the first segment that it or what it descends from reads.
    """
    graph = step.graph
    last = max(segment.values(), default=0) + 1
    belongs: dict[int, int] = {}
    for op_id in sorted(graph.backward):
        producers = [graph.tensors[t].op for t in graph.ops[op_id].inputs]
        belongs[op_id] = min(
            (segment[p] if p in segment else belongs.get(p, last) for p in producers), default=last
        )
    starts: dict[int, set[int]] = defaultdict(set)
    for op_id, number in belongs.items():
        for t in graph.ops[op_id].inputs:
            producer = graph.tensors[t].op
            large = math.prod(graph.tensors[t].shape or (0,)) > SMALLEST_CHECKPOINT
            if large and belongs.get(producer, number) > number:
                starts[number].add(producer)
    return defaultdict(list, {n: [("run", p) for p in sorted(ops)] for n, ops in starts.items()})


# TFLMS


def large_model_support(step: Step) -> list[Task]:
    """Every tensor that TFLMS takes leaves, and comes back for each of its gradient ops."""
    graph = step.graph
    tasks = _tasks(step, {}, frozenset())
    depth = _depths(graph)
    for t in lms_tensors(step):
        tasks.add(("out", t), Action("swap_out", t))
        tasks.wait(("out", t), ("run", graph.tensors[t].op))
        for reader in step.read_backward(t):
            tasks.add(("in", t, reader), Action("swap_in", t))
            tasks.wait(("in", t, reader), ("out", t), ("run", graph.turn))
            trigger = _trigger(step, depth, t, reader)
            if trigger is not None:
                tasks.wait(("in", t, reader), ("run", trigger))
            tasks.wait(("run", reader), ("in", t, reader))
    return tasks.finished()


def lms_tensors(step: Step) -> list[int]:
    graph = step.graph
    return [
        t
        for op_id in sorted(graph.forward)
        for index, t in enumerate(graph.ops[op_id].outputs)
        if graph.ops[op_id].type not in LMS_SPARES
        and op_id != graph.turn
        and (graph.ops[op_id].type, index) not in LATER_OUTPUTS
        and step.read_backward(t)
    ]


def _depths(graph: StepGraph) -> list[int]:
    """Of each op, the most ops on a way to it."""
    depth = [0] * len(graph.ops)
    for op in graph.ops:
        depth[op.id] = max((depth[graph.tensors[t].op] + 1 for t in op.inputs), default=0)
    return depth


def _trigger(step: Step, depth: list[int], tensor: int, reader: int) -> int | None:
    """The gradient op that starts the copy for `reader`, by TFLMS's chain rule with lb 1.

    From the tensor's op one level forward, then on until gradient ops are found that lie before
    the reader; of these the last. Without any, the last one that the reader itself reads.
    """
    graph = step.graph
    level = {graph.tensors[tensor].op}
    first = True
    while level:
        consumers = {c for op_id in level for t in graph.ops[op_id].outputs
                     for c in graph.consumers[t]}  # fmt: skip
        found = [c for c in consumers if c in graph.backward and depth[c] < depth[reader]]
        if found and not first:
            return max(found, key=lambda c: (depth[c], c))
        first = False
        level = {c for c in consumers if c in graph.forward}
    read = [graph.tensors[t].op for t in graph.ops[reader].inputs]
    return max((p for p in read if p in graph.backward), default=None)
