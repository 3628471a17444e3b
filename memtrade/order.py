"""The order in which a step's ops run before anybody decides anything, and what follows from it.

    forward     as created, but small ops as soon as they can
    turn        the last forward op
    backward    as created; `schedule.lower` orders it anew for each choice

All of it depends on the graph alone, so it is worked out once, however many choices are lowered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from memtrade.errors import UnsupportedGraphError
from memtrade.facts.variables import reads_by_copying
from memtrade.facts.views import viewed
from memtrade.graph import StepGraph, once_per_graph
from memtrade.op_types import READ_TYPES

# An op whose outputs are all this small runs as soon as it can: shapes, moving averages, biases'
# gradients. They would otherwise hold the large tensors that they read.
SMALL_BYTES = 64 * 1024

_SUMS = frozenset({"Add", "AddN", "AddV2"})


@dataclass(frozen=True)
class GraphFacts:
    """What follows from a graph alone, and so is the same for all decisions on it.

    Attributes:
        order: see `base_order`. turn: the position of its last forward op.
        before, successors: see `_dependencies`. eager: see `_eager`. on_demand: see `_on_demand`.
        pending: for each backward op, the backward ops that it waits for.
        reads: for each op, the tensors that it reads. made_bytes: what it adds, but for what goes
            into a running sum at once.
        freed_bytes: for each root, what goes with its last reader.
        readers: for each root, how many backward ops read it.
        kept_by_default: see `_dropped`.
    """

    order: tuple[int, ...]
    turn: int
    before: list[set[int]]
    successors: list[list[int]]
    eager: list[bool]
    on_demand: set[int]
    pending: dict[int, int]
    reads: list[tuple[int, ...]]
    made_bytes: list[int]
    freed_bytes: list[int]
    readers: list[int]
    kept_by_default: set[int]


@once_per_graph
def facts_of(graph: StepGraph) -> GraphFacts:
    before, successors = _dependencies(graph)
    eager = _eager(graph)
    order = tuple(_ordered(graph, before, successors, eager))
    turn = max((i for i, op_id in enumerate(order) if op_id in graph.forward), default=-1)
    pending = dict.fromkeys(order[turn + 1 :], 0)
    readers = [0] * len(graph.tensors)
    parts = _parts_of_running_sums(graph)
    for op_id in order[turn + 1 :]:
        for successor in successors[op_id]:
            pending[successor] += 1
        for t in set(graph.ops[op_id].inputs):
            readers[graph.root[t]] += 1
    return GraphFacts(
        order=order,
        turn=turn,
        before=before,
        successors=successors,
        eager=eager,
        on_demand=_on_demand(graph),
        pending=pending,
        reads=[tuple(dict.fromkeys(op.inputs)) for op in graph.ops],
        made_bytes=[
            sum(
                graph.tensors[t].size_bytes
                for t in op.outputs
                if graph.root[t] == t and t not in parts and not graph.folded[op.id]
            )
            for op in graph.ops
        ],
        freed_bytes=[graph.is_intermediate(t.id) * t.size_bytes for t in graph.tensors],
        readers=readers,
        kept_by_default={
            graph.root[t.id]
            for t in graph.tensors
            if any(c not in graph.forward for c in graph.consumers[t.id])
        },
    )


def base_order(graph: StepGraph) -> list[int]:
    """The op ids in a memory-lean topological order, close to the order of creation.

    Three departures from the order of creation: what does not descend from the turn runs before
    it; small ops and those that feed only updates (weights' gradients) run as soon as they can,
    so that what they read is freed; an update waits for the readers of its variable, so that it
    happens in place. O(ops + edges).
    """
    return list(facts_of(graph).order)


def widest_order(graph: StepGraph) -> list[int]:
    """The op ids as threads without number would run them, each as soon as what it waits for has
    ended: branches run abreast, and all they hold is there at once. O(ops + edges)."""
    facts, depth = facts_of(graph), [0] * len(graph.ops)
    for op_id in facts.order:
        depth[op_id] = 1 + max((depth[each] for each in facts.before[op_id]), default=0)
    return sorted(range(len(depth)), key=depth.__getitem__)


def _ordered(
    graph: StepGraph,
    before: Sequence[set[int]],
    successors: Sequence[list[int]],
    eager: Sequence[bool],
) -> list[int]:
    pending = [len(each) for each in before]
    order: list[int] = []
    done = [False] * len(graph.ops)
    overdue = [False] * len(graph.ops)  # passed over because it waited for a control edge

    def run(first: int, turned: bool) -> None:
        stack = [first]
        while stack:
            op_id = stack.pop()
            done[op_id] = True
            order.append(op_id)
            ready = []
            for successor in successors[op_id]:
                pending[successor] -= 1
                soon = eager[successor] and (turned or successor not in graph.backward)
                if pending[successor] == 0 and (soon or overdue[successor]):
                    ready.append(successor)
            stack.extend(reversed(ready))

    before_turn = [op.id for op in graph.ops if op.id not in graph.backward]
    for turned, ops in ((False, before_turn), (True, sorted(graph.backward))):
        for op_id in ops:
            if done[op_id]:
                continue
            if pending[op_id] == 0:
                run(op_id, turned)
            else:
                overdue[op_id] = True
    if len(order) < len(graph.ops):
        stuck = graph.ops[done.index(False)]
        raise UnsupportedGraphError(f"op {stuck.name!r} waits for itself through control edges")
    return order


def _dependencies(graph: StepGraph) -> tuple[list[set[int]], list[list[int]]]:
    """For each op, the ops that it waits for, and the ops that wait for it."""
    before: list[set[int]] = [
        {graph.tensors[t].op for t in op.inputs} | set(op.controls) for op in graph.ops
    ]
    for update, readers in _variable_readers(graph).items():
        before[update].update(readers)
    successors: list[list[int]] = [[] for _ in graph.ops]
    for op_id, predecessors in enumerate(before):
        for predecessor in predecessors:
            successors[predecessor].append(op_id)
    return before, successors


def _variable_readers(graph: StepGraph) -> dict[int, list[int]]:
    """For each update, the earlier-created ops that read its variable's old value, or a view of
    it, which shares its buffer: a 1-D convolution reads its filter with a dimension more, a loop
    in Python its weights row by row."""
    reads: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for op in graph.ops:
        if op.type in READ_TYPES:
            reads.setdefault(op.inputs[0], []).append(op.outputs[0])
        elif op.stateful and not op.outputs:
            values = [value for t in op.inputs for value in reads.get(t, ())]
            readers[op.id] = [c for v in values for c in _readers(graph, v) if c < op.id]
    return readers


def _readers(graph: StepGraph, root: int) -> list[int]:
    """The ops that read a tensor, a view of it or rows that are cut out of it."""
    readers = graph.readers(root)
    cuts = [
        t for c in readers if viewed(graph.ops[c], graph) is not None for t in graph.ops[c].outputs
    ]
    return readers + [c for t in cuts if graph.root[t] == t for c in _readers(graph, t)]


def _eager(graph: StepGraph) -> list[bool]:
    eager = [False] * len(graph.ops)
    returned = set(graph.data.outputs)
    for op in reversed(graph.ops):
        small = graph.bytes_of(op.outputs) <= SMALL_BYTES
        into_updates = bool(op.outputs) and all(
            t not in returned
            and graph.consumers[t]
            and all(eager[c] and not graph.ops[c].outputs for c in graph.consumers[t])
            for t in op.outputs
        )
        eager[op.id] = (small and bool(op.inputs)) or into_updates
    return eager


def _parts_of_running_sums(graph: StepGraph) -> set[int]:
    """What backward ops add, one part after the other, to the sum of those before, as an unrolled
    loop does with its weights' gradients: with the sum a part is gone again."""
    sums = [
        op
        for op in graph.ops
        if op.type in _SUMS and len(op.inputs) == 2 and op.id in graph.backward
    ]
    links = {t for op in sums for t in op.inputs} & {op.outputs[0] for op in sums}
    running = [op for op in sums if not links.isdisjoint((*op.inputs, *op.outputs))]
    return {t for op in running for t in op.inputs if graph.consumers[t] == [op.id]} - links


def _on_demand(graph: StepGraph) -> set[int]:
    """Backward ops that could run before any gradient, and so must not: see StepGraph.backward.
    Of those with a state, reads that copy their variable."""
    return {
        op_id
        for op_id in graph.backward - graph.descendants
        if (not graph.ops[op_id].stateful or reads_by_copying(graph.ops[op_id], graph))
        and all(c in graph.backward for t in graph.ops[op_id].outputs for c in graph.consumers[t])
        and any(graph.consumers[t] for t in graph.ops[op_id].outputs)
    }
