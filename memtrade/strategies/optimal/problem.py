"""What a choice is made of: tensors to decide on, when each is needed, and all other memory.

Everything is read off one reference program that keeps all activations, in the order in which
`schedule.lower` walks the backward part of a lean plan:

    forward    points: an item is made, its last forward reader runs
    backward   intervals between the items' first and last readers, within which the set of
               items in use does not change; each with the most bytes that everything else takes
               (variables, gradients, scratch), from a walk of the exact simulator

Sizes are in MB, as a solver likes numbers near 1.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memtrade.graph import StepGraph
from memtrade.plan import Action, Decision
from memtrade.schedule import lower
from memtrade.simulate.memory import Simulator
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import worth_deciding

MB = 1e6
# A forward tensor that is smaller than this share of all activations stays as it is.
SMALL_SHARE = 1 / 20_000


@dataclass(frozen=True)
class Item:
    """One forward tensor to decide on.

    Attributes:
        tensor: the root tensor's id. op: its producer.
        needs: indices of the items that its op reads, directly or through small tensors.
        size: MB.
        read: whether the backward part reads it; else it only serves recomputations.
        may_recompute, may_swap: whether there is that choice.
        made, spent: forward points of its producer and its last forward reader.
        first, last: backward intervals in which it is first and last needed.
        again_seconds: to run its op again. out_seconds, in_seconds: of its copies.
    """

    tensor: int
    op: int
    needs: tuple[int, ...]
    size: float
    read: bool
    may_recompute: bool
    may_swap: bool
    made: int
    spent: int
    first: int
    last: int
    again_seconds: float
    out_seconds: float
    in_seconds: float


@dataclass(frozen=True)
class Problem:
    """All there is to choose.

    Attributes:
        items: in forward order.
        forward_mb: for each forward point, most MB in use besides items whose forward readers
            have run.
        forward_seconds: compute time up to each forward point.
        backward_mb: for each backward interval, most MB in use besides items.
        backward_seconds: compute time of each backward interval, recomputation not counted.
        place: op -> its forward point, or -1 - its backward interval.
    """

    items: tuple[Item, ...]
    forward_mb: tuple[float, ...]
    forward_seconds: tuple[float, ...]
    backward_mb: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    place: Mapping[int, int]

    @property
    def step_seconds(self) -> float:
        return self.forward_seconds[-1] + sum(self.backward_seconds)

    def without_swaps(self) -> Problem:
        items = tuple(replace(item, may_swap=False) for item in self.items)
        return replace(self, items=items)


def reference_order(
    graph: StepGraph, decisions: Mapping[int, Decision] | None = None
) -> tuple[Action, ...]:
    """The ops in the order in which the plan of `decisions` runs them, each once.

    Unless given, of a plan that swaps every activation: its backward part is the leanest.
    """
    if decisions is None:
        decisions = dict.fromkeys(worth_deciding(graph), "swap")
    return tuple(action for action in lower(graph, decisions) if action.kind == "run")


def make_problem(simulator: Simulator, times: TimeSimulator, order: Sequence[Action]) -> Problem:
    """`order` runs every op once (`reference_order`). O(ops + edges)."""
    uses = _Uses(simulator.graph, order)
    seconds = [0.0, *itertools.accumulate(times.op_seconds[action.id] for action in order)]
    extra = _beside_items(uses, simulator.live_bytes(order))

    def most(start: int, end: int) -> float:
        return max(extra[start:end], default=0.0)

    points, cuts = uses.points, uses.cuts
    intervals = list(zip(cuts, [*cuts[1:], len(order)], strict=True))
    return Problem(
        items=_items(uses, simulator, times),
        forward_mb=tuple(
            most(a, b) for a, b in zip(points, [*points[1:], uses.turn + 1], strict=True)
        ),
        forward_seconds=tuple(seconds[point + 1] for point in points),
        backward_mb=tuple(most(a, b) for a, b in intervals),
        backward_seconds=tuple(seconds[b] - seconds[a] for a, b in intervals),
        place={
            action.id: max(0, uses.point(i)) if i <= uses.turn else -1 - uses.interval(i)
            for i, action in enumerate(order)
        },
    )


class _Uses:
    """Where the reference program makes and reads the chosen tensors, by position in it.

    Attributes:
        turn: the last forward op's position. position: of each op.
        chosen: the tensors to decide on, in forward order. needs: see `_needs`.
        backward: their readers in the backward part. forward_end: the last one in the forward part.
        first, last: see `_when_needed`.
        points: where the forward points begin. cuts: where the backward intervals do.
    """

    def __init__(self, graph: StepGraph, order: Sequence[Action]):
        self.graph = graph
        self.turn = turn = max(i for i, action in enumerate(order) if action.id in graph.forward)
        self.position = {action.id: i for i, action in enumerate(order)}
        among = _chosen(graph)
        self.needs = _needs(graph, among)
        reads = {t: [self.position[c] for c in graph.readers(t)] for t in among}
        self.backward = {t: [p for p in reads[t] if p > turn] for t in among}
        self.forward_end = {
            t: max((p for p in reads[t] if p <= turn), default=self.made_at(t)) for t in among
        }
        self.first, self.last = _when_needed(among, self.needs, self.backward)
        self.chosen = [t for t in among if t in self.first]
        self.points = sorted({self.made_at(t) for t in self.chosen}) or [0]
        cuts = {turn + 1, *self.first.values(), *(p + 1 for p in self.last.values())} - {len(order)}
        self.cuts = sorted(cut for cut in cuts if cut > turn)

    def made_at(self, tensor: int) -> int:
        return self.position[self.graph.tensors[tensor].op]

    def point(self, place: int) -> int:
        """The forward point that a position lies in; -1 before the first."""
        return bisect_right(self.points, place) - 1

    def interval(self, place: int) -> int:
        """The backward interval that a position lies in."""
        return bisect_right(self.cuts, place) - 1


def _beside_items(uses: _Uses, live_bytes: Sequence[int]) -> list[float]:
    """For each position, MB in use besides items whose forward readers have run: in the reference
    program an item that the backward part reads stays until then."""
    extra = np.array(live_bytes) / MB
    for t in uses.chosen:
        if uses.backward[t]:
            rests = slice(uses.forward_end[t] + 1, max(uses.backward[t]) + 1)
            extra[rests] -= uses.graph.tensors[t].size_bytes / MB
    return extra.tolist()


def _items(uses: _Uses, simulator: Simulator, times: TimeSimulator) -> tuple[Item, ...]:
    graph = uses.graph
    index = {t: i for i, t in enumerate(uses.chosen)}
    pooled = simulator.linker.hidden_of  # a swapped MaxPool output loses its kernel's workspace
    return tuple(
        Item(
            tensor=t,
            op=graph.tensors[t].op,
            needs=tuple(sorted(index[n] for n in uses.needs[t] if n in index)),
            size=graph.tensors[t].size_bytes / MB,
            read=bool(uses.backward[t]),
            may_recompute=not graph.ops[graph.tensors[t].op].stateful,
            may_swap=bool(uses.backward[t]) and t not in pooled,
            made=uses.point(uses.made_at(t)),
            spent=uses.point(uses.forward_end[t]),
            first=uses.interval(uses.first[t]),
            last=uses.interval(uses.last[t]),
            again_seconds=times.op_seconds[graph.tensors[t].op],
            out_seconds=times.out_seconds[t],
            in_seconds=times.in_seconds[t],
        )
        for t in uses.chosen
    )


def _chosen(graph: StepGraph) -> list[int]:
    """The forward tensors that are large enough, in the order in which they are made."""
    total = graph.bytes_of(graph.activations)
    worth = set(worth_deciding(graph))
    return [
        t
        for op_id in sorted(graph.forward)
        for t in graph.ops[op_id].outputs
        if graph.root[t] == t
        and graph.is_intermediate(t)
        and graph.tensors[t].size_bytes > total * SMALL_SHARE
        and (t in worth or not any(c in graph.backward for c in graph.consumers[t]))
    ]


def _needs(graph: StepGraph, chosen: Sequence[int]) -> dict[int, set[int]]:
    """For each chosen tensor, the chosen ones that recomputing it reads.

    The way leads through tensors that were not chosen, unless these stay: `lower` keeps what the
    backward part reads and what stateful ops make.
    """
    among = set(chosen)
    through: dict[int, set[int]] = {}  # op -> the chosen tensors that running it again reads
    for op_id in sorted(graph.forward):
        found: set[int] = set()
        for t in graph.ops[op_id].inputs:
            root = graph.root[t]
            producer = graph.ops[graph.tensors[root].op]
            if root in among:
                found.add(root)
            elif graph.is_intermediate(root) and not (
                producer.stateful or any(c in graph.backward for c in graph.readers(root))
            ):
                found |= through[producer.id]
        through[op_id] = found
    return {t: through[graph.tensors[t].op] - {t} for t in chosen}


def _when_needed(
    chosen: Sequence[int], needs: Mapping[int, set[int]], backward: Mapping[int, list[int]]
) -> tuple[dict[int, int], dict[int, int]]:
    """Positions of the first and last use in the backward part; what has none is left out.

    A tensor that only serves recomputations is needed when the last of those that are made from
    it is.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for t in reversed(chosen):
        if backward[t]:
            first[t], last[t] = min(backward[t]), max(backward[t])
        elif t in last:  # set by those that need it, below
            first[t] = last[t]
        if t in first:
            for n in needs[t]:
                if not backward[n]:
                    last[n] = max(last.get(n, first[t]), first[t])
    return first, {t: place for t, place in last.items() if t in first}


def moves(items: Sequence[Item], most: int) -> list[tuple[tuple[int, Decision], ...]]:
    """Changes of decisions: single ones, the most expensive op's first; then pairs, and so on, up
    to `most`."""
    items = sorted(items, key=lambda item: -item.again_seconds)
    made: list[tuple[tuple[int, Decision], ...]] = []
    for together in range(1, len(items) + 1):
        larger = [
            tuple(zip((item.tensor for item in chosen), changes, strict=True))
            for chosen in itertools.islice(itertools.combinations(items, together), most)
            for changes in itertools.product(*map(_allowed, chosen))
        ]
        if made and len(made) + len(larger) > most:
            break
        made += larger
    return made


def savings(
    items: Sequence[Item], decided: Callable[[int], Decision]
) -> list[tuple[tuple[int, Decision], ...]]:
    """Single changes to what takes less time in itself, the largest saving first."""
    found: list[tuple[float, int, Decision]] = []
    for item in items:
        seconds: dict[Decision, float] = {
            "keep": 0.0,
            "recompute": item.again_seconds,
            "swap": item.out_seconds + item.in_seconds,
        }
        now = seconds[decided(item.tensor)]
        for decision in _allowed(item):
            if seconds[decision] < now:
                found.append((seconds[decision] - now, item.tensor, decision))
    return [((tensor, decision),) for _, tensor, decision in sorted(found)]


def _allowed(item: Item) -> list[Decision]:
    allowed: list[Decision] = ["keep"]
    if item.may_recompute:
        allowed.append("recompute")
    if item.may_swap:
        allowed.append("swap")
    return allowed
