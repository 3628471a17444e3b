"""What a step asks for and gives back, written down once: it does not depend on where things lie.

From then on only an allocator is simulated, and what is done to it can be undone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable

from memtrade.simulate.bfc import ArenaOutOfMemoryError, BfcAllocator
from memtrade.simulate.offsets import Events
from memtrade.simulate.regions import round_up
from memtrade.simulate.walk import Walk

_NO_BUFFER = 0  # of reservations: buffers count from 1, those from before the step from -1 down


class _Recorder(BfcAllocator):
    """Writes down what is asked for and given back in each row of a walk."""

    def __init__(self, walk: Walk):
        self._become(allocator_of(walk))
        self.rows: list[Events] = [[] for _ in walk.program.rows]
        self._numbers = {handle: number for number, handle in _before(walk).items()}
        self._made = 0
        self.walk = walk.fork(walk.program, self, walk.lag)
        self.walk.row = 0
        self.walk.step()

    def allocate(self, num_bytes: int, /) -> int:
        handle = super().allocate(num_bytes)
        if num_bytes:
            self._made += 1
            self._numbers[handle] = self._made
            self.rows[self.walk.row].append((self._made, num_bytes))
        return handle

    def free(self, handle: int) -> tuple[int, int, int]:
        if handle:
            self.rows[self.walk.row].append((self._numbers.pop(handle), 0))
        return super().free(handle)


def _before(walk: Walk) -> dict[int, int]:
    """Where what is there before a step lies: buffers have numbers below 0, the same in each arena
    that has come as far."""
    return {-number: handle for number, handle in enumerate(walk.handles) if handle}


class State:
    """An allocator, where each buffer lies, and what was done, so that it can be undone: (buffer,
    handle), and what `BfcAllocator.free` said where it was given back."""

    def __init__(self, allocator: BfcAllocator, handles: dict[int, int]):
        self.allocator, self.handles = allocator, handles
        self.done: list[tuple[int, int, tuple[int, int, int] | None]] = []

    def fork(self) -> State:
        """Another one from here. For many rows, that takes less time than to undo them."""
        return State(self.allocator.fork(), self.handles.copy())

    def run(self, events: Events, reserved: tuple[int, ...] = ()) -> float:
        """Most bytes in use during some rows. Where there is no room for them, that is infinitely
        many, and the rest of them was not done."""
        mark = len(self.done)
        peak = self.hold(events, reserved)
        if not math.isinf(peak):
            self.release(mark, len(reserved))
        return peak

    def hold(self, events: Events, reserved: tuple[int, ...]) -> float:
        """As `run`, but that what is reserved stays there."""
        allocator, handles, done = self.allocator, self.handles, self.done
        peak = 0
        try:
            for size in reserved:
                done.append((_NO_BUFFER, allocator.allocate(size), None))
            for buffer, size in events:
                if size:
                    handle = handles[buffer] = allocator.allocate(size)
                    done.append((buffer, handle, None))
                    if allocator.bytes_in_use > peak:
                        peak = allocator.bytes_in_use
                else:
                    handle = handles.pop(buffer)
                    done.append((buffer, handle, allocator.free(handle)))
        except ArenaOutOfMemoryError:
            return math.inf
        return peak

    def release(self, mark: int, count: int) -> None:
        """Gives back so many reservations, the first that were done from there on."""
        for _, handle, _ in self.done[mark : mark + count]:
            self.done.append((_NO_BUFFER, handle, self.allocator.free(handle)))

    def padding(self, held: Events) -> int:
        """Of requests whose buffers are there."""
        size_of, handles = self.allocator.size_of, self.handles
        return sum([size_of(handles[buffer]) - size for buffer, size in held])

    def lies(self, held: Events) -> Hashable:
        """What tells this state from others that came of the same requests, the last of which are
        `held`."""
        return tuple(self.allocator.pieces(0)), tuple(self.handles[buffer] for buffer, _ in held)

    def undo(self, mark: int) -> None:
        """Back to where that much had been done."""
        for buffer, handle, freed in reversed(self.done[mark:]):
            if freed is not None:
                self.allocator.retake(*freed)
                self.handles[buffer] = handle
            else:
                self.allocator.free(handle)
                self.handles.pop(buffer, None)
        del self.done[mark:]


def allocator_of(walk: Walk) -> BfcAllocator:
    assert isinstance(walk.allocator, BfcAllocator)
    return walk.allocator


def record(walk: Walk) -> tuple[list[Events], Walk]:
    """What the next step of `walk` asks for and gives back, row by row; and another walk, which has
    taken that step."""
    recorder = _Recorder(walk)
    walked = recorder.walk
    del recorder.walk  # of which it is the allocator
    return recorder.rows, walked


def needed_bytes(rows: list[Events], walk: Walk) -> int:
    """Most bytes in use in a step from there, where nothing is padded but what was there before."""
    arena = allocator_of(walk)
    sizes: dict[int, int] = {}
    needed = in_use = arena.bytes_in_use
    for buffer, size in itertools.chain.from_iterable(rows):
        if size:
            sizes[buffer] = round_up(size)
            in_use += sizes[buffer]
            needed = max(needed, in_use)
        else:
            in_use -= sizes[buffer] if buffer > 0 else arena.size_of(walk.handles[-buffer])
    return needed


def begun(rows: list[Events], walk: Walk) -> State:
    """The state that a step begins in. What it never gives back is left out: there is much of it,
    and it would be copied each time."""
    arena = allocator_of(walk).fork()
    given_back = {buffer for events in rows for buffer, size in events if not size}
    handles = {buffer: at for buffer, at in _before(walk).items() if buffer in given_back}
    free = [(each.address, each.size_bytes) for each in arena.chunks() if not each.in_use]
    arena.occupy([(at, arena.size_of(at)) for at in handles.values()], free)
    return State(arena, handles)
