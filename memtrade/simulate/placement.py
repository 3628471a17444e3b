"""Where a step's tensors go: reservations found row by row, with a look back where padding remains.

What a step asks for and gives back does not depend on where it lies. So it is written down once,
and from then on only an allocator is simulated. Row by row, the way with least padding is taken:

    as it comes     the request goes to the smallest free piece that holds it
    beside          what that piece has too much is reserved first
    farther away    the piece itself is reserved, so that the request goes to the next larger one

Padding that is left where the step needs most comes from how earlier tensors lie. So where a row
takes more than the limit, each of the rows before it is tried another way, the last one first,
until the row fits: limited discrepancy search (W. D. Harvey, M. L. Ginsberg, IJCAI 1995) with one
discrepancy at a time. Counts end it, so that the same step gets the same reservations.

Not guaranteed: that a limit which could be met is met. O(rows x the rows looked back at).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from memtrade.simulate.bfc import GRAIN_BYTES, ArenaOutOfMemoryError, BfcAllocator, round_up
from memtrade.simulate.walk import Walk

# Requests below a share of the limit go where they go; so does padding below another share. What
# does best varies with the program.
SHARES = ((1 / 1000, 1 / 3000), (1 / 200, 1 / 600), (1 / 60, 1 / 600), (1 / 60, 1 / 60))
# How many rows with large requests are looked back at, how many pieces are passed over at most, and
# how many rows may be tried again for each row that there is.
_BACK, _PIECES, _EFFORT = 40, 4, 12

Events = list[tuple[int, int]]  # (buffer, bytes that it asks for), or 0 bytes: it is given back
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

    def free(self, handle: int) -> int:
        if handle:
            self.rows[self.walk.row].append((self._numbers.pop(handle), 0))
        return super().free(handle)


def _before(walk: Walk) -> dict[int, int]:
    """Where what is there before a step lies: buffers have numbers below 0, the same in each arena
    that has come as far."""
    return {-number: handle for number, handle in enumerate(walk.handles) if handle}


class _Done(NamedTuple):
    """A request, or what was given back: of how many bytes, and where; see `BfcAllocator.free`."""

    buffer: int
    handle: int
    freed_bytes: int = 0
    free_start: int = 0


class _State:
    """An allocator, where each buffer lies, and what was done, so that it can be undone."""

    def __init__(self, allocator: BfcAllocator, handles: dict[int, int]):
        self.allocator, self.handles = allocator, handles
        self.done: list[_Done] = []

    def run(self, events: Events, reserved: tuple[int, ...] = ()) -> tuple[float, int]:
        """Most bytes in use during a row, and the padding of what it leaves behind. Where there is
        no room for it, that is infinitely many, and the rest of the row was not done."""
        try:
            held = [self._allocate(_NO_BUFFER, size) for size in reserved]
            found = self._run(events)
        except ArenaOutOfMemoryError:
            return math.inf, 0
        for handle in held:
            self._free(_NO_BUFFER, handle)
        return found

    def _run(self, events: Events) -> tuple[int, int]:
        allocator, handles = self.allocator, self.handles
        peak, made = 0, {}
        for buffer, size in events:
            if size:
                handle = handles[buffer] = self._allocate(buffer, size)
                made[buffer] = allocator.size_of(handle) - size
                peak = max(peak, allocator.bytes_in_use)
            else:
                self._free(buffer, handles.pop(buffer))
                made.pop(buffer, None)
        return peak, sum(made.values())

    def _allocate(self, buffer: int, size: int) -> int:
        handle = self.allocator.allocate(size)
        self.done.append(_Done(buffer, handle))
        return handle

    def _free(self, buffer: int, handle: int) -> None:
        size = self.allocator.size_of(handle)
        self.done.append(_Done(buffer, handle, size, self.allocator.free(handle)))

    def undo(self, mark: int) -> None:
        """Back to where that much had been done."""
        for buffer, handle, freed_bytes, free_start in reversed(self.done[mark:]):
            if freed_bytes:
                self.allocator.retake(handle, freed_bytes, free_start)
                self.handles[buffer] = handle
            else:
                self.allocator.free(handle)
                self.handles.pop(buffer, None)
        del self.done[mark:]


class _Way(NamedTuple):
    """What came of a row: most bytes in use, padding that stays; how: what was reserved."""

    peak_bytes: float
    padding_bytes: int
    reserved: tuple[int, ...]


class _Turn(NamedTuple):
    """A row with large requests: how much had been done before it, and what was reserved."""

    row: int
    mark: int
    reserved: tuple[int, ...]


def allocator_of(walk: Walk) -> BfcAllocator:
    assert isinstance(walk.allocator, BfcAllocator)
    return walk.allocator


def record(walk: Walk) -> list[Events]:
    """What the next step of `walk` asks for and gives back, row by row."""
    return _Recorder(walk).rows


class Placement:
    """Reservations for one step.

    Args:
        rows: see `record`.
        walk: in the state that the step begins in.
        limit_bytes: not to be exceeded.
        shares: one of `SHARES`.
        at_most: it is given up where more than that is in use, whatever is tried.
    """

    def __init__(
        self,
        rows: list[Events],
        walk: Walk,
        limit_bytes: int,
        shares: tuple[float, float],
        at_most: float,
    ):
        self.rows, self.limit, self.at_most = rows, limit_bytes, at_most
        large, self.little = (int(limit_bytes * share) for share in shares)
        largest = [max((size for _, size in events), default=0) for events in rows]
        # For each row, its largest request; 0 where that is small.
        self.largest = [size if size >= large else 0 for size in largest]
        self.state = _State(allocator_of(walk).fork(), _before(walk))
        self.effort = _EFFORT * len(self.rows)
        self.turns: deque[_Turn] = deque(maxlen=_BACK)
        self.reserved: dict[int, tuple[int, ...]] = {}

    def run(self) -> dict[int, tuple[int, ...]]:
        """Row -> bytes, one after the other, reserved before it and until it has run."""
        for row in range(len(self.rows)):
            mark = len(self.state.done)
            way = self._advance(row)
            if not self.largest[row]:
                continue
            self._note(row, mark, way.reserved)
            if way.peak_bytes > self.limit and self._look_back(row, way.peak_bytes) > self.at_most:
                break
        return {row: reserved for row, reserved in self.reserved.items() if reserved}

    def _note(self, row: int, mark: int, reserved: tuple[int, ...]) -> None:
        self.turns.append(_Turn(row, mark, reserved))
        self.reserved[row] = reserved

    def _advance(self, row: int) -> _Way:
        """Runs a row in the way with least padding, of those within the limit if there are any."""
        state, events, mark = self.state, self.rows[row], len(self.state.done)
        way = _Way(*state.run(events), ())
        if not self.largest[row] or self._is_good(way):
            return way
        ways = [way]
        state.undo(mark)
        for reserved in self._other_ways(row):
            way = _Way(*state.run(events, reserved), reserved)
            if self._is_good(way):
                return way
            ways.append(way)
            state.undo(mark)
        best = min(ways, key=self._rank)
        state.run(events, best.reserved)
        return best

    def _is_good(self, way: _Way) -> bool:
        return way.padding_bytes < self.little and way.peak_bytes <= self.limit

    def _rank(self, way: _Way) -> tuple[float, int, int]:
        return max(way.peak_bytes, self.limit), way.padding_bytes, len(way.reserved)

    def _other_ways(self, row: int) -> Iterator[tuple[int, ...]]:
        """What may be reserved before a row for its largest request, in the state before it."""
        asked = round_up(self.largest[row])
        passed: tuple[int, ...] = ()
        pieces = self.state.allocator.pieces(asked)
        for place, piece in enumerate(pieces[:_PIECES]):
            if asked + GRAIN_BYTES < piece < 2 * asked:
                yield (*passed, piece - asked)
            if place == len(pieces) - 1:
                return  # nothing larger is left
            passed = (*passed, piece)
            yield passed

    def _look_back(self, row: int, peak: float) -> float:
        """Changes how one earlier row was run, if less than `peak` is in use then until `row` has
        run; how much that is."""
        best = {turn.row: turn.reserved for turn in self.turns}
        first = row + 1
        while self.turns and self.effort > 0 and peak > self.limit:
            turn = self.turns.pop()
            first = turn.row
            self.state.undo(turn.mark)
            for reserved in self._other_ways(first):
                if reserved == turn.reserved:
                    continue
                found, changed = self._replayed(first, reserved, row, peak)
                self.state.undo(turn.mark)
                if found < peak:
                    peak = found
                    best.update(changed)
                if self.effort <= 0 or peak <= self.limit:
                    break
        for again in range(first, row + 1):
            mark = len(self.state.done)
            self.state.run(self.rows[again], best.get(again, ()))
            if again in best:
                self._note(again, mark, best[again])
        return peak

    def _replayed(
        self, first: int, reserved: tuple[int, ...], last: int, hopeless: float
    ) -> tuple[float, dict[int, tuple[int, ...]]]:
        """All rows from one to another, or until so many bytes are in use: most that are, and what
        was reserved."""
        peak, _ = self.state.run(self.rows[first], reserved)
        changed = {first: reserved}
        for row in range(first + 1, last + 1):
            if peak >= hopeless:
                break
            self.effort -= 1
            way = self._advance(row)
            if self.largest[row]:
                changed[row] = way.reserved
            peak = max(peak, way.peak_bytes)
        return peak, changed
