"""Ops that oneDNN runs as one kernel, kept side by side so that it still can.

TensorFlow's CPU build merges the gradient of a convolution's filter with that of its bias, if both
read the same gradient and wait for the same ops:

    Conv2DBackpropFilter(x, shape, g)
    BiasAddGrad(g)                        ──► one kernel, which sums g in an order of its own

Apart, the bias's gradient would differ from the original's in its last bits. So would what a
convolution makes, which begins its sums with the bias on CPUs before AVX2:

    Conv2D(x, w)
    BiasAdd(conv, bias)                   ──► one kernel, if both wait for nothing but their inputs

(If both wait for the same op, TensorFlow ends the process.) And MaxPool leaves a workspace to its
gradient, if that reads the pool's own output:

    MaxPool(x) ──y, workspace──► MaxPoolGrad(x, y, g)

Where y comes back from the host, another kernel looks for the maxima again, and adds up what a
value gets from windows that overlap in another order (whether it does, depends on the CPU's
instructions and on the shape). The gradient reads x, too, so there the pool runs again instead.
"""

from collections.abc import Container, Mapping, Sequence

from memtrade.graph import StepGraph, once_per_graph
from memtrade.plan import Action

POOL_GRADIENTS = frozenset({"MaxPool3DGrad", "MaxPoolGrad"})

_RUNNING = ("run", "recompute")


@once_per_graph
def bias_gradients(graph: StepGraph) -> dict[int, int]:
    """For each filter gradient that has one, the bias gradient that is merged with it: op ids."""
    reads: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
    for op in graph.ops:
        if op.type in ("BiasAddGrad", "Conv2DBackpropFilter"):
            reads.setdefault((op.type, op.inputs[-1], op.controls), []).append(op.id)
    pairs = {}
    for (kind, gradient, controls), filters in reads.items():
        if kind == "Conv2DBackpropFilter":
            biases = reads.get(("BiasAddGrad", gradient, controls), [])
            pairs.update(zip(filters, biases, strict=False))
    return pairs


@once_per_graph
def biases(graph: StepGraph) -> dict[int, int]:
    """For each convolution that has one, the BiasAdd that is merged with it: op ids."""
    awaited = {control for op in graph.ops for control in op.controls}
    given = {*graph.data.outputs, graph.data.loss}
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.type != "Conv2D" or op.controls or op.id in awaited:
            continue
        (made,) = op.outputs
        readers = [graph.ops[each] for each in graph.consumers[made]]
        if len(readers) == 1 and made not in given:
            (reader,) = readers
            if reader.type == "BiasAdd" and reader.inputs[0] == made and not reader.controls:
                found[op.id] = reader.id
    return found


def side_by_side(graph: StepGraph, actions: Sequence[Action]) -> tuple[Action, ...]:
    """`actions` with each bias gradient right behind its filter gradient.

    What reads a bias gradient before that, such as the update, moves behind it. O(actions).
    """
    pairs = bias_gradients(graph)
    if not pairs:
        return tuple(actions)
    mover = _Mover(graph, pairs)
    for action in actions:
        mover.take(action)
    # One that the filter gradient itself waits for cannot move: no kernel merges them either.
    return tuple(mover.placed) if not mover.waiting else tuple(actions)


def as_kernels(
    graph: StepGraph, actions: Sequence[Action], pooled: Container[int]
) -> tuple[Action, ...]:
    """`actions` in which the same kernels run as in the original: `side_by_side`, with biases, and
    with pools.

    Args:
        pooled: what pools made that leave a workspace.
    """
    actions = _with_biases(graph, actions)
    pools = (op for op in graph.ops if op.type in POOL_GRADIENTS)
    gradients = {op.id: op.inputs[1] for op in pools if op.inputs[1] in pooled}
    return side_by_side(graph, _pooling_again(graph, actions, gradients) if gradients else actions)


def _with_biases(graph: StepGraph, actions: Sequence[Action]) -> Sequence[Action]:
    """`actions` with each convolution right before its BiasAdd, and none that comes back without
    it: what leaves or stays is what the BiasAdd makes. O(actions)."""
    pairs, ops = biases(graph), graph.ops
    if not pairs:
        return actions
    convolutions = {bias: conv for conv, bias in pairs.items()}
    made = {ops[conv].outputs[0]: ops[bias].outputs[0] for conv, bias in pairs.items()}
    moved = {action.id for action in actions if action.kind == "swap_out"}
    waiting: dict[int, Action] = {}  # convolutions whose turn has come
    behind: dict[int, list[Action]] = {}  # what leaves as soon as their BiasAdd has run
    placed: list[Action] = []
    for action in actions:
        if action.kind in _RUNNING:
            conv = convolutions.get(action.id, -1)
            if action.id in pairs:
                waiting[action.id] = action
            elif conv in waiting:
                placed += [waiting.pop(conv), action, *behind.pop(conv, ())]
            elif conv < 0:
                placed.append(action)
        elif action.kind != "reserve" and action.id in made:
            conv, t = graph.tensors[action.id].op, made[action.id]
            if t not in moved:
                each = Action(action.kind, t)
                (behind.setdefault(conv, []) if conv in waiting else placed).append(each)
        else:
            placed.append(action)
    return placed


def _pooling_again(
    graph: StepGraph, actions: Sequence[Action], gradients: Mapping[int, int]
) -> list[Action]:
    """`actions` with a pool again before each of its `gradients` (op id -> what the pool made) that
    would read a copy; without copies that nothing else reads. O(actions)."""
    pooled = frozenset(gradients.values())
    needless = _read_by_none_but(gradients, graph, actions)
    copied: set[int] = set()
    made: list[Action] = []
    for i, action in enumerate(actions):
        if action.kind == "swap_in" and action.id in pooled:
            copied.add(action.id)
            if i in needless:
                continue
        elif action.kind in _RUNNING:
            t = gradients.get(action.id)
            if t in copied:
                made.append(Action("recompute", graph.tensors[t].op))
                copied.discard(t)
            if copied:
                copied.difference_update(graph.ops[action.id].outputs)
        made.append(action)
    back = {action.id for action in made if action.kind == "swap_in"}
    gone = pooled - back
    return [a for a in made if a.kind not in ("swap_out", "wait") or a.id not in gone]


def _read_by_none_but(
    gradients: Mapping[int, int], graph: StepGraph, actions: Sequence[Action]
) -> set[int]:
    """The places of the copies back that only the gradients would read."""
    pooled = frozenset(gradients.values())
    touching = {graph.tensors[t].op for t in pooled}.union(*(graph.consumers[t] for t in pooled))
    last: dict[int, int] = {}  # of a tensor that came back: where it did
    found: set[int] = set()
    for i, action in enumerate(actions):
        if action.kind == "swap_in" and action.id in pooled:
            last[action.id] = i
            found.add(i)
        elif action.id in touching and action.kind in _RUNNING:
            op = graph.ops[action.id]
            own = gradients.get(action.id)
            found -= {last[t] for t in op.inputs if t in last and t != own}
            for t in op.outputs:
                last.pop(t, None)
    return found


class _Mover:
    def __init__(self, graph: StepGraph, pairs: Mapping[int, int]):
        self.graph, self.pairs = graph, pairs
        self.biases = set(pairs.values())
        self.placed: list[Action] = []
        self.waiting: list[Action] = []
        self.ran: set[int] = set()
        self.late: set[int] = set()  # ops whose turn has come, but that have not run

    def take(self, action: Action) -> None:
        if action.kind == "run" and action.id in self.biases:
            if action.id not in self.ran:
                self.late.add(action.id)
        elif self._must_wait(action):
            self.waiting.append(action)
            if action.kind == "run":
                self.late.add(action.id)
        else:
            self._place(action)

    def _must_wait(self, action: Action) -> bool:
        if not self.late or action.kind == "reserve":
            return False
        if action.kind in ("swap_out", "swap_in"):
            return self.graph.tensors[action.id].op in self.late
        op = self.graph.ops[action.id]
        before = {self.graph.tensors[t].op for t in op.inputs}
        return not self.late.isdisjoint(before.union(op.controls))

    def _place(self, action: Action) -> None:
        self.placed.append(action)
        if action.kind != "run":
            return
        self._ran(action.id)
        bias = self.pairs.get(action.id)
        if bias is not None:
            self.placed.append(Action("run", bias))
            self._ran(bias)
            released, self.waiting = self.waiting, []
            for each in released:
                self.take(each)

    def _ran(self, op_id: int) -> None:
        self.ran.add(op_id)
        self.late.discard(op_id)
