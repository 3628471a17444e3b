"""Where large buffers would lie if each could be put anywhere: offsets as a static allocator plans.

All requests of a step are known, and from when to when each is held. So the largest are laid down
first, each at the lowest address that is free for as long as it is held: greedy by size (Y.
Pisarchyk, J. Lee, "Efficient memory management for deep neural net inference", MLSys workshop 2020,
arXiv 2001.03288); what found no place comes first in the next round. Requests that come one by one,
each into the smallest free piece, leave holes between them: the third of three buffers of 2 GB
finds no place in 7.

Not guaranteed: that all find a place; finding such offsets is NP-hard (M. D. Moffitt, "MiniMalloc",
ASPLOS 2023). O(rounds x buffers²).
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memtrade.simulate.bfc import MAX_PADDING_BYTES, is_split
from memtrade.simulate.regions import GRAIN_BYTES, round_up

# The zone is larger than what small buffers need, by as much as they may leave holes; who is at its
# border stays for so much of the step.
_ZONE, _NEARLY = 1.25, 0.9
# Of the largest free piece, so much is left at its end for what nobody foresaw, which shifts all.
_SPARE = 1 / 2000
# Where some find no place, it is tried anew so often, with those first. A round takes as long as
# the square of its buffers; all may take about half a second.
_ROUNDS, _EFFORT = 50, 10_000_000
# At most so many reservations lead one request next to where it is planned, by this share of it.
_RESERVED, _NEXT = 8, 0.25

Events = list[tuple[int, int]]  # (buffer, bytes that it asks for), or 0 bytes: it is given back


class _Held(NamedTuple):
    """A buffer: its bytes, and the first and last event at which they are its own."""

    size: int
    begin: int
    end: int
    buffer: int


def offsets(rows: list[Events], free: list[tuple[int, int]], large_bytes: int) -> dict[int, int]:
    """Buffer -> address, of those with requests of at least `large_bytes` that found a place.

    Small ones would land between large ones, and split what is to be whole. So the largest free
    piece begins with a zone for them, and behind it lies one of them that is held throughout, if
    there is one: what is left of the zone is the smallest piece then, which small requests get.

    Args:
        rows: what a step asks for and gives back (see `placement.record`).
        free: (bytes, address) of what is free before it.
    """
    held = list(_held(rows))
    order = [each for each in held if each.size >= large_bytes]
    order.sort(key=lambda each: (-each.size, each.begin - each.end))
    small = [each for each in held if each.size < large_bytes]
    best: dict[int, int] = {}
    stays: dict[int, int] = {}
    size, address = max(free)
    size -= spare_bytes(free)
    if order and (border := _border(small, order)) is not None:
        end = address + min(size, round_up(int(_ZONE * _most(small))))
        stays[border.buffer] = end
        row = next(events for events in rows if border.buffer in dict(events))
        end += sum(round_up(asked) for _, asked in row)  # what else it asks for comes behind it
        size, address = size + address - end, end
    free = [*(each for each in free if each != max(free)), (size, address)]
    for _ in range(min(_ROUNDS, _EFFORT // max(len(order) ** 2, 1))):
        plan = _Offsets(free)
        for each in order:
            plan.place(each)
        if len(plan.at) > len(best):
            best = plan.at
        if not plan.failed:
            break
        order.sort(key=lambda each: each.buffer not in plan.failed)  # these choose first
    return best | stays


def end_of(free: list[tuple[int, int]]) -> int:
    """Where the last free piece ends; it is smaller where all lies farther on."""
    return max((address + size for size, address in free), default=0)


def spare_bytes(free: list[tuple[int, int]]) -> int:
    """What is left free behind all that has an address. `free`: see `offsets`."""
    return round_up(int(max(free)[0] * _SPARE)) if free else 0


def _border(small: list[_Held], large: list[_Held]) -> _Held | None:
    """The small buffer that comes before all large ones, and stays until nearly all are gone."""
    begin, end = min(each.begin for each in large), max(each.end for each in large)
    before = [each for each in small if each.begin <= begin and each.end >= _NEARLY * end]
    return max(before, key=lambda each: (each.end, -each.begin), default=None)


class _Offsets:
    """Addresses, given one after the other.

    Attributes:
        failed: buffers that found no place, or one that the allocator does not give them alone: it
            splits no piece that is less than twice the request and 128 MiB larger.
    """

    def __init__(self, free: list[tuple[int, int]]):
        self.free = free
        self.ends = [address + size for size, address in free]
        self.placed: list[tuple[_Held, int]] = []
        self.at: dict[int, int] = {}
        self.failed: set[int] = set()

    def place(self, held: _Held) -> None:
        """At the lowest address, or below what lies above it, where it takes nothing else."""
        beside = [
            (other, at)
            for other, at in self.placed
            if other.begin <= held.end and held.begin <= other.end
        ]
        found: int | None = None
        for begin, end in _gaps(self.free, sorted((at, at + other.size) for other, at in beside)):
            if end - begin < held.size:
                continue
            for address in dict.fromkeys((begin, end - held.size)):
                if not self._is_padded(held, address, beside):
                    self._place(held, address)
                    return
                found = address if found is None else found
        self.failed.add(held.buffer)
        if found is not None:
            self._place(held, found)

    def _place(self, held: _Held, address: int) -> None:
        self.placed.append((held, address))
        self.at[held.buffer] = address

    def _is_padded(self, held: _Held, address: int, beside: list[tuple[_Held, int]]) -> bool:
        """Whether it would get what lies free above it, or another one what lies free below it."""
        end = address + held.size
        there = [at for other, at in beside if other.begin < held.begin and at >= end]
        above = min([*there, *(each for each in self.ends if each >= end)], default=end)
        if 0 < above - end < min(held.size, MAX_PADDING_BYTES):
            return True
        return any(
            held.begin < other.begin
            and 0 < address - (at + other.size) < min(other.size, MAX_PADDING_BYTES)
            and not any(
                at + other.size <= between < address and each.begin < other.begin <= each.end
                for each, between in beside
            )
            for other, at in beside
        )


def _held(rows: Iterable[Events]) -> Iterator[_Held]:
    """All buffers that are asked for, and how long they are held."""
    begun: dict[int, tuple[int, int]] = {}
    number = 0
    for number, (buffer, size) in enumerate(itertools.chain.from_iterable(rows)):
        if size:
            begun[buffer] = round_up(size), number
        elif buffer in begun:
            yield _Held(*begun.pop(buffer), number, buffer)
    for buffer, (size, begin) in begun.items():
        yield _Held(size, begin, number, buffer)


def _most(held: list[_Held]) -> int:
    """The most bytes that are held at once."""
    changes = [(each.begin, each.size) for each in held] + [(each.end, -each.size) for each in held]
    return max(itertools.accumulate(size for _, size in sorted(changes)), default=0)


def _gaps(free: list[tuple[int, int]], taken: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(begin, end) of what is left of the free pieces beside what is taken, which is sorted."""
    for size, address in free:
        begin, last = address, address + size
        for lower, upper in taken:
            if upper <= begin:
                continue
            if lower >= last:
                break
            if lower > begin:
                yield begin, lower
            begin = max(begin, upper)
        if begin < last:
            yield begin, last


def lead(
    pieces: list[tuple[int, int]], asked: int, wanted: int, rest: int, spare: int = 0
) -> tuple[int, ...] | None:
    """What is to be reserved, one after the other, for a request to lie next to an address.

    Args:
        pieces: (bytes, address) of what is free.
        asked: the request's bytes. wanted: the address.
        rest: so much must be left free beside it, if possible.
        spare: what may lie before them elsewhere, and shift them all: it is left behind the last.

    Returns None where that does not go.
    """
    begins = [
        (abs(begin - wanted), begin, size, address)
        for size, address in pieces
        if size >= asked
        for begin in (min(max(address, wanted), address + size - asked),)
    ]
    away, begin, size, address = min(begins, default=(asked, 0, 0, 0))
    if away > asked * _NEXT:
        return None
    behind = address + size - (begin + asked)
    is_last = address + size == end_of(pieces)
    left_free = spare if is_last else 0
    if left_free < behind < min(asked, MAX_PADDING_BYTES):
        begin += behind - left_free  # else it would get that, too
    left = sorted(pieces)
    reserved: list[int] = []
    if address < begin:
        if address + size - begin <= 2 * spare:
            return None  # less than by what it may all be shifted
        for part in _in_front(size, begin - address, spare):
            reserved += _passed_over(left, part, (size, address), rest, spare, is_last)
            reserved.append(part)
            size, address = size - part, address + part
    reserved += _passed_over(left, asked, (size, begin), rest, spare, is_last)
    return tuple(reserved) if len(reserved) <= _RESERVED else None


def _in_front(size: int, front: int, spare: int) -> Iterator[int]:
    """The first bytes of a free piece, in parts that each leave the rest of it, in one that is a
    little smaller, too: where little is left behind, one reservation would get the whole piece.

    `spare`: that little; more than twice of it is left behind.
    """
    while not is_split(size - spare, front):
        least = size - spare
        part = max(least // 2, least - MAX_PADDING_BYTES) // GRAIN_BYTES * GRAIN_BYTES
        yield part
        size, front = size - part, front - part
    yield front


def _passed_over(
    pieces: list[tuple[int, int]],
    asked: int,
    piece: tuple[int, int],
    rest: int,
    spare: int,
    is_last: bool,
) -> Iterator[int]:
    """What is reserved of `pieces`, and taken from them, so that a request goes to `piece`. A
    reservation that is a little smaller than its piece gets the whole of it, and of another one
    that is not quite as large. `is_last`: whether no free piece lies behind `piece`."""
    least = max(rest, MAX_PADDING_BYTES) + spare
    for each in [each for each in pieces if asked <= each[0] and each < piece]:
        size, address = each
        pieces.remove(each)
        if rest and least < asked <= size - least:  # the rest of it does not hold the request
            pieces.append((least, address + size - least))
            size -= least
            yield size
        elif is_last and piece[0] - size <= spare:
            yield size  # where all lies farther on, `piece` is the smaller one
        else:
            yield max(asked, size - spare)
