"""The BFC simulator against TensorFlow's own allocator, and its invariants on random requests.

Two child processes (`drive_arena.py`) make random requests of TensorFlow's CPU arena, one grown on
demand, one in one region, and write down what it did. They start with the first test and are read
by the last ones: each waits 10 s for the requests that must fail.
"""

import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from memtrade.simulate import bfc
from memtrade.simulate.bfc import MIB, ArenaOutOfMemoryError, BfcAllocator
from memtrade.simulate.regions import GRAIN_BYTES

Step = tuple[str, int, int, int, int]

LIMIT_MIB = 2000
STEPS = 2000
STARTS = ("grown", "one_region")


@pytest.fixture(scope="module", autouse=True)
def children() -> Iterator[dict[str, subprocess.Popen[str]]]:
    # Regions lie in the heap, as a trial's do. Each mapped by itself, some would lie in gaps that
    # threads leave, and not in the order of their age.
    env = child_environment(TrialSpec())
    script = str(Path(__file__).with_name("drive_arena.py"))
    started = {
        start: subprocess.Popen(
            [sys.executable, script, start, str(seed), str(STEPS), str(LIMIT_MIB), "1"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed, start in enumerate(STARTS)
    }
    yield started
    for child in started.values():
        child.kill()
        child.wait()


@pytest.fixture(scope="module")
def records(children: dict[str, subprocess.Popen[str]]) -> dict[str, list[Step]]:
    """What TensorFlow's allocator did, step by step."""
    found = {}
    for start, child in children.items():
        output, errors = child.communicate()
        assert child.returncode == 0, errors
        found[start] = json.loads(output)
    return found


def first_difference(
    steps: list[Step], *, module: types.ModuleType = bfc, known_places: bool = True
) -> str | None:
    """Replay a record; the first step at which the simulator does something else.

    With `known_places`, regions get their real addresses, and so must every chunk.
    """
    place = [0]
    arena = module.BfcAllocator(
        LIMIT_MIB * MIB, sub_allocator=(lambda _: place[0]) if known_places else None
    )
    handles: dict[int, int] = {}
    for index, (operation, number, address, in_use, peak) in enumerate(steps):
        place[0] = address
        try:
            if operation == "allocate":
                handles[index] = arena.allocate(number)
                if known_places and handles[index] != address:
                    return f"step {index}: {number} bytes at {handles[index]:#x}, not {address:#x}"
            elif operation == "free":
                arena.free(handles.pop(number))
            elif operation == "reset":
                arena.reset_peak()
            else:
                arena.allocate(number)
                return f"step {index}: {number} bytes did not fail"
        except module.ArenaOutOfMemoryError as error:
            if operation != "fail":
                return f"step {index}: {error}"
        if (arena.bytes_in_use, arena.peak_bytes_in_use) != (in_use, peak):
            return (
                f"step {index}: {arena.bytes_in_use} in use, peak {arena.peak_bytes_in_use}; "
                f"TensorFlow {in_use}, peak {peak}"
            )
    return None


# --- by hand ---------------------------------------------------------------------------------


def test_regions_double_and_are_clipped_to_the_limit() -> None:
    arena = BfcAllocator(40 * MIB)
    sizes: list[int] = []
    for request in (1, 2 * MIB, 2 * MIB + 1, 9 * MIB):
        arena.allocate(request)
        sizes = [size // MIB for _, size in arena.regions]
    # 9 MiB doubles 8 to 16 and is then not doubled again
    assert sizes == [2, 4, 8, 16]
    arena.allocate(10 * MIB)
    assert [size // MIB for _, size in arena.regions] == [2, 4, 8, 16, 10]
    assert arena.growable_bytes == 0


def test_split_rule() -> None:
    arena = BfcAllocator(2048 * MIB, allow_growth=False)
    arena.free(arena.allocate(1))
    assert arena.largest_free_bytes == 2048 * MIB
    # twice the request or 128 MiB more: split; one grain less: handed out whole
    for hole, request, taken in (
        (512, 256, 256),
        (768, 512, 768),
        (300 * MIB, 172 * MIB, 172 * MIB),
        (300 * MIB, 172 * MIB + 256, 300 * MIB),
    ):
        low = arena.allocate(hole)
        fence = arena.allocate(1)
        arena.free(low)
        handle = arena.allocate(request)
        assert (handle, arena.size_of(handle)) == (low, taken)
        arena.free(handle)
        arena.free(fence)


def test_lowest_address_wins_a_tie() -> None:
    arena = BfcAllocator.one_region(64 * MIB)
    handles = [arena.allocate(4096) for _ in range(6)]
    arena.free(handles[3])
    arena.free(handles[1])
    assert arena.allocate(4096) == handles[1]
    assert arena.allocate(4096) == handles[3]


def test_zero_bytes_take_nothing() -> None:
    arena = BfcAllocator(MIB)
    assert arena.allocate(0) == 0
    arena.free(0)
    assert (arena.regions, arena.bytes_in_use, arena.size_of(0)) == ((), 0, 0)


def test_out_of_memory_carries_its_values_and_changes_nothing() -> None:
    arena = BfcAllocator.one_region(10 * MIB)
    arena.allocate(3 * MIB)
    before = list(arena.chunks())
    with pytest.raises(
        ArenaOutOfMemoryError, match=r"5,242,881 bytes \(in use: 3,145,728"
    ) as caught:
        arena.allocate(5 * MIB + 1)
    error = caught.value
    assert (error.requested_bytes, error.in_use_bytes) == (5 * MIB + 1, 3 * MIB)
    assert (error.largest_free_bytes, error.limit_bytes) == (5 * MIB, 10 * MIB)
    assert list(arena.chunks()) == before
    arena.allocate(5 * MIB)


def test_one_region_is_empty_and_has_the_whole_limit() -> None:
    arena = BfcAllocator.one_region(1000 * MIB)
    assert [size // MIB for _, size in arena.regions] == [2, 998]
    assert (arena.bytes_in_use, arena.peak_bytes_in_use, arena.growable_bytes) == (0, 0, 0)


def test_misuse_is_refused() -> None:
    arena = BfcAllocator(MIB)
    handle = arena.allocate(1)
    arena.free(handle)
    with pytest.raises(ValueError, match="not in use"):
        arena.free(handle)
    with pytest.raises(ValueError, match="got -1"):
        arena.allocate(-1)
    with pytest.raises(ValueError, match="at least 256, got 255"):
        BfcAllocator(255)


# --- invariants ------------------------------------------------------------------------------

REQUESTS = st.one_of(
    st.integers(0, 2000),
    st.sampled_from([4096, 4097, MIB, 3 * MIB]),  # ties
    st.integers(0, 1 << 22),
    st.integers(0, 1 << 28),
)
OPERATIONS = st.lists(st.tuples(st.booleans(), REQUESTS), max_size=80)


def check(arena: BfcAllocator) -> None:
    chunks = list(arena.chunks())
    assert sum(chunk.size_bytes for chunk in chunks if chunk.in_use) == arena.bytes_in_use
    assert sum(size for _, size in arena.regions) <= arena.limit_bytes
    assert all(chunk.size_bytes % GRAIN_BYTES == 0 < chunk.size_bytes for chunk in chunks)
    free = [chunk.size_bytes for chunk in chunks if not chunk.in_use]
    assert arena.largest_free_bytes == max(free, default=0)
    for start, size in sorted(arena.regions):
        at = start
        after_free = False
        while at < start + size:  # the chunks tile the region; no two free ones touch
            chunk = chunks.pop(0)
            assert chunk.address == at
            assert chunk.in_use or not after_free
            after_free = not chunk.in_use
            at += chunk.size_bytes
        assert at == start + size
    assert not chunks


@settings(max_examples=150, deadline=None)
@given(operations=OPERATIONS, limit_mib=st.sampled_from([1, 3, 64, 700]), one_region=st.booleans())
def test_invariants(operations: list[tuple[bool, int]], limit_mib: int, one_region: bool) -> None:
    limit = limit_mib * MIB
    arena = BfcAllocator.one_region(limit) if one_region else BfcAllocator(limit)
    live: list[int] = []
    peak = 0
    for allocates, number in operations:
        if not allocates and live:
            arena.free(live.pop(number % len(live)))
        elif number:
            rounded = -(-number // GRAIN_BYTES) * GRAIN_BYTES
            fitting = [
                (chunk.size_bytes, chunk.address)
                for chunk in arena.chunks()
                if not chunk.in_use and chunk.size_bytes >= rounded
            ]
            regions = len(arena.regions)
            if rounded > arena.largest_request_bytes:
                with pytest.raises(ArenaOutOfMemoryError):
                    arena.allocate(number)
            else:
                live.append(arena.allocate(number))
                padding = arena.size_of(live[-1]) - rounded
                assert 0 <= padding < min(rounded, 128 * MIB)
                if fitting:  # the smallest, then the lowest
                    assert live[-1] == min(fitting)[1]
                assert len(arena.regions) == regions + (not fitting)
        check(arena)
        assert arena.peak_bytes_in_use == max(peak, arena.bytes_in_use)
        peak = arena.peak_bytes_in_use
    for handle in live:
        arena.free(handle)
    check(arena)
    assert len(list(arena.chunks())) == len(arena.regions)
    assert (arena.bytes_in_use, arena.peak_bytes_in_use) == (0, peak)


# --- against TensorFlow ----------------------------------------------------------------------


@pytest.mark.parametrize("known_places", [True, False])
@pytest.mark.parametrize("start", STARTS)
def test_same_as_tensorflow(records: dict[str, list[Step]], start: str, known_places: bool) -> None:
    """In use and peak agree to the byte after every step; and every chunk's address."""
    steps = records[start]
    assert len(steps) > STEPS * 0.9
    assert sum(operation == "fail" for operation, *_ in steps) == 3
    assert steps[-1][3] == 0
    assert first_difference(steps, known_places=known_places) is None


def test_one_region_is_what_tensorflow_had(records: dict[str, list[Step]]) -> None:
    """`one_region` leaves the state that the child's real pre-growing left."""
    place = [0]
    replayed = BfcAllocator(LIMIT_MIB * MIB, sub_allocator=lambda _: place[0])
    growing = records["one_region"][:5]
    operations = [operation for operation, *_ in growing]
    assert operations == ["allocate", "allocate", "free", "free", "reset"]
    for _, num_bytes, address, *_ in growing[:2]:
        place[0] = address
        replayed.allocate(num_bytes)
    for _, step, *_ in growing[2:4]:
        replayed.free(growing[step][2])
    fresh = BfcAllocator.one_region(LIMIT_MIB * MIB)
    assert [size for _, size in fresh.regions] == [size for _, size in replayed.regions]


# Each rule of the allocator, broken.
MUTANTS = {
    "rounding": ("(num_bytes + 255) & -256", "(num_bytes + 511) & -512"),
    "splits later": ("size >= rounded * 2", "size >= rounded * 2 + 256"),
    "splits earlier": ("size >= rounded * 2", "size >= rounded * 2 - 256"),
    "pads more": ("MAX_PADDING_BYTES = 128 * MIB", "MAX_PADDING_BYTES = 128 * MIB + 256"),
    "pads less": ("MAX_PADDING_BYTES = 128 * MIB", "MAX_PADDING_BYTES = 128 * MIB - 256"),
    "counts what was asked": ("self.bytes_in_use + size", "self.bytes_in_use + rounded"),
    "ties": (
        "key = free.pop(found)",
        "key = free.pop(bisect_left(free, (free[found] >> 48) + 1 << 48) - 1)",
    ),
    "first fit": (
        "key = free.pop(found)",
        "key = free.pop(min(range(found, len(free)), key=lambda i: free[i] & _ADDRESS_MASK))",
    ),
    "no merge upwards": ("next_bytes = size_at.pop(end, 0)", "next_bytes = 0"),
    "no merge downwards": ("previous = start_of.pop(start, 0)", "previous = 0"),
    "first region": ("FIRST_REGION_BYTES = 2 * MIB", "FIRST_REGION_BYTES = 4 * MIB"),
    "doubles twice": ("if not doubled:", "if True:"),
    "never doubles": ("if not doubled:", "if False:"),
    "not clipped": ("min(self._region_bytes, available)", "self._region_bytes"),
    "peak cleared to 0": ("= self.bytes_in_use\n\n", "= 0\n\n"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_noticed(records: dict[str, list[Step]], mutant: str) -> None:
    old, new = MUTANTS[mutant]
    source = Path(bfc.__file__).read_text()
    assert source.count(old) == 1
    broken = types.ModuleType("broken_bfc")
    exec(source.replace(old, new), vars(broken))
    differences = []
    for steps in records.values():
        try:
            differences.append(first_difference(steps, module=broken))
        except (ValueError, KeyError) as error:  # tripped over its own state
            differences.append(repr(error))
    assert any(differences)
