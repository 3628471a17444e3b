"""Where large buffers would lie if each could be put anywhere: offsets as a static allocator plans.

All requests of a step are known, and from when to when each is held. So the largest are laid down
first, each into the smallest gap that is free for as long as it is held: greedy by size (Y.
Pisarchyk, J. Lee, "Efficient memory management for deep neural net inference", MLSys workshop 2020,
arXiv 2001.03288). Requests that come one by one, each into the smallest free piece, leave holes
between them: the third of three buffers of 2 GB finds no place in 7.

Not guaranteed: that all find a place; finding such offsets is NP-hard (M. D. Moffitt, "MiniMalloc",
ASPLOS 2023). O(buffers²).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memtrade.simulate.bfc import MAX_PADDING_BYTES
from memtrade.simulate.regions import round_up

# Handles and small constants that come between take no more than this share.
_LOOSE = 2000
# Where some find no place, it is tried anew so often, with those first.
_ROUNDS = 20
# At most so many reservations lead one request next to where it is planned, by this share of it.
_RESERVED, _NEXT = 8, 0.25

Events = list[tuple[int, int]]  # (buffer, bytes that it asks for), or 0 bytes: it is given back


class _Held(NamedTuple):
    """A buffer: its bytes, and the first and last event at which they are its own."""

    size: int
    begin: int
    end: int
    buffer: int


def offsets(
    rows: Iterable[Events], free: list[tuple[int, int]], large_bytes: int
) -> dict[int, int]:
    """Buffer -> address, of those with requests of at least `large_bytes` that found a place.

    Args:
        rows: what a step asks for and gives back (see `placement.record`).
        free: (bytes, address) of what is free before it.
    """
    order = sorted(_large(rows, large_bytes), key=lambda each: (-each.size, each.begin))
    best: dict[int, int] = {}
    for _ in range(_ROUNDS):
        placed = dict(_placed(order, free))
        if len(placed) > len(best):
            best = placed
        if len(placed) == len(order):
            break
        order.sort(key=lambda each: each.buffer in placed)  # what found no place chooses first
    return best


def _placed(order: list[_Held], free: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(buffer, address) of what finds a place, one after the other."""
    placed: list[tuple[_Held, int]] = []
    for held in order:
        beside = [
            (at, at + other.size)
            for other, at in placed
            if other.begin <= held.end and held.begin <= other.end
        ]
        gaps = ((end - begin, begin) for begin, end in _gaps(free, sorted(beside)))
        found = min((gap for gap in gaps if gap[0] >= held.size), default=None)
        if found is not None:
            placed.append((held, found[1]))
            yield held.buffer, found[1]


def _large(rows: Iterable[Events], large_bytes: int) -> Iterator[_Held]:
    begun: dict[int, tuple[int, int]] = {}
    number = 0
    for number, (buffer, size) in enumerate(itertools.chain.from_iterable(rows)):
        if size >= large_bytes:
            begun[buffer] = round_up(size + size // _LOOSE), number
        elif not size and buffer in begun:
            yield _Held(*begun.pop(buffer), number, buffer)
    for buffer, (size, begin) in begun.items():
        yield _Held(size, begin, number, buffer)


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
    pieces: list[tuple[int, int]], asked: int, wanted: int, rest: int
) -> tuple[int, ...] | None:
    """What is to be reserved, one after the other, for a request to lie next to an address.

    Args:
        pieces: (bytes, address) of what is free.
        asked: the request's bytes. wanted: the address.
        rest: so much must be left free beside it, if possible.

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
    left = sorted(pieces)
    reserved: list[int] = []
    if address < begin:
        front = begin - address
        if size < 2 * front and size - front < MAX_PADDING_BYTES:
            return None  # the reservation would get the whole piece
        reserved += _passed_over(left, front, (size, address), rest)
        reserved.append(front)
        size -= front
    reserved += _passed_over(left, asked, (size, begin), rest)
    return tuple(reserved) if len(reserved) <= _RESERVED else None


def _passed_over(
    pieces: list[tuple[int, int]], asked: int, piece: tuple[int, int], rest: int
) -> Iterator[int]:
    """What is reserved of `pieces`, and taken from them, so that a request goes to `piece`."""
    least = max(rest, MAX_PADDING_BYTES)
    for each in [each for each in pieces if asked <= each[0] and each < piece]:
        size, address = each
        pieces.remove(each)
        if rest and least < asked <= size - least:  # the rest of it does not hold the request
            pieces.append((least, address + size - least))
            size -= least
        yield size
