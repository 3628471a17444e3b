"""What a search for reservations does can be undone, and what it leaves out is of no use."""

import sys
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from memtrade.simulate.bfc import MIB, BfcAllocator
from memtrade.simulate.offsets import Events
from memtrade.simulate.placement import SHARES, Placement
from memtrade.simulate.requests import State

SIZES = st.integers(1, 3 * MIB)
QUARTERS = st.integers(1, 12).map(lambda number: number * MIB // 4)


def events(plan: list[tuple[int, bool]]) -> Events:
    """Requests, and of those that are held then, some that are given back."""
    made, held = [], []
    for number, (size, gives_back) in enumerate(plan, start=1):
        if gives_back and held:
            made.append((held.pop(size % len(held)), 0))
        made.append((number, size))
        held.append(number)
    return made


@given(*(st.lists(st.tuples(SIZES, st.booleans()), max_size=30) for _ in range(2)))
def test_a_row_that_is_undone_leaves_no_trace(first: list, second: list) -> None:
    state = State(BfcAllocator.one_region(40 * MIB), {})
    state.run(events(first))
    before, handles = list(state.allocator.chunks()), dict(state.handles)
    in_use, mark = state.allocator.bytes_in_use, len(state.done)
    held = [(number, 0) for number in handles]
    later = [(number + len(first), size) for number, size in events(second)]
    state.run([*later, *held], reserved=(5 * MIB, MIB))  # or as far as there is room
    state.undo(mark)
    assert list(state.allocator.chunks()) == before
    assert (state.allocator.bytes_in_use, state.handles) == (in_use, handles)


class _EveryWay(Placement):
    """Tries what is of no use, too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.blocks = [block._replace(least_bytes=-sys.maxsize) for block in self.blocks]

    def _other_ways(self, state: State, block: Any, *, useful: bool) -> Iterator[tuple[int, ...]]:
        return super()._other_ways(state, block, useful=False)

    def _replayed(self, first: int, reserved: Any, last: int, hopeless: float, known: Any) -> Any:
        return super()._replayed(first, reserved, last, hopeless, {})


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(QUARTERS, st.booleans()), min_size=10, max_size=60),
    st.integers(1, 4),
    st.sampled_from(SHARES),
    st.floats(0.6, 2.0),
)
def test_ways_that_are_left_out_change_nothing(
    plan: list, row: int, shares: tuple[float, float], share: float
) -> None:
    made = events(plan)
    rows = [made[at : at + row] for at in range(0, len(made), row)]
    whole = State(BfcAllocator.one_region(200 * MIB), {})
    limit = int(share * whole.run(made))

    def found(kind: type[Placement]) -> dict[int, tuple[int, ...]]:
        state = State(BfcAllocator.one_region(200 * MIB), {})
        return kind(rows, state, limit, shares, sys.maxsize, {}).run()

    assert found(Placement) == found(_EveryWay)
