"""What a search for reservations does to its allocator can be undone."""

from hypothesis import given
from hypothesis import strategies as st

from memtrade.simulate.bfc import MIB, BfcAllocator
from memtrade.simulate.placement import Events, State

SIZES = st.integers(1, 3 * MIB)


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
