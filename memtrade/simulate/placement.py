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
from dataclasses import dataclass
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

    def free(self, handle: int) -> None:
        super().free(handle)
        if handle:
            self.rows[self.walk.row].append((self._numbers.pop(handle), 0))


def _before(walk: Walk) -> dict[int, int]:
    """Where what is there before a step lies: buffers have numbers below 0, the same in each arena
    that has come as far."""
    return {-number: handle for number, handle in enumerate(walk.handles) if handle}


class _State:
    """An allocator, and where each buffer lies."""

    __slots__ = ("allocator", "handles")

    def __init__(self, allocator: BfcAllocator, handles: dict[int, int]):
        self.allocator, self.handles = allocator, handles

    def fork(self) -> _State:
        return _State(self.allocator.fork(), self.handles.copy())

    def run(self, events: Events, reserved: tuple[int, ...] = ()) -> tuple[float, int]:
        """Most bytes in use during a row, and the padding of what it leaves behind. Where there is
        no room for it, that is infinitely many, and the state is of no use."""
        try:
            return self._run(events, reserved)
        except ArenaOutOfMemoryError:
            return math.inf, 0

    def _run(self, events: Events, reserved: tuple[int, ...]) -> tuple[int, int]:
        allocator, handles = self.allocator, self.handles
        held = [allocator.allocate(size) for size in reserved]
        peak, made = 0, {}
        for number, size in events:
            if size:
                handle = handles[number] = allocator.allocate(size)
                made[number] = allocator.size_of(handle) - size
                peak = max(peak, allocator.bytes_in_use)
            else:
                allocator.free(handles.pop(number))
                made.pop(number, None)
        for handle in held:
            allocator.free(handle)
        return peak, sum(made.values())


class _Way(NamedTuple):
    """What came of a row: most bytes in use, padding that stays; how: what was reserved."""

    peak_bytes: float
    padding_bytes: int
    reserved: tuple[int, ...]


@dataclass
class _Turn:
    """A row with large requests, as it was before it, and how it was run."""

    row: int
    before: _State
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
    """

    def __init__(
        self, rows: list[Events], walk: Walk, limit_bytes: int, shares: tuple[float, float]
    ):
        self.rows, self.limit = rows, limit_bytes
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
        for row, events in enumerate(self.rows):
            if not self.largest[row]:
                self.state.run(events)
                continue
            turn, peak = self._advance(self.state, row)
            self._note([turn])
            if peak > self.limit and math.isinf(self._look_back(row, peak)):
                break
        return {row: reserved for row, reserved in self.reserved.items() if reserved}

    def _note(self, turns: list[_Turn]) -> None:
        self.turns.extend(turns)
        self.reserved.update((turn.row, turn.reserved) for turn in turns)

    def _advance(self, state: _State, row: int) -> tuple[_Turn, float]:
        """Runs a row in the way with least padding, of those within the limit if there are any; and
        most bytes in use meanwhile."""
        events, before = self.rows[row], state.fork()
        ways = [_Way(*state.run(events), ())]
        others = self._other_ways(before, row)
        while not self._is_good(ways[-1]) and (reserved := next(others, None)) is not None:
            ways.append(_Way(*before.fork().run(events, reserved), reserved))
        best = min(ways, key=self._rank)
        if best.reserved:
            chosen = before.fork()
            chosen.run(events, best.reserved)
            state.allocator, state.handles = chosen.allocator, chosen.handles
        return _Turn(row, before, best.reserved), best.peak_bytes

    def _is_good(self, way: _Way) -> bool:
        return way.padding_bytes < self.little and way.peak_bytes <= self.limit

    def _rank(self, way: _Way) -> tuple[float, int, int]:
        return max(way.peak_bytes, self.limit), way.padding_bytes, len(way.reserved)

    def _other_ways(self, state: _State, row: int) -> Iterator[tuple[int, ...]]:
        """What may be reserved before a row for its largest request."""
        asked = round_up(self.largest[row])
        passed: tuple[int, ...] = ()
        pieces = state.allocator.pieces(asked)
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
        turns = list(self.turns)
        for place in range(len(turns) - 1, -1, -1):
            turn = turns[place]
            for reserved in self._other_ways(turn.before, turn.row):
                if self.effort <= 0:
                    return peak
                if reserved == turn.reserved:
                    continue
                changed = _Turn(turn.row, turn.before, reserved)
                found, state, later = self._replayed(changed, row, peak)
                if found < peak:
                    peak, self.state = found, state
                    self.turns = deque(turns[:place], maxlen=_BACK)
                    self._note([changed, *later])
                    if peak <= self.limit:
                        return peak
        return peak

    def _replayed(
        self, turn: _Turn, row: int, hopeless: float
    ) -> tuple[float, _State, list[_Turn]]:
        """All rows from a turn to `row`, or until so many bytes are in use: most that are, the
        state then, and the turns behind the first."""
        state, turns = turn.before.fork(), list[_Turn]()
        peak, _ = state.run(self.rows[turn.row], turn.reserved)
        for later in range(turn.row + 1, row + 1):
            if peak >= hopeless:
                break
            self.effort -= 1
            if self.largest[later]:
                made, in_use = self._advance(state, later)
                turns.append(made)
            else:
                in_use, _ = state.run(self.rows[later])
            peak = max(peak, in_use)
        return peak, state, turns
