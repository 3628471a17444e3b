"""The bytes that a program asks for and has not given back, row by row: a walk of no allocator.

Planners ask this of many programs of one graph. So what lies there before a step is counted once,
and a buffer is no more than its bytes and its references. What is in use during a row:

    live        buffers that somebody will still read
    passing     scratch, and outputs that nobody reads: gone when the row ends
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from memtrade.simulate.program import (
    ALIAS,
    ASSIGN,
    COMPUTE,
    MOVE,
    READ,
    RESERVE,
    SWAP_OUT,
    UPDATE,
    Linker,
    Program,
    Request,
)
from memtrade.simulate.walk import MAX_SLICE_BYTES, STRING_BYTES, Walk


class Laid(NamedTuple):
    """What lies there before a step: bytes and references of buffers, and whose they are.

    Attributes:
        live: bytes of all of them.
        sources: tensor -> buffer, of what is always there; variables: handle -> buffer.
    """

    live: int
    sizes: list[int]
    refs: list[int]
    sources: list[int]
    variables: dict[int, int]
    copied: frozenset[int]


def laid(linker: Linker) -> Laid:
    walk = Walk(linker, linker.link((), ()), _Nothing())
    walk.persist()
    return Laid(walk.live, walk.sizes, walk.refs, walk.sources, walk.variables, linker.copied)


def live_rows(program: Program, before: Laid) -> list[int]:
    """For each row, the most bytes in use while it runs. O(rows + what they read and make)."""
    buffers = _Buffers(program, before)
    sizes, refs, buffer_of = buffers.sizes, buffers.refs, buffers.buffer_of
    live, reserved = before.live, 0
    series: list[int] = []
    for row in program.rows:
        code, inputs = row.code, row.inputs
        if code is RESERVE:
            reserved += row.requests[0].size_bytes
            series.append(live + reserved)
            continue
        passing, reserved = reserved, 0
        kept = gone = 0
        taken: list[int] = []
        if code is COMPUTE or code is UPDATE:
            for variable in row.variables:
                kept, gone = buffers.replace(*variable)
                live += kept
                passing += gone
            kept, gone = buffers.compute(row.requests, inputs, row.outputs, taken)
        elif code is ALIAS:
            buffers.alias(inputs, row.outputs)
        elif code is READ:
            buffers.read(row.variables, row.outputs[0])
        elif code is ASSIGN:
            kept, gone = buffers.assign(*row.variables[0], inputs[0])
        elif code is MOVE:  # the old ones go once the new ones are there
            gone = sum(size for _, size in row.variables)
        else:
            size = row.requests[0].size_bytes
            if code is SWAP_OUT:
                size = STRING_BYTES
            elif size > MAX_SLICE_BYTES:
                passing += size // math.ceil(size / MAX_SLICE_BYTES)
            kept, gone = buffers.make(row.outputs[0], size)
        live += kept
        series.append(live + passing + gone)
        for buffer in [buffer_of[version] for version in inputs] + taken:
            refs[buffer] -= 1
            if not refs[buffer]:
                live -= sizes[buffer]
    return series


class _Buffers:
    """Bytes and references of the buffers along a program, and whose they are.

    Attributes:
        buffer_of: of versions of tensors. variables: of handles.
    """

    def __init__(self, program: Program, before: Laid):
        self.sizes, self.refs = before.sizes.copy(), before.refs.copy()
        self.variables, self.readers = before.variables.copy(), program.readers
        self.copied = before.copied
        self.buffer_of = before.sources + [0] * (len(program.tensor_of) - len(before.sources))

    def make(self, version: int, size: int) -> tuple[int, int]:
        """A new buffer. The bytes that stay, and those that nobody reads."""
        if not self.readers[version]:
            return 0, size
        self.buffer_of[version] = len(self.sizes)
        self.sizes.append(size)
        self.refs.append(self.readers[version])
        return size, 0

    def compute(
        self,
        wanted: Sequence[Request],
        inputs: Sequence[int],
        outputs: Sequence[int],
        taken: list[int],
    ) -> tuple[int, int]:
        """A kernel's outputs and scratch, in inputs' places where nobody else holds those. The
        bytes that stay, and those that do not; `taken` gets the places that scratch took."""
        refs, buffer_of, readers = self.refs, self.buffer_of, self.readers
        kept = gone = most = 0
        scratch: list[int] = []
        for request in wanted:
            size, slot, forwarded, relief = request
            if size < 0:
                if -size in scratch:
                    scratch.remove(-size)
                    most = max(most, kept + gone)
                    gone += size
                continue
            if relief:
                size = request.relieved_bytes(inputs, buffer_of, refs, self.sizes)
            for position in forwarded:
                buffer = buffer_of[inputs[position]]
                if refs[buffer] == 1:
                    break
            else:
                if slot < 0:
                    scratch.append(size)
                    gone += size
                elif not readers[outputs[slot]]:
                    gone += size
                else:
                    kept += self.make(outputs[slot], size)[0]
                continue
            if slot < 0:
                refs[buffer] += 1
                taken.append(buffer)
            else:
                refs[buffer] += readers[outputs[slot]]
                buffer_of[outputs[slot]] = buffer
        return kept, max(gone, most - kept)

    def alias(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        for version, source in zip(outputs, inputs, strict=False):
            buffer = self.buffer_of[version] = self.buffer_of[source]
            self.refs[buffer] += self.readers[version]

    def read(self, handles: Sequence[tuple[int, int]], version: int) -> None:
        """A variable's value is read where it lies."""
        buffer = self.variables.get(handles[0][0], 0) if handles else 0
        self.buffer_of[version] = buffer
        self.refs[buffer] += self.readers[version]

    def replace(self, handle: int, size: int) -> tuple[int, int]:
        """An update's own copy, where a read value is held or reads copy: then in its place goes
        the old one. The bytes that stay, and those that do not."""
        if handle in self.copied:
            return 0, size
        old = self.variables.get(handle, 0)
        if not old or self.refs[old] == 1:
            return 0, 0
        self.refs[old] -= 1
        self.variables[handle] = len(self.sizes)
        self.sizes.append(size)
        self.refs.append(1)
        return size, 0

    def assign(self, handle: int, size: int, source: int) -> tuple[int, int]:
        """A variable takes the buffer of its new value, if nobody else holds that and reads do not
        copy. The bytes that stay, and those that do not."""
        refs = self.refs
        value, old = self.buffer_of[source], self.variables.get(handle, 0)
        if refs[value] != 1 or handle in self.copied:
            return self.replace(handle, size)
        refs[value] += 1
        self.variables[handle] = value
        if not old:
            return 0, 0
        refs[old] -= 1
        return (0 if refs[old] else -self.sizes[old]), 0


class _Nothing:
    """No allocator: nobody looks at addresses."""

    bytes_in_use = 0

    def allocate(self, num_bytes: int, /) -> int:
        return 1 if num_bytes else 0

    def free(self, handle: int, /) -> None:
        pass
