"""Spilling: what lies about where memory is tightest leaves for a while, whatever it is.

The programme decides once per activation. At the peak of what it finds there are still tensors that
nobody looks at just then: a gradient that waits for its branch, a mask that was read a moment ago
and will be again. As a register allocator spills registers, they go to the host in between:

    swap_in mask   run filter_gradient   run input_gradient   run add   run relu_gradient
                   reads the mask        ── not looked at ──────────►   reads it again

    swap_in mask   run filter_gradient   run input_gradient   run add   swap_in mask   run ...

What is on the host already only comes back a second time; what can be made again from what is there
anyway is made again, if that takes less time. The peak that is left is that of one op with all that
it reads and makes: nothing that works on whole tensors goes below it.

Which of them goes is chosen greedily, at the highest moment first: the one that relieves most for
the time that it takes (after L. A. Belady, "A study of replacement algorithms", IBM Systems Journal
5(2), 1966, with sizes and costs). Not guaranteed: that no other choice takes less time.
O(actions + spilled x resting).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from memtrade.facts import most_bytes
from memtrade.graph import StepGraph, reached
from memtrade.plan import Action
from memtrade.simulate.memory import Simulator
from memtrade.simulate.program import ALIAS, COMPUTE, SWAP_IN, Program
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import is_worth_deciding

# What is smaller than this share of the peak is not worth two more ops.
_SMALL_SHARE = 1 / 500


@dataclass(eq=False)
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
        read = [t for _, t in self.touched[here + 1 :] if self.views.get(t, now + 1) <= now]
        made = reached(
            (graph.tensors[t].op for t in read),
            lambda o: (graph.tensors[t].op for t in graph.ops[o].inputs[:1] if t in self.views),
        )
        return None if any(graph.ops[o].stateful for o in made) else tuple(sorted(made))


@dataclass(frozen=True, eq=False)
class _Rest:
    """A stretch of the program in which a tensor is there and nobody looks at it.

    Attributes:
        after, before: the actions that touch it last before, and next.
        seconds: what it takes to be away meanwhile.
        views: the ops that make its views that are read from then on, in order.
        needs: what making it again reads, if it is made again; None: it goes to the host.
        outside: whether a copy is on the host by then.
    """

    buffer: _Buffer
    size_bytes: int
    after: int
    before: int
    seconds: float
    views: tuple[int, ...]
    needs: tuple[_Buffer, ...] | None = None
    outside: bool = False

    @property
    def tensor(self) -> int:
        return self.buffer.tensor

    def is_away(self, buffer: _Buffer, action: int) -> bool:
        return self.buffer is buffer and self.after < action <= self.before

    def hinders(self, other: _Rest) -> bool:
        """Whether one of both is away where the other is made again from it, or both are one."""
        if self.buffer is other.buffer and self.after == other.after:
            return True
        return any(other.is_away(needed, self.before) for needed in self.needs or ()) or any(
            self.is_away(needed, other.before) for needed in other.needs or ()
        )


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
    chosen, peak = _choose(live.copy(), rests, limit, host_bytes)
    if peak > limit:  # what is made again needs others there, which copies do not
        copied = [rest for rest in rests if rest.needs is None]
        others, lower = _choose(live, copied, limit, host_bytes)
        chosen = others if lower < peak else chosen
    return tuple(_with_copies(clock.graph, actions, chosen)) if chosen else tuple(actions)


def leaving(graph: StepGraph, actions: Iterable[Action]) -> list[int]:
    """The activations that leave for host memory, ascending."""
    sent = {action.id for action in actions if action.kind == "swap_out"}
    return [t for t in graph.activations if t in sent]


def least_bytes(simulator: Simulator) -> int:
    """What no plan that moves and remakes whole tensors goes below: the most that one op needs with
    all that it reads and makes, besides what is always there."""
    graph, linker = simulator.graph, simulator.linker
    most = 0
    for op, spec in zip(graph.ops, linker.specs, strict=True):
        if spec is None or spec.code is not COMPUTE:
            continue
        read = {graph.root[t] for t in op.inputs}
        needed = sum(linker.sizes[t] for t in read if graph.is_intermediate(t))
        needed += most_bytes(each.size_bytes for each in spec.requests if not each.forwarded)
        most = max(most, needed)
    return simulator.laid_bytes + most


def _floor(live: np.ndarray, rests: Sequence[_Rest]) -> int:
    """The peak that is left where all that rests is away."""
    away = np.zeros(len(live) + 1, dtype=np.int64)
    for rest in {(id(rest.buffer), rest.after): rest for rest in rests}.values():
        away[rest.after + 1] += rest.size_bytes
        away[rest.before] -= rest.size_bytes
    return int((live - np.cumsum(away)[:-1]).max())


def _choose(
    live: np.ndarray, rests: Sequence[_Rest], limit_bytes: int, host_bytes: float
) -> tuple[list[_Rest], int]:
    """Some of `rests`, so that `live`, which is changed, nowhere exceeds the limit, and the peak
    that is left."""
    after = np.array([rest.after for rest in rests], dtype=np.int64)
    before = np.array([rest.before for rest in rests], dtype=np.int64)
    left, touching = np.ones(len(rests), dtype=bool), _touching(rests)
    sent: set[int] = set()
    chosen: list[_Rest] = []
    while True:
        peak = int(live.argmax())
        if live[peak] <= limit_bytes:
            break
        over = np.maximum(live - limit_bytes, 0)

        def worth(rest: _Rest, over: np.ndarray = over) -> float:
            relieved = np.minimum(over[rest.after + 1 : rest.before], rest.size_bytes).sum()
            return float(relieved) / max(rest.seconds, 1e-9)

        def has_room(rest: _Rest, room: float = host_bytes) -> bool:
            there = rest.needs is not None or rest.outside or rest.tensor in sent
            return there or rest.size_bytes <= room

        around = [
            rests[i] for i in np.flatnonzero(left & (after < peak) & (peak < before)).tolist()
        ]
        around = [rest for rest in around if has_room(rest)]
        if not around:
            break
        best = max(around, key=worth)
        live[best.after + 1 : best.before] -= best.size_bytes
        chosen.append(best)
        for buffer in (best.buffer, *(best.needs or ())):
            left[[i for i in touching[buffer] if rests[i].hinders(best)]] = False
        if best.needs is None and not best.outside and best.tensor not in sent:
            host_bytes -= best.size_bytes
            sent.add(best.tensor)
    return chosen, int(live.max())


def _touching(rests: Sequence[_Rest]) -> dict[_Buffer, list[int]]:
    """For each buffer, which of the rests are its own or are made again from it."""
    found: dict[_Buffer, list[int]] = {}
    for i, rest in enumerate(rests):
        for buffer in (rest.buffer, *(rest.needs or ())):
            found.setdefault(buffer, []).append(i)
    return found


def _with_copies(
    graph: StepGraph, actions: Sequence[Action], chosen: Sequence[_Rest]
) -> Iterator[Action]:
    leaving: dict[int, list[_Rest]] = {}
    coming: dict[int, list[_Rest]] = {}
    for rest in sorted(chosen, key=lambda rest: (rest.after, rest.tensor)):
        leaving.setdefault(rest.after, []).append(rest)
        coming.setdefault(rest.before, []).append(rest)
    left: set[int] = set()
    for index, action in enumerate(actions):
        for rest in coming.get(index, ()):
            if rest.needs is None:
                yield Action("swap_in", rest.tensor)
            else:
                yield Action("recompute", graph.tensors[rest.tensor].op)
            yield from (Action("recompute", op_id) for op_id in rest.views)
        yield action
        for rest in leaving.get(index, ()):
            if rest.needs is None:
                if not rest.outside and rest.tensor not in left:
                    yield Action("swap_out", rest.tensor)
                left.add(rest.tensor)


def _rests(clock: TimeSimulator, actions: Sequence[Action], least_bytes: int) -> Iterator[_Rest]:
    graph, linker = clock.graph, clock.simulator.linker
    leaves = {action.id: i for i, action in enumerate(actions) if action.kind == "swap_out"}
    program = clock.simulator.link(actions)
    buffers, readers = _buffers(program)
    for buffer in buffers:
        t = buffer.tensor
        size = linker.sizes[t]
        if size < least_bytes or t >= len(graph.tensors) or t in linker.hidden_of:
            continue
        if not is_worth_deciding(graph, t) or not graph.is_intermediate(t):
            continue
        for here, (after, _) in enumerate(buffer.touched[:-1]):
            before = buffer.touched[here + 1][0]
            if before <= after + 1 or (views := buffer.again(graph, here)) is None:
                continue
            out = leaves.get(t, -1)
            if out <= after:
                seconds = clock.in_seconds[t] + (0.0 if out >= 0 else clock.out_seconds[t])
                yield _Rest(buffer, size, after, before, seconds, views, outside=out >= 0)
            op = graph.ops[graph.tensors[t].op]
            needs = None if op.stateful else _there(graph, readers, op.inputs, before)
            if needs is not None and buffer not in needs:
                seconds = clock.op_seconds[op.id]
                yield _Rest(buffer, size, after, before, seconds, views, needs)


def _there(
    graph: StepGraph,
    readers: Mapping[int, list[tuple[int, _Buffer]]],
    tensors: Iterable[int],
    action: int,
) -> tuple[_Buffer, ...] | None:
    """The buffers of the intermediates among `tensors`, if all are there before `action` and read
    then or later; None else."""
    found: list[_Buffer] = []
    for t in tensors:
        if not graph.is_intermediate(graph.root[t]):
            continue
        buffer = next((buffer for at, buffer in readers.get(t, ()) if at >= action), None)
        if buffer is None or max(buffer.touched[0][0], buffer.views.get(t, -1)) >= action:
            return None
        found.append(buffer)
    return tuple(found)


def _buffers(program: Program) -> tuple[list[_Buffer], dict[int, list[tuple[int, _Buffer]]]]:
    """What the program makes, each with its touches in order; and who reads a tensor when."""
    buffers: list[_Buffer] = []
    readers: dict[int, list[tuple[int, _Buffer]]] = {}
    of: dict[int, _Buffer] = {}
    for row in program.rows:
        action = row.action
        for version in row.inputs:
            buffer = of.get(version)
            if buffer is not None:
                tensor = program.tensor_of[version]
                buffer.touched.append((action, tensor))
                readers.setdefault(tensor, []).append((action, buffer))
        if row.code is ALIAS:
            for out, source in zip(row.outputs, row.inputs, strict=False):
                if source in of:
                    of[out] = of[source]
                    of[out].views[program.tensor_of[out]] = action
        elif row.code is COMPUTE or row.code is SWAP_IN:
            for version in row.outputs:
                tensor = program.tensor_of[version]
                of[version] = _Buffer(tensor, [(action, tensor)])
                buffers.append(of[version])
    return buffers, readers
