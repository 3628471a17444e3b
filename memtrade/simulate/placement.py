"""Where a step's tensors go: reservations found row by row, with a look back where padding remains.

Only an allocator is simulated (`requests.py`). Row by row, the way with least padding is taken:

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
from collections.abc import Container, Hashable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

import msgspec

from memtrade.simulate.bfc import is_split
from memtrade.simulate.offsets import Events, end_of, lead, spare_bytes
from memtrade.simulate.regions import GRAIN_BYTES, round_up
from memtrade.simulate.requests import State

# Requests below a share of the limit go where they go; so does padding below another share. What
# does best varies with the program.
SHARES = ((1 / 1000, 1 / 3000), (1 / 200, 1 / 600), (1 / 60, 1 / 600), (1 / 60, 1 / 60))
# How many rows with large requests are looked back at, how many pieces are passed over at most, and
# how many rows may be tried again for each row that there is.
_BACK, _PIECES, _EFFORT = 40, 4, 12


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
        asks: the events up to its last request; gives: those behind.
        stays: the requests whose buffers are there in the end.
        is_single: whether there is but one request, and nothing given back before it.
        least_bytes: what is in use at its peak at least, above what was there before it; nothing
            tells where it gives something back first.
    """

    row: int
    rows: int
    events: Events
    largest: int
    buffer: int
    asks: Events
    gives: Events
    stays: Events
    is_single: bool
    least_bytes: float


class _Turn(NamedTuple):
    """A block with a large request: how much had been done before it, and what was reserved."""

    block: int
    mark: int
    reserved: tuple[int, ...]


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
        free = start.allocator.pieces(0)
        self.spare, self.end = spare_bytes(free), end_of(free)
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
                return self._ended(state, block, mark, way)
            state.undo(mark)
        best = self._tried(state, block, ())
        if self._is_good(best):
            return self._ended(state, block, mark, best)
        state.undo(mark)
        least = state.allocator.bytes_in_use + block.least_bytes
        held: tuple[int, ...] = ()
        for reserved in self._other_ways(state, block, useful=True):
            if least + sum(reserved) > max(best.peak_bytes, self.limit):
                break  # those that follow reserve more
            stays = len(held) if reserved[: len(held)] == held else len(held) - 1
            state.undo(mark + stays)
            way, held = self._tried(state, block, reserved, stays), reserved
            if self._is_good(way):
                return self._ended(state, block, mark, way)
            best = min(best, way, key=self._rank)
        state.undo(mark)
        state.run(block.events, best.reserved)
        return best

    def _tried(
        self, state: State, block: _Block, reserved: tuple[int, ...], there: int = 0
    ) -> _Way:
        """A way up to the last request: what is given back behind that is the same in each. So many
        of the reservations are there."""
        peak = state.hold(block.asks, reserved[there:])
        padding = 0 if math.isinf(peak) else state.padding(block.stays)
        return _Way(peak, padding, reserved)

    def _ended(self, state: State, block: _Block, mark: int, way: _Way) -> _Way:
        """The way that has just been tried, to its end."""
        state.hold(block.gives, ())
        state.release(mark, len(way.reserved))
        return way

    def _is_good(self, way: _Way) -> bool:
        return way.padding_bytes < self.little and way.peak_bytes <= self.limit

    def _rank(self, way: _Way) -> tuple[float, int, int]:
        return max(way.peak_bytes, self.limit), way.padding_bytes, len(way.reserved)

    def _other_ways(
        self, state: State, block: _Block, *, useful: bool
    ) -> Iterator[tuple[int, ...]]:
        """What may be reserved before a block for its largest request, in the state before it.

        Args:
            useful: without the ways of a single request that gets a whole piece all the same, which
                is none smaller than where nothing is reserved.
        """
        asked = round_up(block.largest)
        passed: tuple[int, ...] = ()
        pieces = state.allocator.pieces(asked)
        told = useful and block.is_single
        for place, (piece, address) in enumerate(pieces[:_PIECES]):
            # The last piece is a little smaller where all lies farther on.
            surely = piece - self.spare if address + piece == self.end else piece
            rest = surely - asked
            if GRAIN_BYTES < rest < asked and not (told and state.allocator.piece(rest) < asked):
                yield (*passed, rest)
            if place == len(pieces) - 1:
                return  # nothing larger is left
            passed = (*passed, max(asked, surely))
            if not told or is_split(pieces[place + 1][0], asked):
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
            least = self.state.allocator.bytes_in_use + self.blocks[first].least_bytes
            known: dict[Hashable, int] = {}
            for reserved in self._other_ways(self.state, self.blocks[first], useful=False):
                if least + sum(reserved) >= peak:
                    break  # those that follow reserve more
                if reserved == turn.reserved:
                    continue
                found, changed = self._replayed(first, reserved, last, peak, known)
                if found < peak:
                    peak = found
                    best.update(changed)
                    known.clear()
                if self.effort <= 0 or peak <= self.limit:
                    break
        for again in range(first, last + 1):
            mark = len(self.state.done)
            self.state.run(self.blocks[again].events, best.get(again, ()))
            if again in best:
                self._note(again, mark, best[again])
        return peak

    def _replayed(
        self,
        first: int,
        reserved: tuple[int, ...],
        last: int,
        hopeless: float,
        known: dict[Hashable, int],
    ) -> tuple[float, dict[int, tuple[int, ...]]]:
        """All blocks from one to another, or until so many bytes are in use: most that are, and
        what was reserved.

        Args:
            known: the states behind the first block from where it was hopeless -> the effort.
        """
        state = self.state.fork()
        peak = state.run(self.blocks[first].events, reserved)
        changed = {first: reserved}
        if peak >= hopeless:
            return peak, changed
        lies = state.lies(self.blocks[first].stays)
        if lies in known:
            self.effort -= known[lies]
            return hopeless, changed
        effort = self.effort
        for place in range(first + 1, last + 1):
            block = self.blocks[place]
            self.effort -= block.rows
            way = self._advance(state, block)
            if block.largest:
                changed[place] = way.reserved
            peak = max(peak, way.peak_bytes)
            if peak >= hopeless:
                break
        known[lies] = effort - self.effort
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
                blocks.append(_block(begin, row - begin, between, 0, 0))
            begin = row + 1
            if row < len(rows):
                blocks.append(_block(row, 1, events, largest, buffer))
    return blocks


def _block(row: int, rows: int, events: Events, largest: int, buffer: int) -> _Block:
    behind = max((at for at, (_, size) in enumerate(events, 1) if size), default=0)
    given = {number for number, size in events if not size}
    first = list(itertools.takewhile(itemgetter(1), events))
    return _Block(
        row=row,
        rows=rows,
        events=events,
        largest=largest,
        buffer=buffer,
        asks=events[:behind],
        gives=events[behind:],
        stays=[each for each in events if each[1] and each[0] not in given],
        is_single=behind == 1,
        least_bytes=sum(round_up(size) for _, size in first) if first else -math.inf,
    )
