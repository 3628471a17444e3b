"""Spilling: what lies about where memory is tightest leaves for a while, whatever it is.

The programme decides once per activation. At the peak of what it finds there are still tensors that
nobody looks at just then: a gradient that waits for its branch, a mask that was read a moment ago
and will be again. As a register allocator spills registers, they go to the host in between:

    swap_in mask   run filter_gradient   run input_gradient   run add   run relu_gradient
                   reads the mask        ── not looked at ──────────►   reads it again

    swap_in mask   run filter_gradient   run input_gradient   run add   swap_in mask   run ...

What is on the host already only comes back a second time. The peak that is left is that of one op
with all that it reads and makes: nothing that works on whole tensors goes below it.

Which of them goes is chosen greedily, at the highest moment first: the one whose copies relieve
most for their time (after L. A. Belady, "A study of replacement algorithms", IBM Systems Journal
5(2), 1966, with sizes and costs). Not guaranteed: that no other choice takes less time.
O(actions + spilled x resting).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from memtrade.graph import StepGraph
from memtrade.plan import Action
from memtrade.simulate.memory import Simulator
from memtrade.simulate.program import Code, Program
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import is_worth_deciding

# What is smaller than this share of the peak is not worth two more ops.
_SMALL_SHARE = 1 / 500


@dataclass(frozen=True)
class _Rest:
    """A stretch of the program in which a tensor is there and nobody looks at it.

    Attributes:
        after, before: the actions that touch it last before, and next.
        views: the ops that make its views that are read from then on, in order.
        outside: whether a copy is on the host by then.
    """

    tensor: int
    size_bytes: int
    after: int
    before: int
    views: tuple[int, ...]
    outside: bool


@dataclass
class _Buffer:
    """A tensor's version with its views.

    Attributes:
        touched: (action, the tensor or view of it that is read) in order.
        views: each with the action that made it.
    """

    tensor: int
    touched: list[tuple[int, int]]
    views: dict[int, int] = field(default_factory=dict)

    def again(self, graph: StepGraph, here: int) -> tuple[int, ...] | None:
        """The ops that make the views anew that are there after touch `here` and read later on, in
        order; None where one cannot run again."""
        now = self.touched[here][0]
        found: set[int] = set()
        stack = [t for _, t in self.touched[here + 1 :] if self.views.get(t, now + 1) <= now]
        while stack:
            op = graph.ops[graph.tensors[stack.pop()].op]
            if op.stateful:
                return None
            if op.id not in found:
                found.add(op.id)
                stack += [t for t in op.inputs[:1] if t in self.views]
        return tuple(sorted(found))


def spilled(
    clock: TimeSimulator, actions: Sequence[Action], limit_bytes: int, host_bytes: float = math.inf
) -> tuple[Action, ...]:
    """`actions` with copies out and in, so that no more than `limit_bytes` are asked for at once,
    or as few more as that can reach. Variables, constants and the batch stay where they are.

    Args:
        clock: knows the graph, and what copies take.
        host_bytes: how much more host memory may be used.
    """
    live = np.array(clock.simulator.live_bytes(actions), dtype=np.int64)
    rests = list(_rests(clock, actions, int(live.max() * _SMALL_SHARE)))
    limit = max(limit_bytes, _floor(live, rests))
    chosen = _choose(clock, live, rests, limit, host_bytes)
    return tuple(_with_copies(actions, chosen)) if chosen else tuple(actions)


def least_bytes(simulator: Simulator) -> int:
    """What no plan that moves and remakes whole tensors goes below: the most that one op needs with
    all that it reads and makes, besides what is always there."""
    graph, linker = simulator.graph, simulator.linker
    most = 0
    for op, spec in zip(graph.ops, linker.specs, strict=True):
        if spec is None or spec.code != Code.COMPUTE:
            continue
        read = {graph.root[t] for t in op.inputs}
        needed = sum(linker.sizes[t] for t in read if graph.is_intermediate(t))
        needed += sum(each.size_bytes for each in spec.requests if not each.forwarded)
        most = max(most, needed)
    return simulator.laid_bytes + most


def _floor(live: np.ndarray, rests: Sequence[_Rest]) -> int:
    """The peak that is left where all that rests is away."""
    away = np.zeros(len(live) + 1, dtype=np.int64)
    for rest in rests:
        away[rest.after + 1] += rest.size_bytes
        away[rest.before] -= rest.size_bytes
    return int((live - np.cumsum(away)[:-1]).max())


def _choose(
    clock: TimeSimulator,
    live: np.ndarray,
    rests: Sequence[_Rest],
    limit_bytes: int,
    host_bytes: float,
) -> list[_Rest]:
    """Some of `rests`, so that `live`, which is changed, nowhere exceeds the limit."""
    left, chosen, sent = list(rests), [], set()
    while left:
        peak = int(live.argmax())
        if live[peak] <= limit_bytes:
            break
        over = np.maximum(live - limit_bytes, 0)

        def worth(rest: _Rest, over: np.ndarray = over) -> float:
            relieved = np.minimum(over[rest.after + 1 : rest.before], rest.size_bytes).sum()
            seconds = clock.in_seconds[rest.tensor]
            if not rest.outside:
                seconds += clock.out_seconds[rest.tensor]
            return float(relieved) / seconds

        around = [
            rest
            for rest in left
            if rest.after < peak < rest.before
            and (rest.outside or rest.tensor in sent or rest.size_bytes <= host_bytes)
        ]
        if not around:
            break
        best = max(around, key=worth)
        live[best.after + 1 : best.before] -= best.size_bytes
        left.remove(best)
        chosen.append(best)
        if not best.outside and best.tensor not in sent:
            host_bytes -= best.size_bytes
            sent.add(best.tensor)
    return chosen


def _with_copies(actions: Sequence[Action], chosen: Sequence[_Rest]) -> Iterator[Action]:
    leaving: dict[int, list[_Rest]] = {}
    coming: dict[int, list[_Rest]] = {}
    for rest in sorted(chosen, key=lambda rest: (rest.after, rest.tensor)):
        leaving.setdefault(rest.after, []).append(rest)
        coming.setdefault(rest.before, []).append(rest)
    left: set[int] = set()
    for index, action in enumerate(actions):
        for rest in coming.get(index, ()):
            yield Action("swap_in", rest.tensor)
            yield from (Action("recompute", op_id) for op_id in rest.views)
        yield action
        for rest in leaving.get(index, ()):
            if not rest.outside and rest.tensor not in left:
                yield Action("swap_out", rest.tensor)
            left.add(rest.tensor)


def _rests(clock: TimeSimulator, actions: Sequence[Action], least_bytes: int) -> Iterator[_Rest]:
    graph, linker = clock.graph, clock.simulator.linker
    leaves = {action.id: i for i, action in enumerate(actions) if action.kind == "swap_out"}
    for buffer in _buffers(clock.simulator.link(actions)):
        t = buffer.tensor
        if t >= len(graph.tensors) or t in linker.hidden_of or not is_worth_deciding(graph, t):
            continue
        if linker.sizes[t] < least_bytes or not graph.is_intermediate(t):
            continue
        for here, (after, _) in enumerate(buffer.touched[:-1]):
            before = buffer.touched[here + 1][0]
            out = leaves.get(t, -1)
            if before > after + 1 and out <= after:
                views = buffer.again(graph, here)
                if views is not None:
                    yield _Rest(t, linker.sizes[t], after, before, views, out >= 0)


def _buffers(program: Program) -> list[_Buffer]:
    """What the program makes, each with its touches in order."""
    buffers: list[_Buffer] = []
    of: dict[int, _Buffer] = {}
    for row in program.rows:
        for version in row.inputs:
            if version in of:
                of[version].touched.append((row.action, program.tensor_of[version]))
        if row.code == Code.ALIAS:
            for out, source in zip(row.outputs, row.inputs, strict=False):
                if source in of:
                    of[out] = of[source]
                    of[out].views[program.tensor_of[out]] = row.action
        elif row.code in (Code.COMPUTE, Code.SWAP_IN):
            for version in row.outputs:
                tensor = program.tensor_of[version]
                of[version] = _Buffer(tensor, [(row.action, tensor)])
                buffers.append(of[version])
    return buffers
