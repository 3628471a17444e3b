"""Offsets as a static allocator plans them, and reservations that lead requests there."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtrade.simulate.bfc import MIB, ArenaOutOfMemoryError, BfcAllocator
from memtrade.simulate.offsets import Events, lead, offsets
from memtrade.simulate.placement import SHARES, Placement
from memtrade.simulate.requests import State

GIB = 1 << 30
PIECE = 128 * MIB
MOST = 24 * PIECE


def crowded(seed: int) -> list[Events]:
    """Powers of two of a piece come, and at random others go so that they fit."""
    draw = random.Random(seed)
    rows: list[Events] = []
    held: dict[int, int] = {}
    for number in range(1, 60):
        held[number] = draw.choice((1, 1, 1, 2, 2, 2, 4, 4, 8)) * PIECE
        events = [(number, held[number])]
        while sum(held.values()) > MOST:
            gone = draw.choice([each for each in held if each != number])
            del held[gone]
            events.insert(0, (gone, 0))
        rows.append(events)
    return rows


def runs(rows: list[Events], limit: int, reserved: dict[int, tuple[int, ...]]) -> bool:
    state = State(BfcAllocator.one_region(limit), {})
    return all(state.run(events, reserved.get(row, ())) <= limit for row, events in enumerate(rows))


def test_what_best_fit_scatters_runs_where_it_is_planned_to_lie() -> None:
    limit, counts = int(1.3 * MOST), [0, 0, 0]
    for seed in range(12):
        rows, start = crowded(seed), State(BfcAllocator.one_region(limit), {})
        planned = offsets(rows, start.allocator.pieces(0), PIECE)
        found = [
            Placement(rows, start, limit, SHARES[0], limit, each).run() for each in ({}, planned)
        ]
        for way, reserved in enumerate([{}, *found]):
            counts[way] += runs(rows, limit, reserved)
    scattered, looked_back, led = counts
    assert scattered < looked_back < led
    assert led >= 11


@st.composite
def steps(draw: st.DrawFn) -> list[Events]:
    rows: list[Events] = []
    held: list[int] = []
    for number in range(1, draw(st.integers(2, 25))):
        events = [(number, draw(st.integers(1, 64)) * MIB)]
        held.append(number)
        if draw(st.booleans()):
            events.append((held.pop(draw(st.integers(0, len(held) - 1))), 0))
        rows.append(events)
    return rows


@given(steps())
def test_no_two_lie_in_one_place_at_once(rows: list[Events]) -> None:
    free = [(100 * MIB, 0), (400 * MIB, 200 * MIB)]
    planned = offsets(rows, free, MIB)
    sizes = {buffer: size for events in rows for buffer, size in events if size}
    held: set[int] = set()
    for buffer, size in itertools.chain.from_iterable(rows):
        if size:
            held.add(buffer)
        else:
            held.remove(buffer)
        ranges = sorted(
            (planned[each], planned[each] + sizes[each]) for each in held & set(planned)
        )
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    for buffer, at in planned.items():
        assert any(start <= at and at + sizes[buffer] <= start + size for size, start in free)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=12), st.integers(1, 40), st.data())
def test_a_request_that_is_led_comes_next_to_its_place(
    sizes: list[int], asked: int, data: st.DataObject
) -> None:
    """Every second chunk is given back, and the request is led to one of the holes."""
    arena = BfcAllocator.one_region(1 << 36)
    taken = [arena.allocate(size * 16 * MIB) for size in sizes]
    for handle in taken[::2]:
        arena.free(handle)
    size = asked * 16 * MIB
    pieces = arena.pieces(256)
    wanted = data.draw(st.sampled_from([address for _, address in pieces]))
    reserved = lead(pieces, size, wanted, 0)
    if reserved is None:
        return
    try:
        for each in reserved:
            arena.allocate(each)
        handle = arena.allocate(size)
    except ArenaOutOfMemoryError:
        raise AssertionError("what was reserved left no room") from None
    assert arena.size_of(handle) == size  # and nothing else
    assert abs(handle - wanted) <= size // 4 + min(size, 128 * MIB)


def test_what_is_passed_over_is_so_where_all_lies_a_little_farther_on() -> None:
    """The rest that a reservation leaves is more than what the allocator would not split off."""
    spare, asked = MIB, 300 * MIB
    pieces = [(2 * GIB, 0), (3 * GIB, 4 * GIB)]
    reserved = lead(pieces, asked, 4 * GIB, MIB, spare)
    assert reserved is not None
    for shift in (0, spare // 2):
        arena = BfcAllocator.one_region(1 << 36)
        handles = [arena.allocate(size) for size in (2 * GIB - shift, 4 * MIB, 3 * GIB, 1 << 35)]
        arena.allocate(arena.largest_free_bytes)
        arena.free(handles[0])
        arena.free(handles[2])
        for each in reserved:
            arena.allocate(each)
        assert arena.allocate(asked) == handles[2]
        assert any(size < asked for size, _ in arena.pieces(4 * MIB))


SPARE, SHIFTS = MIB // 4, [0, MIB // 4 - 256]


def one_piece(num_bytes: int) -> tuple[BfcAllocator, int]:
    """An arena with a single free piece, and where it begins."""
    arena = BfcAllocator.one_region(num_bytes + 2 * MIB)
    arena.allocate(2 * MIB)
    ((size, begin),) = arena.pieces(0)
    assert size == num_bytes
    return arena, begin


def led(arena: BfcAllocator, pieces: list[tuple[int, int]], asked: int, wanted: int) -> int:
    """Where a request comes to lie, if `pieces` are what was foreseen to be free."""
    reserved = lead(pieces, asked, wanted, 0, SPARE)
    assert reserved
    for each in reserved:
        arena.allocate(each)
    return arena.allocate(asked)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("asked", [size * MIB for size in (1, 40, 150, 300)])
def test_a_request_is_led_to_the_end_of_a_piece_that_one_reservation_would_get_whole(
    asked: int, shift: int
) -> None:
    """And where all lies a little farther on, too."""
    arena, begin = one_piece(400 * MIB)
    wanted = begin + 400 * MIB - SPARE - asked
    arena.allocate(shift)
    assert led(arena, [(400 * MIB, begin)], asked, wanted) == wanted + shift


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_last_piece_is_told_from_another_one_of_its_size(shift: int) -> None:
    """Where all lies a little farther on, it is the smaller one."""
    size = 61 * MIB
    arena, begin = one_piece(4 * size)
    last = begin + 3 * size
    arena.allocate(shift)
    first = arena.allocate(size)
    for _ in range(4):
        arena.allocate(size // 2)
    arena.free(first)
    assert led(arena, [(size, begin), (size, last)], size - SPARE, last) == last + shift
