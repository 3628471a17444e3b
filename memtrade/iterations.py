"""Loops of a step in which they stand unrolled, as TensorFlow runs them where no plan does.

    while/0/body/mul ─► list ─┐                       Who reads a list outside the loop that made it
    while/1/body/mul ─► list ─┼─► stand ─► gradient   waits until it is whole; inside, until the
    while/2/body/mul ─► list ─┘                       iterations before have put theirs in.

An iteration begins once the one `AT_ONCE` before it is done. What iterations compute alike is
computed by each. Which of the ops of one iteration goes first differs with how TensorFlow has
written the graph, and with it the peak, by a tenth or two: it is foreseen about.
O(ops + edges).
"""

import bisect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from memtrade.graph import StepGraph, once_per_graph

# TensorFlow's `parallel_iterations`, where nobody gives another.
AT_ONCE = 10

# What stands before the names of a loop's body once that is unrolled: `memtrade.tf.unroll`.
_ITERATION = re.compile(r"/(\d+)/body/")


class Place(NamedTuple):
    """Where an op stands in an unrolled loop. `name` is what it is called in the body."""

    loop: str
    iteration: int
    name: str


class Stands(NamedTuple):
    """What is waited for beside data and control edges. Stands are numbered on from the ops.

    Attributes:
        waits: for each stand, the ops and the stand before that it waits for.
        readers: ops, each with a stand that it waits for.
    """

    waits: list[set[int]]
    readers: list[tuple[int, int]]


@once_per_graph
def places_of(graph: StepGraph) -> dict[int, tuple[Place, ...]]:
    """Of the ops that stand in unrolled loops, by id: the outermost loop first."""
    places: dict[int, tuple[Place, ...]] = {}
    for op in graph.ops:
        for found in _ITERATION.finditer(op.name):
            place = Place(op.name[: found.start()], int(found[1]), op.name[found.end() :])
            places[op.id] = (*places.get(op.id, ()), place)
    return places


def stands_of(graph: StepGraph, reads: Sequence[set[int]]) -> Stands:
    """What holds iterations, and readers of lists, back.

    Args:
        reads: the ops that each op reads from.
    """
    places = places_of(graph)
    elements: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)  # of each list
    turns: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for op_id, place in places.items():
        for loop, iteration, name in place:
            elements[loop, name].append((iteration, op_id))
            turns[loop][iteration].add(op_id)
    stands = Stands([], [])
    for iterations in turns.values():
        groups = [ops for _, ops in sorted(iterations.items())]
        first = _add_chain(stands, groups, len(graph.ops))
        for done, held in enumerate(groups[AT_ONCE:]):
            stands.readers.extend((op_id, first + done) for op_id in held)
    whole: dict[tuple[str, str], int] = {}  # the first stand of each list that is read
    for op_id, read, inside in _crossings(places, reads):
        if read not in whole:
            elements[read].sort()
            groups = [{element} for _, element in elements[read]]
            whole[read] = _add_chain(stands, groups, len(graph.ops))
        made = elements[read]
        count = len(made) if inside is None else bisect.bisect(made, (inside, -1))
        if count:
            stands.readers.append((op_id, whole[read] + count - 1))
    return stands


def _crossings(
    places: Mapping[int, tuple[Place, ...]], reads: Sequence[set[int]]
) -> Iterator[tuple[int, tuple[str, str], int | None]]:
    """Ops that read what another iteration made: the loop and the name of that, and the op's own
    iteration of that loop, None outside."""
    for op_id, producers in enumerate(reads):
        own = {loop: iteration for loop, iteration, _ in places.get(op_id, ())}
        for producer in producers & places.keys():
            for loop, iteration, name in places[producer]:
                if own.get(loop) != iteration:
                    yield op_id, (loop, name), own.get(loop)
                    break


def _add_chain(stands: Stands, groups: Sequence[set[int]], ops: int) -> int:
    """One stand for each group of ops, which waits for the one before, too. The first's number."""
    first = ops + len(stands.waits)
    for k, group in enumerate(groups):
        stands.waits.append(group | ({first + k - 1} if k else set()))
    return first
