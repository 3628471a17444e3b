"""Constants, and what is made of them alone: which of them the runtime holds, and how often.

It computes what hangs on constants once, before the first step, and keeps once what holds the same.
The gradient of a mean is the same number for every pixel. Cut into parts, or scaled in two places,
it is computed more than once; the runtime keeps constants of one shape and the same numbers once,
if all of them wait for the same.

    Fill ─► RealDiv ─┬─► Slice, the first examples ─┐
                     └─► Slice, the next ones      ─┴─► one constant
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

from memtrade.facts import reuse
from memtrade.facts.variables import Brought
from memtrade.folding import KEPT_BYTES, asked_of
from memtrade.graph import Op, StepGraph, once_per_graph
from memtrade.iterations import places_of
from memtrade.op_types import ALIAS_TYPES
from memtrade.simulate.looked_at import looked_at_as_it_came, looked_at_values
from memtrade.simulate.regions import round_up
from memtrade.simulate.spared import Spared
from memtrade.simulate.unplanned import merged_tensors

# Of one number they make tensors of that number; Fill reads it behind the dimensions, Split behind
# the axis.
_SPREADING = ALIAS_TYPES | {
    "BroadcastTo", "GatherV2", "ReverseV2", "Slice", "SplitV", "StridedSlice", "Tile", "Transpose",
    "Unpack",
}  # fmt: skip
# These look at more than one number of an input, or at where it stands.
_NOT_EACH = {"BiasAdd", "LogSoftmax", "MatrixBandPart", "ScatterNdNonAliasingAdd", "Softmax"}
_EACH = (frozenset(reuse().tried) | {"Cast"}) - _NOT_EACH


_NUMBER_BYTES = 4  # of one that the rewriter brings


class Constants:
    """What the runtime holds of a graph's constants.

    Attributes:
        folded: constant tensor -> its copy that others read, in the order they are made in: the
            runtime sorts by name.
        folding_bytes: of each that the runtime computes, merged or not.
        computing_bytes: of what lies there at once while the runtime computes them.
        own_bytes: of those that the step has, where the runtime computes any.
        looked_at: what TensorFlow infers shapes with: each graph keeps what it has looked at. The
            runtime merges constants that hold the same, and graphs do not.
        looked_at_last: what the rewritten graph looks at.
        first: each of the step's own -> the first that holds the same, if the runtime merges them:
            it does where all that hold the same wait for the same ops, constants aside.
        lasting: those that the runtime holds, the first of those that hold the same: what it has
            computed others of, it drops.
        brought: those that the rewriter brings and that none of the step's holds.
    """

    def __init__(
        self,
        graph: StepGraph,
        hide: Callable[[int, str], int],
        without: Spared,
        beside: Sequence[Brought] = (),
        *,
        with_loops: bool = False,
    ):
        """
        Args:
            hide: adds a tensor that the graph does not have, of so many bytes and so labelled.
            without: what the step does without.
            beside: what it has beside its own.
            with_loops: whether its loops run as loops (`_apart`).
        """
        self.folded: dict[int, int] = {}
        bodies = (op.attrs.get("folding_bytes", ()) for op in graph.ops)
        self.folding_bytes: list[int] = [*itertools.chain.from_iterable(bodies)]
        consumers = without.consumers
        asked = asked_of(graph, graph.folding.computed, consumers)
        self._fold(graph, hide, sorted(asked), _apart(graph) if with_loops else frozenset())
        self.computing_bytes = _computing_bytes(graph, asked, without) if self.folding_bytes else 0
        held = [t for op in graph.ops if op.type == "Const" for t in op.outputs]
        wanted = (t for t in held if consumers[t] or not graph.consumers[t])
        sizes = (round_up(graph.tensors[t].size_bytes) for t in wanted)
        self.own_bytes = 0
        if self.folding_bytes:
            self.own_bytes = sum(sizes) + len(beside) * round_up(_NUMBER_BYTES)
        read = {*graph.data.outputs, *self.folded.values()}
        self.looked_at = self.looked_at_last = looked_at_as_it_came(graph)
        if without.reads:
            self.looked_at_last = looked_at_values(graph, without)
        before = _waits(graph)
        self.first = _first(graph)
        self.lasting = frozenset(
            self.first[t]
            for t in held
            if t in read or not all(graph.folded[c] for c in consumers[t])
        )
        hidden = [hide(_NUMBER_BYTES, f"{each.number} (constant)") for each in beside]
        self.brought: list[int] = []
        for each, t in zip(beside, hidden, strict=True):
            self.looked_at_last += (t,) * each.looked_at
            if not any(self._holds(one, each, graph, before) for one in self.lasting):
                self.brought.append(t)

    def _holds(
        self, t: int, number: Brought, graph: StepGraph, before: Mapping[int, frozenset[int]]
    ) -> bool:
        """Whether the runtime merges the two: then they are there once."""
        made = graph.tensors[t]
        return (
            graph.data.values.get(t) == (number.number,)
            and made.dtype == "int32"
            and made.shape == (1,) * number.rank
            and not before[made.op]
        )

    def _fold(
        self,
        graph: StepGraph,
        hide: Callable[[int, str], int],
        asked: Sequence[int],
        apart: frozenset[Hashable],
    ) -> None:
        same = merged_tensors(graph)
        handed, held, first = _handed_on(graph, same), alike(graph), {}
        seen: set[int] = set()
        for t in asked:
            one = handed.get(t, t if held.get(t) == t else same.get(t, t))
            if graph.ops[graph.tensors[one].op].type == "Const":
                self.folded[t] = one
                continue
            if t not in handed or one not in seen:
                self.folding_bytes.append(graph.tensors[t].size_bytes)
                seen.add(one)
            if graph.tensors[t].size_bytes > KEPT_BYTES:
                continue
            key = held.get(t, one)
            one = t if key in apart else first.setdefault(key, one)
            if one not in self.folded:
                size_bytes = graph.tensors[one].size_bytes
                self.folded[one] = hide(size_bytes, f"{graph.label(one)} (constant)")
            self.folded[t] = self.folded[one]
        by_name = sorted(self.folded, key=lambda t: (graph.ops[graph.tensors[t].op].name, t))
        self.folded = {t: self.folded[t] for t in by_name}


def _apart(graph: StepGraph) -> frozenset[Hashable]:
    """What is made of constants in a loop's body, too, waits there for the iteration. The runtime
    compares others that hold the same with that one, and keeps them all."""
    held, bodies = alike(graph), places_of(graph)
    return frozenset(held[t] for t in held if graph.tensors[t].op in bodies)


def _computing_bytes(graph: StepGraph, asked: Collection[int], without: Spared) -> int:
    """The most that lies there at once of what is made of constants alone, when each op is run as
    soon as it can be: what is kept, and what that is computed of."""

    def read(op: Op) -> list[int]:
        return [graph.root[t] for t in without.inputs(op)]

    needed: set[int] = set()
    readers: dict[int, int] = defaultdict(int)  # of each buffer
    for op in reversed(graph.ops):
        runs = graph.folding.computed[op.id] and op.type != "Const"
        if runs and any(t in asked or readers[graph.root[t]] for t in op.outputs):
            needed.add(op.id)
            for t in read(op):
                readers[t] += 1
    held = {graph.root[t] for t in asked}
    there_bytes = most_bytes = 0
    for op in (graph.ops[each] for each in sorted(needed)):
        made = sum(graph.tensors[t].size_bytes for t in op.outputs if graph.root[t] == t)
        freed = 0
        for t in read(op):
            readers[t] -= 1
            if not readers[t] and t not in held and graph.tensors[t].op in needed:
                freed += graph.tensors[t].size_bytes
        in_place = freed if op.type in _EACH else 0
        most_bytes = max(most_bytes, there_bytes + made - min(in_place, made))
        there_bytes += made - freed
    return most_bytes


def _handed_on(graph: StepGraph, same: Mapping[int, int]) -> dict[int, int]:
    """What Identities hand on of constants -> what that is: the runtime takes them out first, and
    has others read it."""
    given: dict[int, int] = {}
    for op in graph.ops:
        if op.type == "Identity" and graph.folding.computed[op.id]:
            source = op.inputs[0]
            given[op.outputs[0]] = given.get(source, same.get(source, source))
    return given


@once_per_graph
def alike(graph: StepGraph) -> dict[int, Hashable]:
    """For tensors made of constants: equal where the runtime keeps one, as they hold the same.

    It compares each with the first that holds the same, and keeps both where one waits for other
    ops. Of those of one number, which is first is not foreseen: where some wait, each is taken to
    stay; of the others, nothing is said. O(edges).
    """
    same = {one: one for one in graph.data.equal.values()} | graph.data.equal
    number: dict[int, Hashable] = {}
    content: dict[int, int] = {}
    waits = _waits(graph)
    known: dict[Hashable, int] = {}
    these_hold: dict[Hashable, list[int]] = defaultdict(list)
    for op in (graph.ops[each] for each in waits):
        if (one := _number(op, graph, number)) is not None:
            number.update(dict.fromkeys(op.outputs, one))
        for t, held in _held(op, graph, same, number, content):
            made = graph.tensors[t]
            content[t] = known.setdefault((held, made.dtype, made.shape), len(known))
            if t in graph.folding.kept:
                these_hold[content[t]].append(t)
    found: dict[int, Hashable] = {}
    for key, these in these_hold.items():
        if len({waits[graph.tensors[t].op] for t in these}) < 2:
            found |= dict.fromkeys(these, ("holds", key))
        else:
            found |= {t: t for t in these if t in number}
    return found


@once_per_graph
def _waits(graph: StepGraph) -> dict[int, frozenset[int]]:
    """What each op that makes constants waits for: for ops that are not made of constants."""
    waits: dict[int, frozenset[int]] = {}
    for op in graph.ops:
        if graph.folding.computed[op.id]:
            before = {*op.controls, *(graph.tensors[t].op for t in op.inputs)}
            waits[op.id] = frozenset().union(*(waits.get(each, {each}) for each in before))
    return waits


@once_per_graph
def _first(graph: StepGraph) -> dict[int, int]:
    """Of each constant that the step holds, the one that it is there as.

    TensorFlow (core/graph/optimizer_cse.cc) compares what is equal but for what it waits for with
    the first of these alone, in the reverse postorder of a search from the nodes without inputs,
    the last one first. So a constant that waits for nothing comes before another if a later node
    leads to that, and those that wait are as one only if all wait for the same.
    """
    alike: dict[int, list[int]] = defaultdict(list)
    for op in graph.ops:
        for t in op.outputs if op.type == "Const" else ():
            alike[graph.data.equal.get(t, t)].append(t)
    first, last, waits = dict[int, int](), _last_source(graph), _waits(graph)
    for one, these in alike.items():
        made_by = {t: graph.tensors[t].op for t in these}
        free = [t for t, op_id in made_by.items() if not waits[op_id]]
        later = (last[op_id] for op_id in made_by.values() if waits[op_id])
        if len({waits[op_id] for op_id in made_by.values()}) < 2:
            first |= dict.fromkeys(these, one)
        else:
            first |= {t: t for t in these}
            if free and min(later) > made_by[free[0]]:
                first |= dict.fromkeys(free, free[0])
    return first


def _last_source(graph: StepGraph) -> list[int]:
    """The last op without inputs that leads to each op, or the op itself; arguments come first."""
    last: list[int] = []
    for op in graph.ops:
        before = (*op.controls, *(graph.tensors[t].op for t in op.inputs))
        own = -1 if op.type == "Placeholder" else op.id
        last.append(max((last[each] for each in before if each < op.id), default=own))
    return last


def _held(
    op: Op,
    graph: StepGraph,
    same: Mapping[int, int],
    number: Mapping[int, Hashable],
    content: Mapping[int, int],
) -> Iterator[tuple[int, Hashable]]:
    """What stands for all that each output holds, but its type and shape, where that is known.
    `same`: the first of those that are known to hold the same."""
    read = tuple(content.get(t) for t in op.inputs)
    for place, t in enumerate(op.outputs):
        if t in same:
            yield t, ("constant", same[t])
        elif (values := graph.data.values.get(t)) is not None:
            yield t, ("values", values)
        elif t in number:
            yield t, ("number", number[t])
        elif op.type == "Const":
            yield t, ("constant", t)
        elif op.node >= 0 and None not in read:
            yield t, (op.node, place, read)


def _number(op: Op, graph: StepGraph, number: dict[int, Hashable]) -> Hashable:
    """What stands for the number that `op` makes its outputs of; None where it may be several."""
    known = None
    if op.type in ("Fill", "Split"):
        known = number.get(op.inputs[-1])
    elif op.type in _SPREADING:
        known = number.get(op.inputs[0])
    elif op.type in _EACH and all(t in number for t in op.inputs):
        read = tuple(number[t] for t in op.inputs)
        known = op.type, op.node, repr(sorted(op.attrs.items())), read
    if known is None and len(op.outputs) == 1:
        made = graph.tensors[op.outputs[0]]
        if (held := graph.data.uniform.get(made.id)) is not None:
            return held
        if made.shape is not None and math.prod(made.shape) == 1:
            return graph.data.equal.get(made.id, made.id)
    return known
