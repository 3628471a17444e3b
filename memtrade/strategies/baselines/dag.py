"""The cheapest recomputations on a graph of nodes, under a memory limit: exact, or relaxed.

After P. Jain et al., "Checkmate: Breaking the memory wall with optimal tensor rematerialization",
MLSys 2020, arXiv 1910.02653. The nodes 0 .. n-1, in topological order, run in stages: in stage t
node t runs for the first time, and before it whatever was dropped and is needed again.

    R[t, i]   node i runs in stage t                        R[t, t] = 1        (their eq. 8a)
    S[t, i]   its output is held from stage t - 1 to t
    minimise    sum of cost_i R[t, i]                                          (1a)
    subject to  R[t, v] <= R[t, u] + S[t, u]  for each edge (u, v)             (1b)
                S[t+1, i] <= S[t, i] + R[t, i]                                 (1c)
                what is in use while node k of stage t runs, and its own output, fit the budget

Where they add up what each step frees (FREE, U), we count what is present. Output i, with readers
u1 < u2 < ..., is there while node k > i of stage t runs if a reader from k on runs in this stage,
or if it is held for the next one; Q[t, i, r] is that, for k up to the r-th reader:

    Q[t, i, r] >= R[t, u_r],  Q[t, i, r] >= Q[t, i, r+1],  Q[t, i, last] >= S[t+1, i]

The integer solutions are the same; there is no product of variables to make linear, and no large
constant in the rows. Size: O(n (nodes + edges)).

`solve` is exact, by branch and bound; `relax` solves the linear relaxation, which `rounding.py`
makes schedules of. Within a stage nodes run in their order, each at most once, as in the paper:
where memory is very tight, a schedule that goes back and forth within a stage could do with less.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memtrade.strategies.milp import Floats, Indices, Milp

Bits = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Dag:
    """A step as a graph of nodes with one output each, numbered in a topological order.

    Attributes:
        costs: of running each node once, at least 0.
        sizes: of each node's output.
        scratch: memory that a node needs only while it runs; below zero if its inputs and its
            output are not all there at once.
        parents: for each node, the nodes that it reads.
        once: whether a node must not run again; its output is then there from its stage on until
            its last reader.
    """

    costs: Floats
    sizes: Floats
    scratch: Floats
    parents: tuple[tuple[int, ...], ...]
    once: Bits

    @cached_property
    def edges(self) -> tuple[Indices, Indices]:
        """Parents and children, ascending in the children."""
        pairs = [(u, v) for v, parents in enumerate(self.parents) for u in parents]
        both = np.array(pairs, np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    @cached_property
    def read_by(self) -> list[int]:
        """For each node, its parents as the bits of an int."""
        return [sum(1 << u for u in parents) for parents in self.parents]

    def __len__(self) -> int:
        return len(self.costs)

    @classmethod
    def of(
        cls,
        costs: Sequence[float],
        sizes: Sequence[float],
        edges: Iterable[tuple[int, int]],
        *,
        scratch: ArrayLike = 0.0,
        once: ArrayLike = False,
    ) -> Dag:
        """Edges (u, v) say that v reads u; u < v."""
        parents: list[set[int]] = [set() for _ in costs]
        for u, v in edges:
            if not 0 <= u < v < len(parents):
                raise ValueError(f"edges lead from lower to higher nodes, not from {u} to {v}")
            parents[v].add(u)
        count = len(parents)
        return cls(
            np.array(costs, float),
            np.array(sizes, float),
            np.full(count, scratch, float),
            tuple(tuple(sorted(p)) for p in parents),
            np.full(count, once, bool),
        )

    @property
    def readers(self) -> list[list[int]]:
        readers: list[list[int]] = [[] for _ in self.costs]
        for v, parents in enumerate(self.parents):
            for u in parents:
                readers[u].append(v)
        return readers

    @property
    def last_stages(self) -> list[int]:
        """For each node, the last stage in which its output can be needed."""
        last = list(range(len(self)))
        for v in reversed(range(len(self))):
            for u in self.parents[v]:
                last[u] = max(last[u], v if self.once[v] else last[v])
        return last


@dataclass(frozen=True)
class Recomputation:
    """Attributes:
    runs: R, [stage, node].
    held: S, [stage, node]: held into the stage.
    cost: of all that runs.
    peak: most memory in use at once.
    bound: no schedule within the budget costs less; minus infinity where that is not known.
    """

    runs: Bits
    held: Bits
    cost: float
    peak: float
    bound: float


def solve(
    dag: Dag, budget: float, *, node_limit: int | None = None, relative_gap: float = 1e-6
) -> Recomputation | None:
    """The cheapest schedule within the budget, or None where there is none, or none was found
    within `node_limit` nodes of branch and bound."""
    program = _Program(dag, budget)
    found = program.model.solve(node_limit=node_limit, relative_gap=relative_gap)
    if not found.found:
        return None
    return schedule_of(dag, program.held(found.values) > 0.5, bound=found.bound)


@dataclass(frozen=True)
class Relaxed:
    """The solution of the linear relaxation.

    Attributes:
        held: S, fractions from 0 to 1.
        budget: the one asked for, or the least one that the relaxation can do with.
        bound: no schedule within the budget costs less.
    """

    held: Floats
    budget: float
    bound: float


def relax(dag: Dag, budget: float | None) -> Relaxed | None:
    """The relaxation's solution for a budget, or None where it has none, and so nothing has.

    Without a budget: the one that needs least memory. No schedule needs less.
    """
    program = _Program(dag, budget)
    found = program.model.solve(relax=True)
    if not found.found:
        return None
    needed = found.values[program.budget] * program.unit
    bound = found.objective if budget is not None else -math.inf
    return Relaxed(program.held(found.values), needed, bound)


class _Program:
    """The columns and rows. Memory is in units of the largest size, as solvers like it.

    Without a budget, the budget is what is minimised, and costs do not count.
    """

    def __init__(self, dag: Dag, budget: float | None):
        self.dag = dag
        self.count = n = len(dag)
        self.unit = unit = max([1e-9, *dag.sizes, *dag.scratch])
        self.sizes, self.scratch = dag.sizes / unit, dag.scratch / unit
        self.last, self.readers = dag.last_stages, dag.readers
        self.model = Milp()
        self.r, self.s = self._columns_of_schedule(costs=budget is not None)
        # q[i][r][t]: output i is there until its r-th reader has run in stage t.
        self.q = [[self.model.columns(n, upper=1.0) for _ in self.readers[i]] for i in range(n)]
        self.in_use = self.model.columns(n * n).reshape(n, n)
        fixed = (0.0, math.inf) if budget is None else (budget / unit, budget / unit)
        self.budget = int(
            self.model.columns(1, cost=float(budget is None), lower=fixed[0], upper=fixed[1])[0]
        )
        self._add_dependencies()
        self._add_presence()
        self._add_memory()

    def _columns_of_schedule(self, *, costs: bool) -> tuple[Indices, Indices]:
        n, dag = self.count, self.dag
        stages, nodes = np.indices((n, n))
        first = stages == nodes
        needed = (nodes < stages) & (stages <= np.array(self.last))
        again = needed & ~dag.once
        # An output that cannot come again is there until the last of its readers that runs once.
        stays = [max((v for v in self.readers[u] if dag.once[v]), default=u) for u in range(n)]
        must = needed & dag.once & (stages <= np.array(stays))
        cost = np.broadcast_to(dag.costs * costs, (n, n)).ravel()
        runs = self.model.columns(
            n * n, cost=cost, lower=first.ravel(), upper=(first | again).ravel(), integer=True
        )
        held = self.model.columns(n * n, lower=must.ravel(), upper=needed.ravel(), integer=True)
        return runs.reshape(n, n), held.reshape(n, n)

    def _add_dependencies(self) -> None:
        r, s, row = self.r, self.s, self.model.row
        for v, parents in enumerate(self.dag.parents):
            for t in range(v, self.last[v] + 1):
                for u in parents:
                    row([(r[t, v], 1.0), (r[t, u], -1.0), (s[t, u], -1.0)], at_most=0.0)
        for i, last in enumerate(self.last):
            for t in range(i, last):
                row([(s[t + 1, i], 1.0), (s[t, i], -1.0), (r[t, i], -1.0)], at_most=0.0)

    def _add_presence(self) -> None:
        for i, readers in enumerate(self.readers):
            for rank, reader in enumerate(readers):
                for t in range(reader, self.last[i] + 1):
                    here = self.q[i][rank][t]
                    self.model.row([(here, 1.0), (self.r[t, reader], -1.0)], at_least=0.0)
                    later = self._present(t, reader + 1, i)
                    if later is not None:
                        self.model.row([(here, 1.0), (later, -1.0)], at_least=0.0)

    def _present(self, t: int, k: int, i: int) -> int | None:
        """The column that says whether output i < k is there while node k of stage t runs."""
        rank = bisect_left(self.readers[i], k)
        if rank < len(self.readers[i]) and self.readers[i][rank] <= t <= self.last[i]:
            return int(self.q[i][rank][t])
        return int(self.s[t + 1, i]) if t < self.last[i] else None

    def _add_memory(self) -> None:
        """in_use[t, k]: besides output k, while node k of stage t runs."""
        row = self.model.row
        for t in range(self.count):
            held = [(self.s[t, i], -self.sizes[i]) for i in range(1, t)]
            row([(self.in_use[t, 0], 1.0), *held], at_least=0.0, at_most=0.0)
            for k in range(t + 1):
                here = self.in_use[t, k]
                own = self.sizes[k] + self.scratch[k]
                row([(here, 1.0), (self.r[t, k], own), (self.budget, -1.0)], at_most=0.0)
                if k == t:
                    break
                change = [(here, -1.0), (self.in_use[t, k + 1], 1.0)]
                change.append((self.s[t, k + 1], self.sizes[k + 1]))
                for i in (k, *self.dag.parents[k]):
                    before = self._present(t, k, i) if i < k else None
                    after = self._present(t, k + 1, i)
                    if before is not None:
                        change.append((before, self.sizes[i]))
                    if after is not None:
                        change.append((after, -self.sizes[i]))
                row(change, at_least=0.0, at_most=0.0)

    def held(self, values: Floats) -> Floats:
        return values[self.s]


def schedule_of(dag: Dag, held: Bits, *, bound: float = -math.inf) -> Recomputation:
    """The cheapest schedule that holds what `held` says, where it can: R from S (algorithm 2).

    What is held without use is left out.
    """
    held = held & np.tri(len(dag), k=-1, dtype=bool)
    held = _used(dag, held, least_runs(dag, held))
    runs = least_runs(dag, held)
    cost = float(runs.sum(axis=0) @ dag.costs)
    most = max(stage_peak(dag, held, t, runs[t]) for t in range(len(dag)))
    return Recomputation(runs, held, cost, most, bound)


def least_runs(dag: Dag, held: Bits) -> Bits:
    return np.array([stage_runs(dag, held, t) for t in range(len(dag))])


def stage_runs(dag: Dag, held: Bits, t: int) -> Bits:
    """What must run in stage `t`: its node, what is held from then on, and what those read."""
    absent = ~_as_int(held[t])
    runs = 1 << t
    if t + 1 < len(dag):
        runs |= _as_int(held[t + 1]) & absent
    for v in range(t, -1, -1):
        if runs >> v & 1:
            runs |= dag.read_by[v] & absent
    rows = np.frombuffer(runs.to_bytes(len(dag) // 8 + 1, "little"), np.uint8)
    return np.unpackbits(rows, count=len(dag), bitorder="little").astype(bool)


def _as_int(row: Bits) -> int:
    """A bit for each node: the ints of Python take sets of a few hundred at once."""
    return int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")


def _used(dag: Dag, held: Bits, runs: Bits) -> Bits:
    """`held` without what nobody reads before it is dropped or made again."""
    used = np.zeros_like(held)
    later = np.zeros(len(dag), bool)  # held for the next stage, with use
    for t in reversed(range(len(dag))):
        read = np.zeros(len(dag), bool)
        for v in np.flatnonzero(runs[t]):
            read[list(dag.parents[v])] = True
        used[t] = held[t] & ~runs[t] & (read | later)
        later = used[t]
    return used


def stage_peak(dag: Dag, held: Bits, t: int, runs: Bits) -> float:
    """Most memory in use in stage `t`, step by step: outputs come when a node runs, and go after
    their last reader of the stage unless they are held for the next."""
    count = len(dag)
    here, sizes = held[t], dag.sizes
    steps = np.flatnonzero(runs)
    parents, children = dag.edges
    read = runs[children]
    # Ascending in the children, so the last one stays.
    last = np.full(count, -1)
    last[parents[read]] = children[read]
    # What nobody reads goes with the first step that is not before it.
    first = np.append(steps, count)[np.searchsorted(steps, np.arange(count))]
    gone = np.maximum(last, first)
    if t + 1 < count:
        gone[held[t + 1]] = count
    come = runs & ~here
    there = come | here
    change = -np.bincount(
        np.minimum(gone[there], count) + 1, weights=sizes[there], minlength=count + 2
    )
    change[:count][come] += sizes[come]
    start = float(sizes[here].sum())
    in_use = start + np.cumsum(change)[steps]
    return max(start, float((in_use + dag.scratch[steps]).max(initial=0.0)))
