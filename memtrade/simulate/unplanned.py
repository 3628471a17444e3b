"""The order in which TensorFlow runs a step that no plan puts in order, on one executor thread.

As its executor does it: of the ops that become ready with the end of one, the cheap ones (which
hand on a buffer or a shape) go on at once, and one other with them, if no cheap one is left; the
others go on top of a stack, from which the thread takes the next when it has nothing to go on with.

    group ─► identity of dx    the input's gradient goes on the stack ...
          └► identity of dw ─► update       ... and is taken from it once the update has run

Constants and inputs come before all else. What the step as it came gathers (Keras's optimizers hand
all gradients through one IdentityN, which waits for the last of them) is read no earlier than that.
With more threads the order is another from run to run.

Before that the runtime computes what is made of constants alone, which are constants then, and
merges what is computed twice: stateless ops of one definition on the same inputs (each branch's own
ReLU of a block's input), but not an op in a function's body with one outside, which reads the same
through fewer Identities. Control edges that hold a plan's order keep ops apart, so only a step
without one is merged. Loops run as loops (`memtrade.iterations`). O(ops + edges).
"""

from collections import deque
from collections.abc import Hashable, Mapping

from memtrade.graph import Op, StepGraph, once_per_graph
from memtrade.iterations import Stands, places_of, stands_of
from memtrade.op_types import ALIAS_TYPES, READ_TYPES, SOURCE_TYPES

# Ops whose kernels call themselves inexpensive.
_CHEAP = ALIAS_TYPES | READ_TYPES | SOURCE_TYPES | {"Rank", "Shape", "ShapeN", "Size"}


# For each op those that wait for it, and for how many it waits.
Edges = tuple[list[list[int]], list[int]]

# What the runtime leaves apart even where it computes the same.
_APART = frozenset({"NoOp", "Placeholder", "VarHandleOp"})


@once_per_graph
def merged_tensors(graph: StepGraph) -> dict[int, int]:
    """The outputs of ops that are computed twice, and the tensors that stand for them."""
    first: dict[Hashable, Op] = {}
    same: dict[int, int] = {}
    places = places_of(graph)
    for op in graph.ops:
        if op.stateful or op.type in _APART or not op.outputs:
            continue
        definition = _definition(op, graph)
        if definition is None:
            continue
        inputs = tuple(same.get(t, t) for t in op.inputs)
        # Constants are computed before functions are opened.
        between = () if graph.folded[op.id] else tuple(op.attrs.get("identities", ()))
        turns = [place[:2] for place in places.get(op.id, ())]  # each iteration computes its own
        one = first.setdefault((definition, inputs, between, op.controls, *turns), op)
        if one is not op:
            same.update(zip(op.outputs, one.outputs, strict=True))
    return same


def _definition(op: Op, graph: StepGraph) -> Hashable:
    """Equal for ops that compute the same of the same inputs; None where that is not known."""
    if op.node >= 0:
        return op.node
    made = tuple((graph.tensors[t].dtype, graph.tensors[t].shape) for t in op.outputs)
    if op.type == "Const":
        values = graph.data.values.get(op.outputs[0])
        one = graph.data.equal.get(op.outputs[0], op.outputs[0])
        return (op.type, one) if values is None else (made, values)
    if op.type in ALIAS_TYPES:
        return op.type, made, repr(sorted(op.attrs.items()))
    return None


@once_per_graph
def executor_order(graph: StepGraph) -> list[int]:
    """Op ids in the order in which they run."""
    same = merged_tensors(graph)
    gone = {graph.tensors[t].op for t in same}
    gone |= {op.id for op in graph.ops if graph.folded[op.id] and op.type != "Const"}
    reads = [
        {graph.tensors[same.get(t, t)].op for t in op.inputs} - gone
        if op.id not in gone
        else set[int]()
        for op in graph.ops
    ]
    order = _order(graph, _edges(graph, same, gone, reads, stands_of(graph, reads)), gone)
    if len(order) < len(graph.ops) - len(gone):  # names that only look like a loop's
        order = _order(graph, _edges(graph, same, gone, reads, Stands([], [])), gone)
    return order


def _order(graph: StepGraph, edges: Edges, gone: set[int]) -> list[int]:
    """As many ops as do not wait for each other."""
    successors, waiting = edges
    order: list[int] = []
    cheap_ops = [op.type in _CHEAP for op in graph.ops]
    cheap_ops += [True] * (len(successors) - len(cheap_ops))  # stands

    def run(op_id: int) -> list[int]:
        """The ops that become ready with it."""
        if op_id < len(graph.ops):
            order.append(op_id)
        ready = []
        for successor in successors[op_id]:
            waiting[successor] -= 1
            if not waiting[successor]:
                ready.append(successor)
        return ready

    stack: list[int] = []
    for root in [each for each, waits in enumerate(waiting) if not waits and each not in gone]:
        cheap = deque([root])
        while cheap:
            for ready in run(cheap.popleft()):
                (cheap if cheap_ops[ready] else stack).append(ready)
    while stack:
        at_once = deque([stack.pop()])
        while at_once:
            dear = []
            for ready in run(at_once.popleft()):
                (at_once if cheap_ops[ready] else dear).append(ready)
            if dear and not at_once:
                at_once.append(dear.pop())
            stack.extend(dear)
    return order


def _edges(
    graph: StepGraph,
    same: Mapping[int, int],
    gone: set[int],
    reads: list[set[int]],
    stands: Stands,
) -> Edges:
    """For each op, and each stand after them, those that wait for it, its readers first, and for
    how many it waits itself. Ops that are `gone` have neither."""
    stands_for = {graph.tensors[t].op: graph.tensors[one].op for t, one in same.items()}
    before = [
        read | {stands_for.get(c, c) for c in op.controls} - gone if op.id not in gone else set()
        for read, op in zip(reads, graph.ops, strict=True)
    ]
    for group in graph.data.gathered:
        producers = {graph.tensors[same.get(t, t)].op for t in group}
        if not producers.isdisjoint(graph.descendants):
            ahead = _leading_to(graph, producers)
            for reader in {c for t in group for c in graph.consumers[t]} - ahead - gone:
                before[reader] |= producers - gone  # a gradient of constants alone is there
    for op_id, stand in stands.readers:
        if op_id not in gone:
            before[op_id].add(stand)
    before += [waits - gone for waits in stands.waits]
    reads = reads + [set[int]() for _ in stands.waits]
    successors: list[list[int]] = [[] for _ in before]
    for edges in (reads, [waits - read for waits, read in zip(before, reads, strict=True)]):
        for op_id, waits in enumerate(edges):
            for producer in sorted(waits):
                successors[producer].append(op_id)
    return successors, [len(each) for each in before]


def _leading_to(graph: StepGraph, ops: set[int]) -> set[int]:
    """`ops` and all that they wait for."""
    seen = set(ops)
    for op in reversed(graph.ops):
        if op.id in seen:
            seen.update(graph.tensors[t].op for t in op.inputs)
            seen.update(op.controls)
    return seen
