"""Where a step is cut into stages: balanced first, then with the least traffic.

The line may be cut at its narrow places (`strategies.segments.frontiers`), or with a depth between
its layers, so it is a sequence of segments, each with a cost: the time of its ops, forward and
backward, or the bytes that it keeps. Block partition of a sequence is then exact, by dynamic
programming over the cuts,

    best(k, j) = min over i < j of max(best(k - 1, i), cost(i..j)),        O(stages x cuts^2)

the smallest possible cost of the heaviest stage. (This is the linear partition problem; torchgpipe
balances by the algorithm of Bárány and Grinberg, "Block partitions of sequences", Israel J. Math.
206, 2015, with the same optimum.) Of the partitions whose heaviest stage costs at most (1 + slack)
times that, a second dynamic program takes the one with the least traffic,

    least(k, j) = min over i < j with cost(i..j) <= limit of least(k - 1, i) + arriving(i, j),

where arriving(i, j) is the bytes of the tensors that are made before i and read between i and j. A
tensor counts once for each stage that reads it, however far it travels: that is what crosses. So,
for graphs with long skip connections too, a partition with slack 0 is optimal in balance and then
in traffic among those that cut at narrow places and respect the order of creation. Ties go to the
earliest cuts. What could be better: several ops that follow an order of creation which is not the
only topological one could change places.

Costs are whole numbers (picoseconds, bytes): the same graph gives the same partition.
"""

import difflib
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from memtrade.costs import OpCost
from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph, led_to, reached
from memtrade.op_types import READ_TYPES
from memtrade.pipeline.design.anchors import Anchors
from memtrade.pipeline.design.partition import Balance, Crossing, Partition, Stage
from memtrade.strategies.segments import frontiers
from memtrade.target import Target

_PICOSECONDS = 1e12
_FAR = np.int64(1) << 60  # more than any cost


class Partitioner:
    """Cuts one graph in whatever way. What does not depend on the cuts is worked out once.

    Args:
        depth: cut anywhere between layers, but within none that is nested so deep, as name scopes
            tell them. Unless given, at the narrow places, within layers or not.
    """

    def __init__(self, graph: StepGraph, *, depth: int | None = None):
        self.graph, self.depth = graph, depth
        self.anchors = Anchors(graph)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The ops of the line behind which it may be cut, ascending."""
        line = self.anchors.line
        if self.depth is None:
            return tuple(place.op for place in frontiers(self.graph) if place.op < line[-1])
        pairs = itertools.pairwise(line)
        return tuple(op for op, behind in pairs if self._layer(op) != self._layer(behind))

    def _layer(self, op_id: int) -> list[str]:
        """The layer of the given depth that the op is part of, as a path of names."""
        return self.graph.ops[op_id].name.split("/")[:-1][: self.depth]

    @property
    def most_stages(self) -> int:
        return len(self.places) + 1

    def by_time(
        self,
        stages: int,
        target: Target,
        *,
        slack: float = 0.0,
        costs: Sequence[OpCost] | None = None,
    ) -> Partition:
        """Balances the time that the target needs for forward and backward ops.

        Args:
            costs: of each op of the graph, where they are not those of its kernel alone.

        Raises MemtradeError for fewer stages than 1 or more than `most_stages`.
        """
        return self._best(stages, self._times(target, costs), "time", slack)

    def by_memory(self, stages: int, *, in_flight: int = 1, slack: float = 0.0) -> Partition:
        """Balances the bytes of variables, their gradients and activations.

        Args:
            in_flight: of how many micro-batches a stage holds the activations at once: 1 where
                they are recomputed, else as many as the schedule has under way.

        Raises MemtradeError for fewer stages than 1 or more than `most_stages`.
        """
        return self._best(stages, self._bytes(in_flight), "memory", slack)

    def cut_at(self, names: Sequence[str], target: Target) -> Partition:
        """Stages that end with the named ops of the line, in whichever order they are given.

        Raises MemtradeError for a name that is no such op, is given twice, or ends the line.
        """
        by_name = {self.graph.ops[op_id].name: op_id for op_id in self.anchors.line}
        for name in names:
            if name not in by_name:
                near = difflib.get_close_matches(name, by_name, n=3, cutoff=0.3)
                hint = f": did you mean {', '.join(near)}?" if near else ""
                raise MemtradeError(
                    f"boundary {name!r} is no op of the forward pass of {self.graph.name} that "
                    f"computes from the batch{hint}"
                )
            if names.count(name) > 1:
                raise MemtradeError(f"boundary {name!r} is given twice: name another op")
            if by_name[name] == self.anchors.line[-1]:
                raise MemtradeError(
                    f"boundary {name!r} is the last op of the forward pass of {self.graph.name}: "
                    "nothing is left for the stage after it"
                )
        costs, stages = self._times(target), len(names) + 1
        there_are = stages <= self.most_stages
        optimum = _smallest_maximum(self._prefix_sums(costs), stages) if there_are else 0
        ends = sorted(by_name[name] for name in names)
        return self._partition(ends, costs, "explicit", slack=0.0, optimum=optimum)

    def _best(self, stages: int, costs: list[int], balance: Balance, slack: float) -> Partition:
        if not 1 <= stages <= self.most_stages:
            raise MemtradeError(
                f"{self.graph.name} can be cut into 1 to {self.most_stages:,} stages, "
                f"not {stages:,}: ask for at most {self.most_stages:,} partitions"
            )
        if not slack >= 0:
            raise MemtradeError(f"the slack of a partition must be at least 0, not {slack:g}")
        sums = self._prefix_sums(costs)
        optimum = _smallest_maximum(sums, stages)
        ends = _least_traffic(sums, self._arriving(), stages, limit=int(optimum * (1 + slack)))
        return self._partition(
            [self.places[end] for end in ends], costs, balance, slack=slack, optimum=optimum
        )

    def _times(self, target: Target, costs: Sequence[OpCost] | None = None) -> list[int]:
        """For each op, picoseconds."""
        if costs is None:
            seconds = target.op_seconds(self.graph)
        else:
            seconds = [target.device.seconds(cost) for cost in costs]
        return [round(each * _PICOSECONDS) for each in seconds]

    def _bytes(self, in_flight: int) -> list[int]:
        """For each op, the bytes of what it makes or of the variables that live with it."""
        graph = self.graph
        found = [0] * len(graph.ops)
        for t in graph.activations:
            found[graph.tensors[t].op] += graph.tensors[t].size_bytes * in_flight
        for handle, home in self._homes.items():
            copies = 2 if handle in self._trainable else 1  # the value and its gradient
            found[home] += copies * self.graph.capture_bytes[handle]
        return found

    @cached_property
    def _homes(self) -> dict[int, int]:
        """For each captured variable, the op of the line that it lives with."""
        graph, at = self.graph, self.anchors.at
        homes = {}
        for handle in graph.data.captures:
            if graph.tensors[handle].dtype == "resource":
                own = at[graph.tensors[handle].op]
                places = [at[c] for c in graph.consumers[handle]] if own is None else [own]
                if known := [place for place in places if place is not None]:
                    homes[handle] = min(known)
        return homes

    @cached_property
    def _trainable(self) -> frozenset[int]:
        """The variables that the forward part reads and a gradient updates."""
        graph = self.graph
        read = {t for op_id in graph.forward for t in graph.ops[op_id].inputs}
        updated = (t for t in self._homes if not graph.backward.isdisjoint(graph.consumers[t]))
        return frozenset(read.intersection(updated))

    def _totals(self, costs: list[int], ends: Sequence[int]) -> list[int]:
        """The cost of each part of the line, of those that end with the ops `ends`."""
        totals = [0] * (len(ends) + 1)
        for place, cost in zip(self.anchors.at, costs, strict=True):
            if place is not None:
                totals[bisect_left(ends, place)] += cost
        return totals

    def _prefix_sums(self, costs: list[int]) -> np.ndarray:
        """[segments + 1]: the cost of all segments before each cut, the start and the end."""
        return np.cumsum([0, *self._totals(costs, self.places)], dtype=np.int64)

    def _arriving(self) -> np.ndarray:
        """[i, j]: bytes made before segment i and read in the segments i to j - 1."""
        size = len(self.places) + 2
        found = np.zeros((size, size), dtype=np.int64)
        for t, producer, readers in self._forward_edges():
            last = bisect_left(self.places, producer)
            for segment in sorted({bisect_left(self.places, reader) for reader in readers}):
                if segment > last:
                    # Cut anywhere behind the last reader, and the next one has to get it again.
                    found[last + 1 : segment + 1, segment + 1] += self.graph.tensors[t].size_bytes
                    last = segment
        return np.cumsum(found, axis=1)

    def _forward_edges(self) -> Iterable[tuple[int, int, list[int]]]:
        """(tensor, anchor of its producer, anchors of its readers) of what may cross."""
        graph, at = self.graph, self.anchors.at
        outside = {*graph.data.inputs, *graph.data.captures}
        with_it = graph.forward | self._side_ops
        for op_id in sorted(graph.forward - self.anchors.constants):
            producer = at[op_id]
            if producer is None:
                continue
            for t in graph.ops[op_id].outputs:
                if t not in outside:
                    beside = (c for c in graph.consumers[t] if c in with_it)
                    yield t, producer, [place for c in beside if (place := at[c]) is not None]

    @cached_property
    def _side_ops(self) -> frozenset[int]:
        """Ops outside the forward part that run with it: they lead from the line to updates."""
        graph = self.graph
        inside = graph.forward | graph.backward
        rest = [op for op in graph.ops if op.id not in inside]
        made = (t for op_id in self.anchors.line for t in graph.ops[op_id].outputs)
        from_line = led_to(rest, graph.tensors, made)
        found: set[int] = set()
        for op in reversed(rest):
            updates = op.stateful and not op.outputs and op.id in from_line
            if updates or any(c in found for t in op.outputs for c in graph.consumers[t]):
                found.add(op.id)
        return frozenset(found)

    @cached_property
    def _differentiable(self) -> frozenset[int]:
        """Forward tensors of fractions that weights lead to."""
        graph, found = self.graph, set[int]()
        for op_id in sorted(graph.forward):
            op = graph.ops[op_id]
            if op.type in READ_TYPES or not found.isdisjoint(op.inputs):
                found.update(t for t in op.outputs if "float" in graph.tensors[t].dtype)
        return frozenset(found)

    def _partition(
        self, ends: list[int], costs: list[int], balance: Balance, *, slack: float, optimum: int
    ) -> Partition:
        """The partition whose stages end with the ops `ends` of the line, and the line's end."""
        graph = self.graph
        outside = {graph.tensors[t].op for t in graph.data.inputs} | self.anchors.constants
        stage_of = tuple(
            None if place is None or op_id in outside else bisect_left(ends, place)
            for op_id, place in enumerate(self.anchors.at)
        )
        crossings = []
        for t, producer, readers in self._forward_edges():
            source = bisect_left(ends, producer)
            if targets := sorted({bisect_left(ends, reader) for reader in readers} - {source}):
                size_bytes, differs = graph.tensors[t].size_bytes, t in self._differentiable
                crossings.append(Crossing(t, source, tuple(targets), size_bytes, differs))
        crossings.sort(key=lambda crossing: crossing.tensor)
        homes: list[list[int]] = [[] for _ in range(len(ends) + 1)]
        for handle, home in self._homes.items():
            homes[bisect_left(ends, home)].append(handle)
        return Partition(
            fingerprint=graph.fingerprint,
            balance=balance,
            slack=slack,
            optimum=optimum,
            boundaries=tuple(graph.ops[end].name for end in ends),
            stage_of=stage_of,
            stages=tuple(
                self._stage(stage, stage_of, crossings, homes[stage], cost)
                for stage, cost in enumerate(self._totals(costs, ends))
            ),
            crossings=tuple(crossings),
        )

    def _stage(
        self,
        stage: int,
        stage_of: Sequence[int | None],
        crossings: list[Crossing],
        variables: list[int],
        cost: int,
    ) -> Stage:
        graph = self.graph
        own = {op_id for op_id in graph.forward if stage_of[op_id] == stage}
        updates = {o for o in self._side_ops if stage_of[o] == stage and graph.ops[o].stateful}
        beside = self._closure(updates, self._side_ops)
        own = self._closure(own | beside, self.anchors.constants) - beside
        read = {t for op_id in own | beside for t in graph.ops[op_id].inputs}

        def built(ops: set[int]) -> tuple[int, ...]:
            return tuple(sorted(o for o in ops if graph.ops[o].type != "Placeholder"))

        captures = (t for t in graph.data.captures if graph.tensors[t].dtype != "resource")
        return Stage(
            ops=built(own),
            side_ops=built(beside),
            inputs=tuple(t for t in graph.data.inputs if t in read),
            captures=tuple(t for t in captures if t in read),
            received=tuple(c.tensor for c in crossings if stage in c.targets),
            sent=tuple(c.tensor for c in crossings if c.source == stage),
            variables=tuple(variables),
            trainable=tuple(handle for handle in variables if handle in self._trainable),
            cost=cost,
        )

    def _closure(self, ops: set[int], among: frozenset[int]) -> set[int]:
        """`ops` with those of `among` that they are computed from."""
        graph = self.graph

        def before(op_id: int) -> Iterable[int]:
            return among.intersection(graph.tensors[t].op for t in graph.ops[op_id].inputs)

        return set(reached(ops, before))


def _stage_costs(sums: np.ndarray) -> np.ndarray:
    """[i, j]: the cost of a stage of the segments i to j - 1; far too much where it has none."""
    costs = sums[None, :] - sums[:, None]
    return np.where(np.tri(len(sums), dtype=bool), _FAR, costs)


def _smallest_maximum(sums: np.ndarray, stages: int) -> int:
    """The cost of the heaviest stage of the best block partition."""
    costs = _stage_costs(sums)
    best = costs[0]
    for _ in range(stages - 1):
        best = np.maximum(best[:, None], costs).min(axis=0)
    return int(best[-1])


def _least_traffic(sums: np.ndarray, arriving: np.ndarray, stages: int, *, limit: int) -> list[int]:
    """The cuts of the partition with the least traffic whose stages all cost at most `limit`.

    A cut c lies between the segments c and c + 1.
    """
    traffic = np.where(_stage_costs(sums) <= limit, arriving, _FAR)
    least, previous = traffic[0], []
    for _ in range(stages - 1):
        through = np.minimum(least[:, None] + traffic, _FAR)
        previous.append(through.argmin(axis=0))
        least = through.min(axis=0)
    ends = [len(sums) - 1]
    for before in reversed(previous):
        ends.append(int(before[ends[-1]]))
    return [end - 1 for end in ends[:0:-1]]
