"""Where a step's tensors go: reservations found row by row, with a look back where padding remains.

What a step asks for and gives back does not depend on where it lies. So it is written down once,
and from then on only an allocator is simulated. Row by row, the way with least padding is taken:

    as it comes     the request goes to the smallest free piece that holds it
    beside          what that piece has too much is reserved first
    farther away    the piece itself is reserved, so that the request goes to the next larger one

    where planned   what it would rather take is reserved, so that it goes to the address that a
                    static allocator gives it (offsets.py)

Padding that is left where the step needs most comes from how earlier tensors lie. So where a row
takes more than the limit, each of the rows before it is tried another way, the last one first,
until the row fits: limited discrepancy search (W. D. Harvey, M. L. Ginsberg, IJCAI 1995) with one
discrepancy at a time. Counts end it, so that the same step gets the same reservations.

Not guaranteed: that a limit which could be met is met. O(rows x the rows looked back at).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

import msgspec

from memtrade.simulate.bfc import ArenaOutOfMemoryError, BfcAllocator
from memtrade.simulate.offsets import Events, lead, spare_bytes
from memtrade.simulate.regions import GRAIN_BYTES, round_up
from memtrade.simulate.walk import Walk

# Requests below a share of the limit go where they go; so does padding below another share. What
# does best varies with the program.
SHARES = ((1 / 1000, 1 / 3000), (1 / 200, 1 / 600), (1 / 60, 1 / 600), (1 / 60, 1 / 60))
# How many rows with large requests are looked back at, how many pieces are passed over at most, and
# how many rows may be tried again for each row that there is.
_BACK, _PIECES, _EFFORT = 40, 4, 12

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
        try:
            held = [self._reserve(size) for size in reserved]
            peak = self._run(events)
        except ArenaOutOfMemoryError:
            return math.inf
        for handle in held:
            self.done.append((_NO_BUFFER, handle, self.allocator.free(handle)))
        return peak

    def _reserve(self, size: int) -> int:
        handle = self.allocator.allocate(size)
        self.done.append((_NO_BUFFER, handle, None))
        return handle

    def _run(self, events: Events) -> int:
        allocator, handles, done = self.allocator, self.handles, self.done
        peak = 0
        for buffer, size in events:
            if size:
                handle = handles[buffer] = allocator.allocate(size)
                done.append((buffer, handle, None))
                if allocator.bytes_in_use > peak:
                    peak = allocator.bytes_in_use
            else:
                handle = handles.pop(buffer)
                done.append((buffer, handle, allocator.free(handle)))
        return peak

    def padding(self, events: Events) -> int:
        """Of what rows have left behind."""
        size_of, handles = self.allocator.size_of, self.handles
        held = [(handles[buffer], size) for buffer, size in events if size and buffer in handles]
        return sum([size_of(handle) - size for handle, size in held])

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


class _Way(msgspec.Struct, gc=False):
    """What came of a row: most bytes in use, padding that stays; how: what was reserved."""

    peak_bytes: float
    padding_bytes: int
    reserved: tuple[int, ...]


class _Block(NamedTuple):
    """A row with a large request, or rows without, which go where they go.

    Attributes:
        row: the first. rows: how many.
        largest: the largest request; 0 where that is small. buffer: whose it is.
    """

    row: int
    rows: int
    events: Events
    largest: int
    buffer: int


class _Turn(NamedTuple):
    """A block with a large request: how much had been done before it, and what was reserved."""

    block: int
    mark: int
    reserved: tuple[int, ...]


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


class Placement:
    """Reservations for one step.

    Args:
        rows: see `record`.
        start: what the step begins with; see `begun`.
        limit_bytes: not to be exceeded.
        shares: one of `SHARES`.
        at_most: it is given up where more than that is in use, whatever is tried.
        planned: buffer -> the address where it is to lie, if that is free by then.
    """

    def __init__(
        self,
        rows: list[Events],
        start: State,
        limit_bytes: int,
        shares: tuple[float, float],
        at_most: float,
        planned: Mapping[int, int],
    ):
        self.planned = planned
        self.spare = spare_bytes(start.allocator.pieces(0))
        self.limit, self.at_most = limit_bytes, at_most
        large, self.little = (int(limit_bytes * share) for share in shares)
        self.blocks = _blocks(rows, large, planned)
        self.state = start.fork()
        self.effort = _EFFORT * len(rows)
        self.turns: deque[_Turn] = deque(maxlen=_BACK)
        self.reserved: dict[int, tuple[int, ...]] = {}

    def run(self) -> dict[int, tuple[int, ...]]:
        """Row -> bytes, one after the other, reserved before it and until it has run."""
        for place, block in enumerate(self.blocks):
            mark = len(self.state.done)
            way = self._advance(self.state, block)
            if not block.largest:
                continue
            self._note(place, mark, way.reserved)
            if (
                way.peak_bytes > self.limit
                and self._look_back(place, way.peak_bytes) > self.at_most
            ):
                break
        return {self.blocks[at].row: sizes for at, sizes in self.reserved.items() if sizes}

    def _note(self, place: int, mark: int, reserved: tuple[int, ...]) -> None:
        self.turns.append(_Turn(place, mark, reserved))
        self.reserved[place] = reserved

    def _advance(self, state: State, block: _Block) -> _Way:
        """Runs a block in the way with least padding, of those within the limit if there are
        any."""
        if not block.largest:
            return _Way(state.run(block.events), 0, ())
        mark = len(state.done)
        if (reserved := self._where_planned(state, block)) is not None:
            way = self._tried(state, block, reserved)
            if way.peak_bytes <= self.limit:
                return way
            state.undo(mark)
        way = self._tried(state, block, ())
        if self._is_good(way):
            return way
        ways = [way]
        state.undo(mark)
        for reserved in self._other_ways(state, block):
            way = self._tried(state, block, reserved)
            if self._is_good(way):
                return way
            ways.append(way)
            state.undo(mark)
        best = min(ways, key=self._rank)
        state.run(block.events, best.reserved)
        return best

    def _tried(self, state: State, block: _Block, reserved: tuple[int, ...]) -> _Way:
        peak = state.run(block.events, reserved)
        padding = 0 if math.isinf(peak) else state.padding(block.events)
        return _Way(peak, padding, reserved)

    def _is_good(self, way: _Way) -> bool:
        return way.padding_bytes < self.little and way.peak_bytes <= self.limit

    def _rank(self, way: _Way) -> tuple[float, int, int]:
        return max(way.peak_bytes, self.limit), way.padding_bytes, len(way.reserved)

    def _other_ways(self, state: State, block: _Block) -> Iterator[tuple[int, ...]]:
        """What may be reserved before a block for its largest request, in the state before it."""
        asked = round_up(block.largest)
        passed: tuple[int, ...] = ()
        pieces = state.allocator.pieces(asked)
        for place, (piece, _) in enumerate(pieces[:_PIECES]):
            if asked + GRAIN_BYTES < piece < 2 * asked:
                yield (*passed, piece - asked)
            if place == len(pieces) - 1:
                return  # nothing larger is left
            passed = (*passed, piece)
            yield passed

    def _where_planned(self, state: State, block: _Block) -> tuple[int, ...] | None:
        """What is to be reserved for its largest request to lie next to where it is planned to;
        None where that does not go."""
        wanted = self.planned.get(block.buffer)
        if wanted is None:
            return None
        # What else the row asks for needs a place beside what is reserved.
        others = [size for buffer, size in block.events if size and buffer != block.buffer]
        pieces = state.allocator.pieces(GRAIN_BYTES)
        rest = round_up(max(others, default=0))
        return lead(pieces, round_up(block.largest), wanted, rest, self.spare)

    def _look_back(self, last: int, peak: float) -> float:
        """Changes how one earlier block was run, if less than `peak` is in use then until the last
        has run; how much that is."""
        best = {turn.block: turn.reserved for turn in self.turns}
        first = last + 1
        while self.turns and self.effort > 0 and peak > self.limit:
            turn = self.turns.pop()
            first = turn.block
            self.state.undo(turn.mark)
            for reserved in self._other_ways(self.state, self.blocks[first]):
                if reserved == turn.reserved:
                    continue
                found, changed = self._replayed(first, reserved, last, peak)
                if found < peak:
                    peak = found
                    best.update(changed)
                if self.effort <= 0 or peak <= self.limit:
                    break
        for again in range(first, last + 1):
            mark = len(self.state.done)
            self.state.run(self.blocks[again].events, best.get(again, ()))
            if again in best:
                self._note(again, mark, best[again])
        return peak

    def _replayed(
        self, first: int, reserved: tuple[int, ...], last: int, hopeless: float
    ) -> tuple[float, dict[int, tuple[int, ...]]]:
        """All blocks from one to another, or until so many bytes are in use: most that are, and
        what was reserved."""
        state = self.state.fork()
        peak = state.run(self.blocks[first].events, reserved)
        changed = {first: reserved}
        for place in range(first + 1, last + 1):
            if peak >= hopeless:
                break
            block = self.blocks[place]
            self.effort -= block.rows
            way = self._advance(state, block)
            if block.largest:
                changed[place] = way.reserved
            peak = max(peak, way.peak_bytes)
        return peak, changed


def _blocks(rows: list[Events], large: int, planned: Container[int]) -> list[_Block]:
    """Rows with requests that large, or for planned buffers, and what lies between them."""
    blocks: list[_Block] = []
    begin = 0
    for row, events in enumerate([*rows, []]):
        asked = [(size, buffer) for buffer, size in events]
        led = [each for each in asked if each[0] and each[1] in planned]
        largest, buffer = max(led or asked, default=(0, 0))
        if largest >= large or led or row == len(rows):
            if begin < row:
                between = list(itertools.chain.from_iterable(rows[begin:row]))
                blocks.append(_Block(begin, row - begin, between, 0, 0))
            begin = row + 1
            if row < len(rows):
                blocks.append(_Block(row, 1, events, largest, buffer))
    return blocks
