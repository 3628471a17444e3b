"""From decisions to a program: the order of the ops, and where recomputations and swaps stand.

Strategies decide per activation; `lower` turns the decisions into a plan's actions:

    forward     run op by op; after the turn, whatever is not kept counts as gone
    backward    before an op runs, bring back what it reads: swap it in, or recompute it from
                what is there, depth first, so that each clone stands just before its first use

A clone's output stays until its last reader, unless it is `fleeting`: then each reader gets its
own. Both steps are linear in the size of the program they make.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from memtrade.graph import StepGraph
from memtrade.order import GraphFacts, facts_of
from memtrade.plan import Action, Decision

# The rank of a backward op that runs before all others that could.
_URGENT = -(1 << 62)


@dataclass(frozen=True)
class Lowering:
    """How decisions are carried out, beyond the decisions themselves.

    Attributes:
        fleeting: root tensors that are recomputed anew for each of their readers.
        branch_threshold: a swapped tensor also leaves between two forward readers that lie more
            than this many ops apart. None: only the backward part brings tensors back.
        lean_forward: the forward part is scheduled as the backward part is, not as it was created.
    """

    fleeting: frozenset[int] = frozenset()
    branch_threshold: int | None = None
    lean_forward: bool = False


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
        self.graph, self.facts = graph, facts_of(graph)
        self.made: list[Action] = []
        self.dropped = _dropped(graph, decisions)
        self.swapped = {t for t in self.dropped if decisions.get(t) == "swap"}
        self.brief = self.dropped & lowering.fleeting
        self.branch_threshold = lowering.branch_threshold
        self.lean_forward = lowering.lean_forward
        self.absent: set[int] = set()  # tensors whose latest version may no longer be read
        self.readers = self.facts.readers.copy()  # backward ops that have yet to read each root
        self.changed: list[int] = []  # see _take_changed

    def actions(self) -> tuple[Action, ...]:
        order, turn = self.facts.order, self.facts.turn
        forward: Sequence[int] = order[: turn + 1]
        if self.lean_forward:
            forward = lean_order(self.graph, forward, self.dropped)
        leaving = self._leaving_branches(forward)
        for op_id in forward:
            self._run(op_id)
            self.absent.update(leaving.get(op_id, ()))
        self.absent |= self.dropped
        self._run_backward(order[turn + 1 :])
        return tuple(self.made)

    def _leaving_branches(self, order: Sequence[int]) -> dict[int, list[int]]:
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

    def _run_backward(self, order: Sequence[int]) -> None:
        """List scheduling: of the ops that could run, the one that leaves least memory in use.

        Ties go to the base order. That walks one branch of a block to its end before it enters
        the next, where the order of creation would hold the gradients of all branches at once.
        Ops on demand run just before the first that waits for them.
        """
        waiting = _Waiting(self.facts, self.growth, order, self.facts.pending.copy())
        while (chosen := waiting.next()) is not None:
            stack = [chosen]
            while stack:
                wanted = waiting.on_demand(stack[-1])
                if wanted:
                    stack.append(min(wanted))
                    continue
                op_id = stack.pop()
                waiting.available.discard(op_id)
                self._run(op_id)
                self._has_read(op_id)
            for successor in waiting.released_by(chosen):
                waiting.release(successor)
            for t in self._take_changed():
                for reader in self.graph.readers(t):
                    waiting.rank_again(reader)

    def _has_read(self, op_id: int) -> None:
        roots, readers = self.graph.root, self.readers
        for t in self.facts.reads[op_id]:
            root = roots[t]
            readers[root] -= 1
            if readers[root] == 1:
                self.changed.append(root)

    def _take_changed(self) -> list[int]:
        """The roots whose readers or presence changed, so that their readers' ranks did."""
        freed_bytes = self.facts.freed_bytes
        changed = [t for t in dict.fromkeys(self.changed) if freed_bytes[t]]
        self.changed.clear()
        return changed

    def growth(self, op_id: int) -> int:
        """Bytes in use after the op less those before, clones not counted."""
        root, readers, facts = self.graph.root, self.readers, self.facts
        grown = facts.made_bytes[op_id]
        for t in facts.reads[op_id]:
            if readers[root[t]] == 1 and t not in self.absent:
                grown -= facts.freed_bytes[root[t]]
        return grown

    def _run(self, op_id: int) -> None:
        op = self.graph.ops[op_id]
        for t in op.inputs:
            if t in self.absent:
                self._bring_back(t)
        self.made.append(Action("run", op_id))
        for t in op.outputs:
            if t in self.swapped:
                self.made.append(Action("swap_out", t))
        if self.brief and self.absent:
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


class _Waiting:
    """The ops that have yet to run, by what running them would leave in use.

    Attributes:
        growth: bytes in use after an op less those before. pending: for how many each op waits.
        available: ops on demand that could run.
    """

    def __init__(
        self,
        facts: GraphFacts,
        growth: Callable[[int], int],
        order: Sequence[int],
        pending: dict[int, int],
    ):
        self.facts, self.growth, self.pending = facts, growth, pending
        self.position = {op_id: i for i, op_id in enumerate(order)}
        self.available: set[int] = set()
        self.ranks: dict[int, int] = {}  # op that could run -> what it leaves in use, or _URGENT
        self.heap: list[tuple[int, int, int]] = []  # (rank, position, op); outdated ones stay
        for op_id in [op_id for op_id in order if self.pending[op_id] == 0]:
            self.release(op_id)

    def next(self) -> int | None:
        """The one that leaves least in use; None where none is left."""
        while self.heap:
            ranked, _, op_id = heapq.heappop(self.heap)
            if self.ranks.get(op_id) == ranked:
                del self.ranks[op_id]
                return op_id
        return None

    def on_demand(self, op_id: int) -> set[int]:
        """What must run just before `op_id`."""
        return self.available and self.available.intersection(self.facts.before[op_id])

    def release(self, op_id: int) -> None:
        """Makes `op_id` ready, or what waits for it if it will run in time for that."""
        stack = [op_id]
        while stack:
            released = stack.pop()
            if released not in self.facts.on_demand:
                self._rank(released)
                continue
            self.available.add(released)
            stack.extend(self.released_by(released))

    def released_by(self, op_id: int) -> list[int]:
        """The ops that wait for nothing else any more."""
        pending, successors = self.pending, self.facts.successors[op_id]
        for successor in successors:
            pending[successor] -= 1
        return [successor for successor in successors if pending[successor] == 0]

    def rank_again(self, op_id: int) -> None:
        if self.ranks.get(op_id, _URGENT) != _URGENT:
            self._rank(op_id)

    def _rank(self, op_id: int) -> None:
        self.ranks[op_id] = _URGENT if self.facts.eager[op_id] else self.growth(op_id)
        heapq.heappush(self.heap, (self.ranks[op_id], self.position[op_id], op_id))


def lean_order(graph: StepGraph, order: Sequence[int], dropped: Set[int]) -> list[int]:
    """`order`, the beginning of a step, by list scheduling: of the ops that could run, the one that
    leaves least memory in use. What is not among the `dropped` tensors and read later stays in use.
    O(readers log ops).
    """
    facts, root, here = facts_of(graph), graph.root, set(order)
    readers = [0] * len(graph.tensors)
    for t in graph.tensors:
        later = t.id not in dropped and any(c not in here for c in graph.consumers[t.id])
        readers[root[t.id]] += sum(c in here for c in graph.consumers[t.id]) + 2 * later
    never = len(graph.ops) + 1
    pending = {
        op.id: len(facts.before[op.id] & here) if op.id in here else never for op in graph.ops
    }

    def growth(op_id: int) -> int:
        op = graph.ops[op_id]
        grown = sum(graph.tensors[t].size_bytes for t in op.outputs if root[t] == t)
        for t in {root[t] for t in op.inputs}:
            if readers[t] == 1 and graph.is_intermediate(t):
                grown -= graph.tensors[t].size_bytes
        return grown

    waiting = _Waiting(facts, growth, order, pending)
    found: list[int] = []
    while (chosen := waiting.next()) is not None:
        found.append(chosen)
        for successor in waiting.released_by(chosen):
            waiting.release(successor)
        for t in dict.fromkeys(graph.ops[chosen].inputs):
            readers[root[t]] -= 1
            if readers[root[t]] == 1:
                for reader in graph.readers(root[t]):
                    waiting.rank_again(reader)
    return found


def _dropped(graph: StepGraph, decisions: Mapping[int, Decision]) -> set[int]:
    """The forward tensors that count as gone after the turn."""
    kept_by_default = facts_of(graph).kept_by_default
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
