"""PyTorch's caching allocator: what it has reserved after a sequence of requests.

The idea. Memory comes from CUDA in *segments*, and is kept: a freed block waits for the next
request of its stream. What logs call reserved is the sum of all segments, whether anything lies in
them or not. The rules, as in PyTorch's `CUDACachingAllocator` by default:

- A request is rounded up to 512 bytes. Up to 1 MiB it is small; small and large ones, and every
  stream, have pools of their own.
- The smallest free block that holds it is taken, the lowest address first. What is left of it stays
  free, if it has 512 bytes (small) or more than 1 MiB (large).
- If none does, a segment is asked for: 2 MiB for a small request, 20 MiB for one below 10 MiB, else
  the request rounded up to 2 MiB.
- A freed block merges with its free neighbours in the segment.
- Where the card has no more, segments in which nothing lies are given back first, all of them.

Not modelled: that a block which another stream used waits for its event.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

MIB = 1 << 20
GRAIN_BYTES = 512
# A device's side streams are so many, handed out in turn: torchgpipe's micro-batches, and those of
# the GPT-2 logs, are copied from stage to stage on one each.
STREAMS = 32
SMALL_BYTES = MIB
# Further apart than any segment is large, so that segments never touch.
_SEGMENT_STRIDE = 1 << 40


@dataclass
class _Block:
    size: int
    pool: tuple[int, bool]
    before: int | None = None
    behind: int | None = None
    used: bool = True


class CachingAllocator:
    """One device's.

    Args:
        limit_bytes: what the card has; without end unless given.

    Attributes:
        reserved_bytes: of all segments; `most_reserved_bytes` at once.
        used_bytes: in use; `peak_bytes` at once.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.reserved_bytes = self.most_reserved_bytes = self.used_bytes = self.peak_bytes = 0
        self._free: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        self._blocks: dict[int, _Block] = {}
        self._segments = 0

    def allocate(self, size_bytes: int, stream: int = 0) -> int:
        """The address of a block, in the stream's pool. O(log of the free blocks)."""
        size = max(GRAIN_BYTES, -(-size_bytes // GRAIN_BYTES) * GRAIN_BYTES)
        pool = (stream, size <= SMALL_BYTES)
        free = self._free.setdefault(pool, [])
        index = bisect_left(free, (size, -1))
        address = free.pop(index)[1] if index < len(free) else self._segment(size, pool)
        block = self._blocks[address]
        rest = block.size - size
        if rest >= GRAIN_BYTES if pool[1] else rest > SMALL_BYTES:
            behind = address + size
            self._blocks[behind] = _Block(rest, pool, address, block.behind, used=False)
            if block.behind is not None:
                self._blocks[block.behind].before = behind
            block.size, block.behind = size, behind
            insort(free, (rest, behind))
        block.used = True
        self.used_bytes += block.size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return address

    def free(self, address: int) -> None:
        block = self._blocks[address]
        assert block.used
        self.used_bytes -= block.size
        block.used = False
        for first in (address, block.before):
            if first is not None:
                address = self._merged(first, address)
        block = self._blocks[address]
        insort(self._free[block.pool], (block.size, address))

    def _segment(self, size: int, pool: tuple[int, bool]) -> int:
        unit = 2 * MIB
        whole = unit if pool[1] else 20 * MIB if size < 10 * MIB else -(-size // unit) * unit
        if self.limit_bytes is not None and self.reserved_bytes + whole > self.limit_bytes:
            self._give_back()
            if self.reserved_bytes + whole > self.limit_bytes:
                raise MemoryError(f"{self.reserved_bytes + whole:,} of {self.limit_bytes:,} bytes")
        self.reserved_bytes += whole
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)
        self._segments += 1
        address = self._segments * _SEGMENT_STRIDE
        self._blocks[address] = _Block(whole, pool)
        return address

    def _give_back(self) -> None:
        """All segments in which nothing lies."""
        for free in self._free.values():
            for size, address in list(free):
                block = self._blocks[address]
                if block.before is None and block.behind is None:
                    free.remove((size, address))
                    del self._blocks[address]
                    self.reserved_bytes -= size

    def _merged(self, first: int, freed: int) -> int:
        """Joins the block and the one behind it where both are free; `freed` is in no list yet."""
        block = self._blocks[first]
        behind = block.behind
        if block.used or behind is None or self._blocks[behind].used:
            return freed
        free = self._free[block.pool]
        other = first if behind == freed else behind
        free.pop(bisect_left(free, (self._blocks[other].size, other)))
        gone = self._blocks.pop(behind)
        block.size += gone.size
        block.behind = gone.behind
        if gone.behind is not None:
            self._blocks[gone.behind].before = first
        return first


def copying_stream(micro_batch: int) -> int:
    """The stream on which a micro-batch is copied; 0 is the default stream."""
    return 1 + micro_batch % STREAMS


class TorchTensor:
    """Holds a block until nothing refers to it any more, as in PyTorch."""

    __slots__ = ("_address", "_device")

    def __init__(self, device: CachingAllocator, size_bytes: int, *, stream: int = 0):
        self._device = device
        self._address = -1  # of none, where the device has no more
        self._address = device.allocate(size_bytes, stream)

    def __del__(self) -> None:
        if self._address >= 0:
            self._device.free(self._address)
