"""A training step as a graph of few nodes, for planners that look at every node in every stage.

    forward nodes     the large tensors of one op, or a group of ops' tensors; may be recomputed
    backward nodes    stretches of backward ops; run once, hold their gradients

A forward tensor that is only there for the next op, which writes its result over it (a batch
normalization's in front of its ReLU), belongs to that op's node. Node i runs in stage i.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from memtrade.facts import reuse
from memtrade.graph import StepGraph, reached
from memtrade.plan import Action
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import MIN_ELEMENTS, worth_deciding
from memtrade.strategies.baselines.chain import Chain
from memtrade.strategies.baselines.dag import Dag, Recomputation
from memtrade.strategies.baselines.stages import BackwardStage, droppable, emit, phases
from memtrade.strategies.milp import Floats

# The size from which strategies decide, in elements of 4 bytes.
_LARGE_BYTES = 4 * MIN_ELEMENTS


@dataclass(frozen=True)
class Node:
    """Attributes:
    ops: that run for the first time in this node's stage.
    tensors: root tensors that it makes and that may be held; none for a backward node.
    """

    ops: tuple[int, ...]
    tensors: tuple[int, ...] = ()


def nodes_of_ops(graph: StepGraph) -> list[Node]:
    """One node for each op with large outputs."""
    may_drop = droppable(graph)
    large = set(worth_deciding(graph)) | {
        t for t in may_drop if graph.tensors[t].size_bytes >= _LARGE_BYTES
    }
    forward, backward = phases(graph, worth_deciding(graph))
    nodes: list[Node] = []
    ops: list[int] = []
    for op_id in forward:
        ops.append(op_id)
        made = [t for t in graph.ops[op_id].outputs if t in large and t in may_drop]
        if made and not all(_is_overwritten(graph, t, may_drop) for t in made):
            nodes.append(Node(tuple(ops), tuple(made)))
            ops = []
    nodes.append(Node(tuple(ops)))  # the loss, which need not come again
    return nodes + _backward_nodes(graph, backward, {t for node in nodes for t in node.tensors})


def _backward_nodes(graph: StepGraph, backward: Sequence[int], tensors: set[int]) -> list[Node]:
    """A node begins where an op reads a forward node's tensor that no earlier op has read."""
    nodes: list[Node] = []
    ops: list[int] = []
    read: set[int] = set()
    for op_id in backward:
        new = tensors.intersection(graph.root[t] for t in graph.ops[op_id].inputs) - read
        if new and ops:
            nodes.append(Node(tuple(ops)))
            ops = []
        read |= new
        ops.append(op_id)
    return [*nodes, Node(tuple(ops))] if ops else nodes


def _is_overwritten(graph: StepGraph, tensor: int, may_drop: frozenset[int]) -> bool:
    """Whether the only reader of a forward tensor, views apart, is an op that writes its output
    over it."""
    views = set(graph.views(tensor))
    readers = {c for c in graph.readers(tensor) if views.isdisjoint(graph.ops[c].outputs)}
    if len(readers) != 1:
        return False
    op = graph.ops[min(readers)]
    return (
        op.id in graph.forward
        and reuse().tried.get(op.type) is not None
        and op.outputs[0] in may_drop
        and graph.tensors[op.outputs[0]].size_bytes == graph.tensors[tensor].size_bytes
    )


def nodes_of_chain(chain: Chain) -> list[Node]:
    """For each segment a node for what is made in it and one for the frontier at its end."""
    graph = chain.graph
    position = {op_id: i for i, op_id in enumerate(chain.forward_ops)}
    ends = [*map(frozenset, chain.nodes[1:]), frozenset[int]()]
    groups: list[list[int]] = []
    for segment, end in zip(chain.segments, ends, strict=True):
        # In the order in which they are made, so that no two groups need each other.
        in_order = sorted(segment.stash, key=lambda t: (position[graph.tensors[t].op], t))
        groups += [list(own) for _, own in itertools.groupby(in_order, end.__contains__)]
    nodes: list[Node] = []
    start = 0
    for group in groups:
        end = max(start, *(position[graph.tensors[t].op] + 1 for t in group))
        nodes.append(Node(tuple(chain.forward_ops[start:end]), tuple(group)))
        start = end
    nodes.append(Node(tuple(chain.forward_ops[start:])))
    return nodes + [Node(segment.backward_ops) for segment in reversed(chain.segments)]


class NodeGraph:
    """The nodes with their costs, and programs from schedules of them."""

    def __init__(self, times: TimeSimulator, nodes: Sequence[Node]):
        self.graph, self.times = times.graph, times
        self.nodes = [node for node in nodes if node.ops]
        self.droppable = droppable(self.graph)
        self.node_of = {t: i for i, node in enumerate(self.nodes) for t in node.tensors}
        self.stage_of = {op_id: i for i, node in enumerate(self.nodes) for op_id in node.ops}

    @cached_property
    def dag(self) -> Dag:
        """Costs in seconds, sizes in bytes besides what always is (`always_bytes`)."""
        closures = [self._closure(i) for i in range(len(self.nodes))]
        edges = [(u, v) for v, (_, parents) in enumerate(closures) for u in parents]
        dag = Dag.of(
            [sum(self.times.op_seconds[op_id] for op_id in ops) for ops, _ in closures],
            [self._size(i) for i in range(len(self.nodes))],
            edges,
            once=[not node.tensors for node in self.nodes],
        )
        return replace(dag, scratch=self._scratch(dag))

    @cached_property
    def _in_use(self) -> list[int]:
        """Along the step in which everything is kept."""
        actions = [Action("run", op_id) for node in self.nodes for op_id in node.ops]
        return self.times.simulator.live_bytes(actions)

    @property
    def always_bytes(self) -> int:
        return min(self._in_use)

    def program(self, schedule: Recomputation) -> tuple[Action, ...]:
        count = len(self.nodes)
        waiting = self._waiting()
        stages: list[BackwardStage] = []
        for t, node in enumerate(self.nodes):
            held = schedule.held[t + 1] if t + 1 < count else [False] * count
            rebuild = [
                tensor
                for i in range(t)
                if schedule.runs[t, i] and held[i]
                for tensor in self.nodes[i].tensors
            ]
            retained = {tensor for i in range(t + 1) if held[i] for tensor in self.nodes[i].tensors}
            retained.update(tensor for tensor, last in waiting if last > t)
            stages.append(BackwardStage(node.ops, rebuild, retained))
        return emit(self.graph, stages)

    def _waiting(self) -> list[tuple[int, int]]:
        """Forward tensors of no node, and the last forward stage that reads each."""
        found: list[tuple[int, int]] = []
        for t in sorted(self.droppable.difference(self.node_of)):
            readers = [self.stage_of[c] for c in self.graph.readers(t) if c in self.graph.forward]
            if readers:
                found.append((t, max(readers)))
        return found

    def _closure(self, i: int) -> tuple[list[int], list[int]]:
        """The ops that run when node `i` does, and the nodes whose outputs they read."""
        graph, node = self.graph, self.nodes[i]
        forward_ops = [graph.tensors[t].op for t in node.tensors]
        parents: set[int] = set()

        def again(op_id: int) -> Iterator[int]:
            for root in (graph.root[t] for t in graph.ops[op_id].inputs):
                producer = graph.tensors[root].op
                if root in self.node_of:
                    parents.add(self.node_of[root])
                elif root in self.droppable:
                    yield producer
                elif producer in graph.backward:
                    parents.add(self.stage_of[producer])

        return sorted(reached(forward_ops or node.ops, again)), sorted(parents - {i})

    def _size(self, i: int) -> int:
        """Bytes of what node `i` makes; of a backward node, of what later nodes read of it."""
        graph, node = self.graph, self.nodes[i]
        if node.tensors:
            return graph.bytes_of(node.tensors)
        return sum(
            graph.tensors[t].size_bytes
            for op_id in node.ops
            for t in graph.ops[op_id].outputs
            if graph.root[t] == t and any(self.stage_of[c] > i for c in graph.readers(t))
        )

    def _scratch(self, dag: Dag) -> Floats:
        """What each node takes while it runs besides its own and the others' outputs. Below zero
        where they are not all there at once: a gradient that takes its predecessor's place."""
        last = np.array([max(readers, default=i) for i, readers in enumerate(dag.readers)])
        ends = np.cumsum([0, *(len(node.ops) for node in self.nodes)])
        most = np.array([max(self._in_use[a:b]) for a, b in itertools.pairwise(ends)])
        others = [dag.sizes[:i][last[:i] >= i].sum() for i in range(len(dag))]
        return most - self.always_bytes - others - dag.sizes
