"""Where an allocator's regions lie: what stands for `malloc` (see `memtrade.simulate.bfc`)."""

from collections.abc import Callable

GRAIN_BYTES = 256  # kMinAllocationSize

SubAllocator = Callable[[int], int]
"""Bytes -> the address of a new region of that size."""


def round_up(num_bytes: int) -> int:
    """As the allocator hands it out: up to a multiple of its grain."""
    return (num_bytes + GRAIN_BYTES - 1) // GRAIN_BYTES * GRAIN_BYTES


class Ascending:
    """Each region a page above the one before: the order of a heap that grows, where memtrade's
    children have theirs."""

    def __init__(self) -> None:
        self.next = 1 << 46

    def __call__(self, num_bytes: int) -> int:
        address = self.next
        self.next += round_up(num_bytes) + 4096
        return address
