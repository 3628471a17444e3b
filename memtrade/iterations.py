"""Loops of a step in which they stand unrolled, as TensorFlow runs them where no plan does.

    while/0/body/mul ─► list ─┐                       Who reads a list outside the loop that made it
    while/1/body/mul ─► list ─┼─► stand ─► gradient   waits until it is whole; inside, until the
    while/2/body/mul ─► list ─┘                       iterations before have put theirs in.

An iteration begins once the one `Place.at_once` before it is done: Keras's recurrent layers run 32
at once. What iterations compute alike is computed by each. Which of the ops of one iteration goes
first differs with how long they take, and with how TensorFlow has written the graph: where sums
that go on from iteration to iteration are left for later, what they add up waits. So the peak is
foreseen as a range (`memtrade.simulate.unplanned.other_orders`).
O(ops + edges).
"""

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from memtrade.graph import StepGraph, once_per_graph

# TensorFlow's `parallel_iterations`, where nobody gives another.
AT_ONCE = 10

_SUM_TYPES = frozenset({"Add", "AddN", "AddV2"})

# What stands before the names of a loop's body once that is unrolled: `memtrade.tf.unroll`.
_ITERATION = re.compile(r"/(\d+)(?:\.(\d+))?/body/")


class Place(NamedTuple):
    """Where an op stands in an unrolled loop. `name` is what it is called in the body, `at_once`
    how many iterations of the loop run at once."""

    loop: str
    iteration: int
    name: str
    at_once: int = AT_ONCE

    @property
    def series(self) -> tuple[str, str]:
        """What all iterations make of this: the loop and the name."""
        return self.loop, self.name


def iteration_name(loop: str, iteration: int, at_once: int) -> str:
    """What stands before the body's."""
    return f"{loop}/{iteration}/" if at_once == AT_ONCE else f"{loop}/{iteration}.{at_once}/"


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
            loop, name = op.name[: found.start()], op.name[found.end() :]
            place = Place(loop, int(found[1]), name, int(found[2] or AT_ONCE))
            places[op.id] = (*places.get(op.id, ()), place)
    return places


@once_per_graph
def loops_read(graph: StepGraph) -> dict[str, str]:
    """Of loops that stand in no other one, and read what others make, the one that they read most:
    of a gradient's, the loop that it is the gradient of."""
    places = places_of(graph)
    most: dict[str, Counter[str]] = defaultdict(Counter)
    for op_id, (own, *_) in places.items():
        made = (places.get(graph.tensors[t].op) for t in graph.ops[op_id].inputs)
        most[own.loop].update({place[0].loop for place in made if place} - {own.loop})
    return {loop: read.most_common(1)[0][0] for loop, read in most.items() if read}


@once_per_graph
def largest_sums(graph: StepGraph) -> frozenset[int]:
    """Of the sums that go on from iteration to iteration, as gradients of weights do, each loop's
    largest ones (an LSTM has two): their ops in each iteration."""
    places = places_of(graph)
    made: dict[tuple[str, str], int] = {}  # by each series
    largest: dict[str, int] = defaultdict(int)  # of each loop
    for op_id, (*_, own) in places.items():
        op = graph.ops[op_id]
        added = (places.get(graph.tensors[t].op) for t in op.inputs)
        if op.type in _SUM_TYPES and any(each[-1].series == own.series for each in added if each):
            made[own.series] = graph.bytes_of(op.outputs)
            largest[own.loop] = max(made[own.series], largest[own.loop])
    series = {each for each, size in made.items() if size == largest[each[0]]}
    return frozenset(op_id for op_id, (*_, own) in places.items() if own.series in series)


def stands_of(graph: StepGraph, reads: Sequence[set[int]], most_at_once: int) -> Stands:
    """What holds iterations, and readers of lists, back.

    Args:
        reads: the ops that each op reads from.
        most_at_once: of no loop run more iterations at once.
    """
    places = places_of(graph)
    elements: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)  # of each list
    turns: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    at_once: dict[str, int] = {}
    for op_id, place in places.items():
        for each in place:
            at_once[each.loop] = min(each.at_once, most_at_once)
            elements[each.series].append((each.iteration, op_id))
            turns[each.loop][each.iteration].add(op_id)
    stands = Stands([], [])
    for loop, iterations in turns.items():
        groups = [ops for _, ops in sorted(iterations.items())]
        first = _add_chain(stands, groups, len(graph.ops))
        for done, held in enumerate(groups[at_once[loop] :]):
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
        own = {place.loop: place.iteration for place in places.get(op_id, ())}
        for producer in producers & places.keys():
            for each in places[producer]:
                if own.get(each.loop) != each.iteration:
                    yield op_id, each.series, own.get(each.loop)
                    break


def _add_chain(stands: Stands, groups: Sequence[set[int]], ops: int) -> int:
    """One stand for each group of ops, which waits for the one before, too. The first's number."""
    first = ops + len(stands.waits)
    for k, group in enumerate(groups):
        stands.waits.append(group | ({first + k - 1} if k else set()))
    return first
