"""Where an allocator's regions lie: what stands for `malloc` (see `memtrade.simulate.bfc`)."""

from __future__ import annotations

import struct
from collections.abc import Callable

GRAIN_BYTES = 256  # kMinAllocationSize

SubAllocator = Callable[[int], int | None]
"""Bytes -> the address of a new region of that size, or None when the system has no such block."""


def round_up(num_bytes: int) -> int:
    """As the allocator hands it out: up to a multiple of its grain."""
    return (num_bytes + GRAIN_BYTES - 1) // GRAIN_BYTES * GRAIN_BYTES


def _float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def nine_tenths(num_bytes: int) -> int:
    """0.9 of it in single precision, as C++ multiplies a ``size_t`` by a ``float``."""
    return int(_float32(_float32(num_bytes) * _float32(0.9)))


class Descending:
    """Each region a page below the one before, from 2**47 down: the order of Linux's ``mmap``."""

    def __init__(self) -> None:
        self.lowest = 1 << 47

    def __call__(self, num_bytes: int) -> int:
        self.lowest -= round_up(num_bytes) + 4096
        return self.lowest


class Ascending:
    """Each region a page above the one before: the order of a heap that grows, where memtrade's
    children have theirs."""

    def __init__(self) -> None:
        self.next = 1 << 46

    def __call__(self, num_bytes: int) -> int:
        address = self.next
        self.next += round_up(num_bytes) + 4096
        return address
