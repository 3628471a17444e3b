"""The order in which TensorFlow runs a step that no plan puts in order, on one executor thread.

As its executor does it: of the ops that become ready with the end of one, the cheap ones (which
hand on a buffer or a shape) go on at once; the others go on top of a stack, from which the thread
takes the next when no cheap one is left.

    group ─► identity of dx    the input's gradient goes on the stack ...
          └► identity of dw ─► update       ... and is taken from it once the update has run

Constants and inputs come before all else. What the step as it came gathers (Keras's optimizers hand
all gradients through one IdentityN, which waits for the last of them) is read no earlier than that.
With more threads the order is another from run to run. It is from process to process, too: what
waits for nothing, the reads of variables for the most part, runs in an order that hangs on
addresses, each with all that hangs on it, so what lies on the stack runs while the forward pass
waits for its next weight. So do the turns in which oneDNN writes ops anew (`simulate.turns`). Where
it makes a convolution's filter gradient and its bias's in one kernel (`memtrade.kernel_pairs`), the
readers of a tensor go on the stack in any order.

Before that the runtime computes what is made of constants alone, which are constants then, and
merges what is computed twice: stateless ops of one definition on the same inputs (each branch's own
ReLU of a block's input), but not an op in a function's body with one outside, which reads the same
through fewer Identities. Control edges that hold a plan's order keep ops apart, so only a step
without one is merged. Loops run as loops (`memtrade.iterations`). O(ops + edges).
"""

import random
import sys
from collections import deque
from collections.abc import Container, Hashable, Iterator, Mapping
from types import MappingProxyType

from memtrade.graph import Op, StepGraph, once_per_graph
from memtrade.iterations import Stands, largest_sums, places_of, stands_of
from memtrade.op_types import ALIAS_TYPES, READ_TYPES, SOURCE_TYPES
from memtrade.simulate.turns import turns_of

# Ops whose kernels call themselves inexpensive.
_CHEAP = ALIAS_TYPES | READ_TYPES | SOURCE_TYPES | {"Rank", "Shape", "ShapeN", "Size"}


# The gradients of what a convolution, and a transposed one, reads.
_OF_THE_INPUT = frozenset({"Conv2D", "Conv2DBackpropInput"})

# For each op those that wait for it, and for how many it waits.
Edges = tuple[list[list[int]], list[int]]

_SOME = 12  # peaks of so many differ as much as those of forty, nearly
_FEW = 2  # of loops, beside the order that takes most as a rule
_OPS = 100_000  # of all those together, so that a large step is told of in seconds

_NO_PAIRS: Mapping[int, int] = MappingProxyType({})

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


def executor_order(
    graph: StepGraph,
    pairs: Mapping[int, int] = _NO_PAIRS,
    chance: random.Random | None = None,
    most_at_once: int = sys.maxsize,
    last: Container[int] = (),
    turns: Mapping[int, float] | None = None,
) -> list[int]:
    """Op ids in the order in which they run.

    Args:
        pairs: filter gradients -> the bias gradients that their kernels make, too.
        chance: decides what hangs on addresses; without it, all pairs stand behind the gradients of
            the inputs, and what waits for nothing runs first.
        most_at_once: of no loop run more iterations at once.
        last: ops that run when nothing else can.
        turns: of the readers of a tensor, where not by number. Unless given, `chance` decides.
    """
    same = merged_tensors(graph)
    stands_for = {graph.tensors[t].op: graph.tensors[one].op for t, one in same.items()}
    pairs = {g: bias for g, bias in pairs.items() if g not in stands_for and bias not in stands_for}
    stands_for |= {bias: gradient for gradient, bias in pairs.items()}
    gone = {*stands_for, *(op.id for op in graph.ops if _is_computed_before(op, graph))}
    reads = [
        {stands_for.get(p, p) for p in (graph.tensors[t].op for t in op.inputs)} - gone
        if op.id not in gone
        else set[int]()
        for op in graph.ops
    ]
    if turns is not None:
        places = turns
    elif chance:
        places = {op.id: chance.random() for op in graph.ops}
    else:
        places = _before_siblings(graph, pairs)
    for stands in (stands_of(graph, reads, most_at_once), Stands([], [])):
        edges = _edges(graph, stands_for, gone, reads, stands, places)
        order = _order(graph, edges, gone, chance, last)
        if len(order) == len(graph.ops) - len(gone):  # or names only look like a loop's
            break
    return [each for op_id in order for each in (op_id, pairs.get(op_id, -1)) if each >= 0]


def other_orders(
    graph: StepGraph, pairs: Mapping[int, int], *, onednn: bool
) -> Iterator[list[int]]:
    """Some of the orders that it may have in other processes, the same ones each time.

    Of filter gradients that may run before or behind the input's, all run at once in one, and as
    late as they can in half of the others, which hold what they read.
    """
    if pairs:
        yield executor_order(graph, pairs)
        yield executor_order(graph, pairs, turns=dict.fromkeys(pairs, len(graph.ops)))
        yield executor_order(graph, pairs, last=pairs)
        for seed in range(_SOME):
            last = pairs if seed % 2 else ()
            yield executor_order(graph, pairs, random.Random(seed), last=last)
    loops = places_of(graph)
    if loops:
        yield executor_order(graph, pairs, most_at_once=1)
        last = largest_sums(graph)
        yield executor_order(graph, pairs, last=last)
        for seed in range(_FEW):
            yield executor_order(graph, pairs, random.Random(seed), last=last)
    some = max(_FEW, min(_SOME, _OPS // len(graph.ops)))
    for seed in range(_FEW if loops else some):
        chance = random.Random(seed)
        turns = turns_of(graph, chance) if onednn else {}
        yield executor_order(graph, pairs, chance, turns=turns)


@once_per_graph
def usual_order(graph: StepGraph) -> list[int]:
    """`executor_order` where no pair is made in one kernel."""
    return executor_order(graph)


def _is_computed_before(op: Op, graph: StepGraph) -> bool:
    return graph.folded[op.id] and op.type != "Const"


def _before_siblings(graph: StepGraph, pairs: Mapping[int, int]) -> dict[int, float]:
    """Where filter gradients that are merged with a bias's stand among the readers of what they
    read: before the input's gradient, which oneDNN's pass over the graph puts anew behind them."""
    places: dict[int, float] = {}
    for gradient in pairs:
        op = graph.ops[gradient]
        if op.type != "Conv2DBackpropFilter":
            continue
        read = max(op.inputs[0], op.inputs[-1], key=lambda t: graph.tensors[t].op)
        for reader in graph.consumers[read]:
            if graph.ops[reader].type in _OF_THE_INPUT:
                places[op.id] = min(reader - 0.5, places.get(op.id, op.id))
    return places


def _order(
    graph: StepGraph,
    edges: Edges,
    gone: set[int],
    chance: random.Random | None,
    last: Container[int],
) -> list[int]:
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

    stack: deque[int] = deque()

    def take(op_id: int) -> None:
        """Runs it, and the cheap ops that become ready; the others go on top of the stack."""
        cheap = deque([op_id])
        while cheap:
            for ready in run(cheap.popleft()):
                if ready in last:
                    stack.appendleft(ready)
                else:
                    (cheap if cheap_ops[ready] else stack).append(ready)

    roots = [each for each, waits in enumerate(waiting) if not waits and each not in gone]
    if chance:
        chance.shuffle(roots)
    for root in roots:
        take(root)
        while chance and stack:
            take(stack.pop())
    while stack:
        take(stack.pop())
    return order


def _edges(
    graph: StepGraph,
    stands_for: Mapping[int, int],
    gone: set[int],
    reads: list[set[int]],
    stands: Stands,
    places: Mapping[int, float],
) -> Edges:
    """For each op, and each stand after them, those that wait for it, its readers first, and for
    how many it waits itself. Ops that are `gone` have neither. `places`: where not by number."""
    before = [
        read | {stands_for.get(c, c) for c in op.controls} - gone if op.id not in gone else set()
        for read, op in zip(reads, graph.ops, strict=True)
    ]
    for group in graph.data.gathered:
        producers = {stands_for.get(p, p) for p in (graph.tensors[t].op for t in group)}
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
    turns = sorted(range(len(before)), key=lambda op_id: places.get(op_id, op_id))
    for edges in (reads, [waits - read for waits, read in zip(before, reads, strict=True)]):
        for op_id in turns:
            for producer in sorted(edges[op_id]):
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
