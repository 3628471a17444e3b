"""From decisions to a program: the order of the ops, and where recomputations and swaps stand.

Strategies decide per activation; `lower` turns the decisions into a plan's actions:

    forward     run op by op; after the turn, whatever is not kept counts as gone
    backward    before an op runs, bring back what it reads: swap it in, or recompute it from
                what is there, depth first, so that each clone stands just before its first use

A clone's output stays until its last reader, unless it is `fleeting`: then each reader gets its
own. Both steps are linear in the size of the program they make.
"""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import READ_TYPES, StepGraph
from memtrade.plan import Action, Decision

# An op whose outputs are all this small runs as soon as it can: shapes, moving averages, biases'
# gradients. They would otherwise hold the large tensors that they read.
SMALL_BYTES = 64 * 1024

# The rank of a backward op that runs before all others that could.
_URGENT = -(1 << 62)


@dataclass(frozen=True)
class _Facts:
    """What follows from a graph alone, and so is the same for all decisions on it.

    Attributes:
        order: see `base_order`. before, successors: see `_dependencies`. eager: see `_eager`.
    """

    order: tuple[int, ...]
    before: list[set[int]]
    successors: list[list[int]]
    eager: list[bool]


# Strategies lower many choices on one graph.
_KNOWN: weakref.WeakKeyDictionary[StepGraph, _Facts] = weakref.WeakKeyDictionary()


def _facts(graph: StepGraph) -> _Facts:
    if graph not in _KNOWN:
        before, successors = _dependencies(graph)
        eager = _eager(graph)
        _KNOWN[graph] = _Facts(
            tuple(_ordered(graph, before, successors, eager)), before, successors, eager
        )
    return _KNOWN[graph]


def base_order(graph: StepGraph) -> list[int]:
    """The op ids in a memory-lean topological order, close to the order of creation.

    Three departures from the order of creation: what does not descend from the turn runs before
    it; small ops and those that feed only updates (weights' gradients) run as soon as they can,
    so that what they read is freed; an update waits for the readers of its variable, so that it
    happens in place. O(ops + edges).
    """
    return list(_facts(graph).order)


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
    """For each update, the earlier-created ops that read its variable's old value."""
    reads: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for op in graph.ops:
        if op.type in READ_TYPES:
            reads.setdefault(op.inputs[0], []).append(op.outputs[0])
        elif op.stateful and not op.outputs:
            values = [value for t in op.inputs for value in reads.get(t, ())]
            readers[op.id] = [c for v in values for c in graph.consumers[v] if c < op.id]
    return readers


def _eager(graph: StepGraph) -> list[bool]:
    eager = [False] * len(graph.ops)
    returned = set(graph.data.outputs)
    for op in reversed(graph.ops):
        small = sum(graph.tensors[t].size_bytes for t in op.outputs) <= SMALL_BYTES
        into_updates = bool(op.outputs) and all(
            t not in returned
            and graph.consumers[t]
            and all(eager[c] and not graph.ops[c].outputs for c in graph.consumers[t])
            for t in op.outputs
        )
        eager[op.id] = (small and bool(op.inputs)) or into_updates
    return eager


def _on_demand(graph: StepGraph) -> set[int]:
    """Backward ops that could run before any gradient, and so must not: see StepGraph.backward."""
    return {
        op_id
        for op_id in graph.backward - graph.descendants
        if not graph.ops[op_id].stateful
        and all(c in graph.backward for t in graph.ops[op_id].outputs for c in graph.consumers[t])
        and any(graph.consumers[t] for t in graph.ops[op_id].outputs)
    }


@dataclass(frozen=True)
class Lowering:
    """How decisions are carried out, beyond the decisions themselves.

    Attributes:
        fleeting: root tensors that are recomputed anew for each of their readers.
        branch_threshold: a swapped tensor also leaves between two forward readers that lie more
            than this many ops apart. None: only the backward part brings tensors back.
    """

    fleeting: frozenset[int] = frozenset()
    branch_threshold: int | None = None


def lower(
    graph: StepGraph, decisions: Mapping[int, Decision], lowering: Lowering = Lowering()
) -> tuple[Action, ...]:
    """The program that carries out `decisions` (root tensor id -> decision).

    What later ops read is kept unless there is a decision. Other forward tensors are not kept
    for the backward part: where a clone needs one, it is recomputed too. Outputs of stateful ops
    are kept unless they are swapped.
    """
    return _Program(graph, decisions, lowering).actions()


class _Program:
    """The state of `lower`: which tensors are absent, and which backward ops could run next."""

    def __init__(self, graph: StepGraph, decisions: Mapping[int, Decision], lowering: Lowering):
        self.graph = graph
        self.made: list[Action] = []
        self.dropped = _dropped(graph, decisions)
        self.swapped = {t for t in self.dropped if decisions.get(t) == "swap"}
        self.brief = self.dropped & lowering.fleeting
        self.branch_threshold = lowering.branch_threshold
        self.absent: set[int] = set()  # tensors whose latest version may no longer be read
        self.readers = [0] * len(graph.tensors)  # backward ops that have yet to read each root
        self.changed: list[int] = []  # see _take_changed

    def actions(self) -> tuple[Action, ...]:
        order = base_order(self.graph)
        turn = max(i for i, op_id in enumerate(order) if op_id in self.graph.forward)
        leaving = self._leaving_branches(order[: turn + 1])
        for op_id in order[: turn + 1]:
            self._run(op_id)
            self.absent.update(leaving.get(op_id, ()))
        self.absent |= self.dropped
        for op_id in order[turn + 1 :]:
            for t in set(self.graph.ops[op_id].inputs):
                self.readers[self.graph.root[t]] += 1
        self._run_backward(order[turn + 1 :])
        return tuple(self.made)

    def _leaving_branches(self, order: list[int]) -> dict[int, list[int]]:
        """For each op, the swapped tensors whose next forward reader is far behind it."""
        leaving: dict[int, list[int]] = {}
        if self.branch_threshold is None:
            return leaving
        position = {op_id: i for i, op_id in enumerate(order)}
        for t in sorted(self.swapped):
            touched = sorted(
                position[op_id]
                for op_id in (self.graph.tensors[t].op, *self.graph.consumers[t])
                if op_id in position
            )
            for now, then in itertools.pairwise(touched):
                if then - now > self.branch_threshold:
                    leaving.setdefault(order[now], []).append(t)
        return leaving

    def _run_backward(self, order: list[int]) -> None:
        """List scheduling: of the ops that could run, the one that leaves least memory in use.

        Ties go to the base order. That walks one branch of a block to its end before it enters
        the next, where the order of creation would hold the gradients of all branches at once.
        Ops on demand run just before the first that waits for them.
        """
        position = {op_id: i for i, op_id in enumerate(order)}
        facts = _facts(self.graph)
        before, successors, eager = facts.before, facts.successors, facts.eager
        pending = dict.fromkeys(order, 0)
        for op_id in order:
            for successor in successors[op_id]:
                pending[successor] += 1
        on_demand = _on_demand(self.graph)
        available: set[int] = set()  # ops on demand that could run
        ready: dict[int, int] = {}  # op -> its rank: what it leaves in use, or _URGENT
        heap: list[tuple[int, int, int]] = []  # (rank, position, op); outdated ones stay in it

        def rank(op_id: int) -> None:
            ready[op_id] = _URGENT if eager[op_id] else self._growth(op_id)
            heapq.heappush(heap, (ready[op_id], position[op_id], op_id))

        def release(op_id: int) -> None:
            """Makes `op_id` ready, or what waits for it if it will run in time for that."""
            stack = [op_id]
            while stack:
                released = stack.pop()
                if released not in on_demand:
                    rank(released)
                    continue
                available.add(released)
                stack.extend(waits_no_longer(released))

        def waits_no_longer(op_id: int) -> list[int]:
            for successor in successors[op_id]:
                pending[successor] -= 1
            return [successor for successor in successors[op_id] if pending[successor] == 0]

        for op_id in [op_id for op_id in order if pending[op_id] == 0]:
            release(op_id)
        while heap:
            ranked, _, chosen = heapq.heappop(heap)
            if ready.get(chosen) != ranked:
                continue
            del ready[chosen]
            stack = [chosen]
            while stack:
                wanted = available.intersection(before[stack[-1]])
                if wanted:
                    stack.append(min(wanted))
                    continue
                op_id = stack.pop()
                available.discard(op_id)
                self._run(op_id)
                for t in set(self.graph.ops[op_id].inputs):
                    root = self.graph.root[t]
                    self.readers[root] -= 1
                    if self.readers[root] == 1:
                        self.changed.append(root)
            for successor in waits_no_longer(chosen):
                release(successor)
            for t in self._take_changed():
                for view in self.graph.views(t):
                    for reader in self.graph.consumers[view]:
                        if ready.get(reader, _URGENT) != _URGENT:
                            rank(reader)

    def _take_changed(self) -> list[int]:
        """The roots whose readers or presence changed, so that their readers' ranks did."""
        changed = [t for t in dict.fromkeys(self.changed) if self.graph.is_intermediate(t)]
        self.changed.clear()
        return changed

    def _growth(self, op_id: int) -> int:
        """Bytes in use after the op less those before, clones not counted."""
        op, root = self.graph.ops[op_id], self.graph.root
        grown = sum(self.graph.tensors[t].size_bytes for t in op.outputs if root[t] == t)
        for t in {root[t] for t in op.inputs if t not in self.absent}:
            if self.readers[t] == 1 and self.graph.is_intermediate(t):
                grown -= self.graph.tensors[t].size_bytes
        return grown

    def _run(self, op_id: int) -> None:
        op = self.graph.ops[op_id]
        for t in op.inputs:
            self._bring_back(t)
        self.made.append(Action("run", op_id))
        self.made.extend(Action("swap_out", t) for t in op.outputs if t in self.swapped)
        if self.absent:
            self._forget(op.inputs)

    def _forget(self, inputs: Iterable[int]) -> None:
        """What is fleeting is gone once it has been read."""
        gone = self.brief.intersection(inputs)
        self.absent |= gone
        self.changed.extend(self.graph.root[t] for t in gone)

    def _bring_back(self, tensor: int) -> None:
        """Swaps `tensor` in, or recomputes it and, depth first, what that needs."""
        stack = [tensor]
        while stack:
            t = stack[-1]
            if t not in self.absent:
                stack.pop()
            elif t in self.swapped:
                self.made.append(Action("swap_in", stack.pop()))
                self.absent.discard(t)
                self.changed.append(self.graph.root[t])
            else:
                op = self.graph.ops[self.graph.tensors[t].op]
                missing = [i for i in op.inputs if i in self.absent]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                stack.pop()
                self.made.append(Action("recompute", op.id))
                self.absent.difference_update(op.outputs)
                self.changed.extend(self.graph.root[t] for t in op.outputs)
                self._forget(op.inputs)


def _dropped(graph: StepGraph, decisions: Mapping[int, Decision]) -> set[int]:
    """The forward tensors that count as gone after the turn."""
    kept_by_default = {
        graph.root[t.id]
        for t in graph.tensors
        if any(c not in graph.forward for c in graph.consumers[t.id])
    }
    dropped: set[int] = set()
    for op_id in graph.forward:
        for t in graph.ops[op_id].outputs:
            root = graph.root[t]
            decision = decisions.get(root, "keep" if root in kept_by_default else "recompute")
            if decision == "recompute" and graph.ops[graph.tensors[root].op].stateful:
                decision = "keep"
            if decision != "keep" and graph.is_intermediate(root):
                dropped.add(t)
    return dropped
