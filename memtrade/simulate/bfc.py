"""TensorFlow's BFC allocator in pure Python: the same chunks for the same requests, to the byte.

The idea. "Best fit with coalescing": memory comes from the system in a few large *regions*, each
tiled without gaps by *chunks* that are in use or free. A request is rounded up to 256 bytes and
gets the smallest free chunk that holds it. A freed chunk merges with its free neighbours at once.
A chunk that is only a little too large is handed out whole, and counts whole as in use: this
padding, and the holes between chunks, are why a measured peak lies above the sum of live tensors.

The variant: ``BFCAllocator`` of TensorFlow 2.21 (``third_party/xla/xla/tsl/framework/
bfc_allocator.{h,cc}``), as ``tensorflow/core/common_runtime/process_state.cc`` builds it for the
CPU device under ``TF_CPU_ALLOCATOR_USE_BFC=true`` and ``TF_CPU_BFC_MEM_LIMIT_IN_MB``. The rules,
with their names there:

- ``RoundedBytes``: up to a multiple of 256. A request for zero bytes gets no chunk.
- ``FindChunkPtr``: the free chunk with the smallest (size, address) that fits. TensorFlow keeps 21
  bins by powers of two; since bins are ordered by size and each is sorted by (size, address), its
  search is one best-fit search over all free chunks, and that is what is done here.
- Split if ``size >= 2 * rounded`` or ``size - rounded >= 128 MiB``. The low end is handed out, the
  rest is free.
- ``Extend``, when no chunk fits: if the rounded request fits in ``limit - pool`` (rounded down to
  256), ask for a new region. The region size starts at min(2 MiB, limit) and doubles with each
  region; a larger request doubles it until it suffices (and then it is not doubled once more). It
  is clipped to what is left of the limit. Regions are never given back, and never merge with each
  other.
- ``bytes_in_use`` adds whole chunks. Clearing the statistics sets the peak to the bytes in use.

Assumed and not modelled. One thread, or requests in the order in which the allocator's lock served
them; the system has the memory for each region. Their addresses come from ``malloc``: above one
another in a heap that grows; mapped each by itself, in no order that is known in advance. They
matter only when two free chunks of one size lie in different regions (see ``sub_allocator``). Not
modelled: ``fragmentation_fraction`` (off), chunk timestamps (``SetTimingCounter``; only some GPU
streams use them), ``garbage_collection`` of whole free regions (on for GPUs; without effect while
there is one region), spatial partitioning and regions that coalesce (GPU virtual memory). An
allocation that fails waits up to 10 s in TensorFlow for another thread to free memory; here it
fails at once, and like there it changes no chunk.

Cost: O(log f) comparisons per call, f = number of free chunks, plus a memmove of at most 8 f bytes;
about 0.6 microseconds per call with 500 live chunks and 50 free ones. Bins or a tree would gain
nothing while f stays below some thousands. Memory: at most two dictionary entries per chunk.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

from memtrade.errors import MemtradeError
from memtrade.simulate.regions import GRAIN_BYTES, Ascending, SubAllocator, round_up

MIB = 1 << 20
FIRST_REGION_BYTES = 2 * MIB
MAX_PADDING_BYTES = 128 * MIB

# A free chunk is one integer, ordered by size and then address: size / 256 above 48 address bits.
_ADDRESS_BITS = 48
_ADDRESS_MASK = (1 << _ADDRESS_BITS) - 1
_SIZE_SHIFT = _ADDRESS_BITS - 8

Pieces = Iterable[tuple[int, int]]


def is_split(chunk_bytes: int, asked_bytes: int) -> bool:
    """Whether a free chunk is too large to be handed out whole; `asked_bytes` are rounded up."""
    return chunk_bytes >= 2 * asked_bytes or chunk_bytes - asked_bytes >= MAX_PADDING_BYTES


class Chunk(NamedTuple):
    """A piece of a region, either wholly in use or wholly free."""

    address: int
    size_bytes: int
    in_use: bool


class ArenaOutOfMemoryError(MemtradeError):
    """No free chunk fits and the arena may not grow enough. The allocator is unchanged.

    Attributes
    ----------
    requested_bytes : as asked for, before rounding
    in_use_bytes : bytes in use, padding included
    largest_free_bytes : the largest free chunk
    limit_bytes : the arena's limit
    """

    def __init__(
        self,
        *,
        requested_bytes: int,
        in_use_bytes: int,
        largest_free_bytes: int,
        limit_bytes: int,
    ) -> None:
        super().__init__(
            f"no free chunk holds {requested_bytes:,} bytes (in use: {in_use_bytes:,}, "
            f"largest free chunk: {largest_free_bytes:,}, limit: {limit_bytes:,}): "
            "raise the limit, lower the batch size, or choose a plan with a lower peak"
        )
        self.requested_bytes = requested_bytes
        self.in_use_bytes = in_use_bytes
        self.largest_free_bytes = largest_free_bytes
        self.limit_bytes = limit_bytes


class BfcAllocator:
    """TensorFlow's BFC allocator with a hard limit.

    Parameters
    ----------
    limit_bytes
        Most bytes that all regions together may hold (``memory_limit_``). The CPU arena's limit is
        ``TF_CPU_BFC_MEM_LIMIT_IN_MB`` times 2**20.
    allow_growth
        True: regions on demand, as the CPU arena. False: the first request takes the whole limit
        as one region, as a GPU by default.
    sub_allocator
        Where regions lie. By default each lies above the one before (as in memtrade's children).

    Examples
    --------
    >>> arena = BfcAllocator(64 * MIB)
    >>> a = arena.allocate(1000)
    >>> arena.bytes_in_use  # four grains
    1024
    >>> b = arena.allocate(3 * MIB)
    >>> [size for _, size in arena.regions]  # 2 MiB did not hold it
    [2097152, 4194304]
    >>> arena.bytes_in_use - 1024  # 4 MiB is less than twice 3 MiB: not split
    4194304
    >>> _ = arena.free(a), arena.free(b)
    >>> arena.bytes_in_use, arena.peak_bytes_in_use
    (0, 4195328)
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        allow_growth: bool = True,
        sub_allocator: SubAllocator | None = None,
    ) -> None:
        if limit_bytes < GRAIN_BYTES:
            raise ValueError(f"limit_bytes must be at least {GRAIN_BYTES}, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        first_bytes = min(limit_bytes, FIRST_REGION_BYTES) if allow_growth else limit_bytes
        self._region_bytes = round_up(first_bytes)  # curr_region_allocation_bytes_
        self._sub_allocator = sub_allocator or Ascending()
        self._regions: list[tuple[int, int]] = []
        self._pool_bytes = 0
        self.bytes_in_use = 0  # bytes of all chunks in use, padding included
        self.peak_bytes_in_use = 0  # most of them since the start or the last `reset_peak`
        self._live: dict[int, int] = {}  # address -> size of a chunk in use
        self._free: list[int] = []  # sorted keys of the free chunks
        self._size_at: dict[int, int] = {}  # address -> size of a free chunk
        self._start_of: dict[int, int] = {}  # end address -> address of a free chunk

    @classmethod
    def one_region(cls, limit_bytes: int) -> Self:
        """An arena that was grown to its whole limit in advance, and is empty again.

        Models a fresh process whose first use of the arena is
        ``tf.raw_ops.Empty(shape=[limit_bytes - 2 * MIB], dtype=tf.uint8)``, dropped at once. The
        op's shape, a 4-byte tensor, opens the usual first region of 2 MiB; the rest of the limit
        becomes one region. (For a device that really has one region: ``allow_growth=False``.)
        """
        arena = cls(limit_bytes)
        shape = arena.allocate(4)
        arena.free(arena.allocate(arena.growable_bytes))
        arena.free(shape)
        arena.reset_peak()
        return arena

    def occupy(self, held: Pieces, free: Pieces, untold_bytes: int = 0) -> None:
        """Hold what another allocator with the same regions does. Of an empty one only.

        Args:
            held: (address, bytes) of chunks that may be given back; all that is neither of these
                nor free is in use for good.
            free: (address, bytes) of the free chunks.
            untold_bytes: of what is in use, so many are not counted.
        """
        self._free, self._size_at, self._start_of = [], {}, {}
        for address, size in free:
            self._size_at[address] = size
            self._start_of[address + size] = address
            insort(self._free, (size << _SIZE_SHIFT) + address)
        self._live = dict(held)
        self.bytes_in_use = self._pool_bytes - sum(self._size_at.values()) - untold_bytes
        self.reset_peak()

    def address(self, offset: int) -> int:
        """What lies so far behind the start, counted through the regions, the oldest first."""
        for start, size in self._regions:
            if offset < size:
                return start + offset
            offset -= size
        raise ValueError(f"{offset} bytes behind the last region")

    def fork(self) -> Self:
        """Another allocator in the same state. Both share a `sub_allocator` that was given."""
        made = object.__new__(type(self))  # sooner than copy.copy, and it is done very often
        made._become(self)
        return made

    def _become(self, other: BfcAllocator) -> None:
        """Takes on the state of another one."""
        self.__dict__.update(other.__dict__)
        self._sub_allocator = copy.copy(other._sub_allocator)
        self._regions, self._free = other._regions[:], other._free[:]
        self._live, self._size_at = other._live.copy(), other._size_at.copy()
        self._start_of = other._start_of.copy()

    @property
    def largest_free_bytes(self) -> int:
        """Size of the largest free chunk; 0 if there is none."""
        return self._free[-1] >> _ADDRESS_BITS << 8 if self._free else 0

    @property
    def growable_bytes(self) -> int:
        """What the limit leaves for further regions."""
        return (self.limit_bytes - self._pool_bytes) // GRAIN_BYTES * GRAIN_BYTES

    @property
    def largest_request_bytes(self) -> int:
        """The largest request that would succeed now."""
        return max(self.largest_free_bytes, self.growable_bytes)

    @property
    def regions(self) -> tuple[tuple[int, int], ...]:
        """(address, bytes) of each region, oldest first."""
        return tuple(self._regions)

    def chunks(self) -> Iterator[Chunk]:
        """All chunks in the order of their addresses."""
        both = [Chunk(address, size, True) for address, size in self._live.items()]
        both += [Chunk(address, size, False) for address, size in self._size_at.items()]
        return iter(sorted(both))

    def pieces(self, least_bytes: int) -> list[tuple[int, int]]:
        """(bytes, address) of the free chunks of at least so many bytes, as requests take them."""
        found = bisect_left(self._free, least_bytes << _SIZE_SHIFT)
        return [(key >> _ADDRESS_BITS << 8, key & _ADDRESS_MASK) for key in self._free[found:]]

    def piece(self, num_bytes: int) -> int:
        """Bytes of the free chunk that a request would be given of; 0 if there is none."""
        found = bisect_left(self._free, round_up(num_bytes) << _SIZE_SHIFT)
        return self._free[found] >> _ADDRESS_BITS << 8 if found < len(self._free) else 0

    def size_of(self, handle: int) -> int:
        """Bytes that an allocation occupies, padding included; 0 for the null handle."""
        return self._live[handle] if handle else 0

    def reset_peak(self) -> None:
        """Set the peak to the bytes in use now, as ``reset_memory_stats`` does."""
        self.peak_bytes_in_use = self.bytes_in_use

    def allocate(self, num_bytes: int, /) -> int:
        """Take a chunk.

        Returns
        -------
        The handle: the chunk's address, or 0 for a request of zero bytes, which takes nothing.

        Raises
        ------
        ArenaOutOfMemoryError
            If TensorFlow would raise ``ResourceExhaustedError``.
        """
        if num_bytes <= 0:
            if num_bytes < 0:
                raise ValueError(f"num_bytes must not be negative, got {num_bytes}")
            return 0
        rounded = (num_bytes + 255) & -256
        free = self._free
        found = bisect_left(free, rounded << _SIZE_SHIFT)
        if found == len(free):
            if not self._extend(rounded):
                raise ArenaOutOfMemoryError(
                    requested_bytes=num_bytes,
                    in_use_bytes=self.bytes_in_use,
                    largest_free_bytes=self.largest_free_bytes,
                    limit_bytes=self.limit_bytes,
                )
            found = bisect_left(free, rounded << _SIZE_SHIFT)
        key = free.pop(found)
        address = key & _ADDRESS_MASK
        size = self._size_at.pop(address)
        if size >= rounded * 2 or size - rounded >= MAX_PADDING_BYTES:
            rest_bytes = size - rounded
            rest = address + rounded
            insort(free, (rest_bytes << _SIZE_SHIFT) + rest)
            self._size_at[rest] = rest_bytes
            self._start_of[address + size] = rest
            size = rounded
        else:
            del self._start_of[address + size]
        self._live[address] = size
        self.bytes_in_use = in_use = self.bytes_in_use + size
        if in_use > self.peak_bytes_in_use:
            self.peak_bytes_in_use = in_use
        return address

    def free(self, handle: int) -> tuple[int, int, int]:
        """Give a chunk back and merge it with its free neighbours. Handle 0 does nothing.

        Returns
        -------
        The handle, the chunk's bytes, and where the free chunk begins that it is part of now: what
        `retake` takes.

        Raises
        ------
        ValueError
            If the handle is not in use.
        """
        if not handle:
            return 0, 0, 0
        size = self._live.pop(handle, 0)
        if not size:
            raise ValueError(f"handle {handle:#x} is not in use (freed twice?)")
        self.bytes_in_use -= size
        free, size_at, start_of = self._free, self._size_at, self._start_of
        start = handle
        end = handle + size
        next_bytes = size_at.pop(end, 0)
        if next_bytes:
            del free[bisect_left(free, (next_bytes << _SIZE_SHIFT) + end)]
            end += next_bytes
        previous = start_of.pop(start, 0)
        if previous:
            del free[bisect_left(free, (size_at[previous] << _SIZE_SHIFT) + previous)]
            start = previous
        size_at[start] = end - start
        start_of[end] = start
        insort(free, ((end - start) << _SIZE_SHIFT) + start)
        return handle, size, start

    def retake(self, handle: int, size: int, start: int) -> None:
        """Undo the `free` that returned these, after all that came behind it."""
        free, size_at, start_of = self._free, self._size_at, self._start_of
        end = start + size_at.pop(start)
        del free[bisect_left(free, ((end - start) << _SIZE_SHIFT) + start)], start_of[end]
        for begin, behind in ((start, handle), (handle + size, end)):
            if begin < behind:
                size_at[begin] = behind - begin
                start_of[behind] = begin
                insort(free, ((behind - begin) << _SIZE_SHIFT) + begin)
        self._live[handle] = size
        self.bytes_in_use += size

    def _extend(self, rounded: int) -> bool:
        """Add a region that holds `rounded` bytes, as one free chunk. False if there is no room."""
        available = self.growable_bytes
        if rounded > available:
            return False
        doubled = False
        while rounded > self._region_bytes:
            self._region_bytes *= 2
            doubled = True
        size = min(self._region_bytes, available)
        address = self._sub_allocator(size)
        if not doubled:
            self._region_bytes *= 2
        self._pool_bytes += size
        self._regions.append((address, size))
        self._size_at[address] = size
        self._start_of[address + size] = address
        insort(self._free, (size << _SIZE_SHIFT) + address)
        return True
