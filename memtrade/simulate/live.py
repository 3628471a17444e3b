"""The bytes that a program asks for and has not given back, row by row: a walk of no allocator.

Planners ask this of many programs of one graph. So what lies there before a step is counted once,
and a buffer is no more than its bytes and its references.
"""

from memtrade.simulate.program import Linker, Program
from memtrade.simulate.walk import Walk


class _Counter:
    """Has room for everything, and adds up what is asked for. A handle is its size."""

    def __init__(self, bytes_in_use: int = 0):
        self.bytes_in_use = bytes_in_use

    def allocate(self, num_bytes: int, /) -> int:
        self.bytes_in_use += num_bytes
        return num_bytes

    def free(self, handle: int, /) -> None:
        self.bytes_in_use -= handle


class LiveWalk(Walk):
    """A walk that adds up by itself: to ask for each buffer would take a third as long again.

    Attributes:
        persistent_bytes: what lies there before a step.
    """

    def __init__(self, linker: Linker, program: Program | None = None):
        super().__init__(linker, program or linker.link((), ()), _Counter())
        self.persist()

    def _new(self, size: int, references: int, owner: int) -> int:
        if not size:
            return 0
        self.allocator.bytes_in_use += size
        self.sizes.append(size)
        self.refs.append(references)
        self._owner.append(owner)
        return len(self.sizes) - 1

    def _give_back(self, buffer: int) -> None:
        self.allocator.bytes_in_use -= self.sizes[buffer]

    def rows(self, program: Program) -> list[int]:
        """For each row, the most bytes in use while it runs. O(rows + what they read and make)."""
        walk = self.fork(program, _Counter(self.persistent_bytes))
        walk.step()
        return walk.series
