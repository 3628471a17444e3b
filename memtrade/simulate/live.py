"""The bytes that a program asks for and has not given back, row by row: a walk of no allocator.

Planners ask this of many programs of one graph. So what lies there before a step is counted once,
and a buffer is no more than its bytes and its references. What is in use during a row:

    live        buffers that somebody will still read
    passing     scratch, and outputs that nobody reads: gone when the row ends
"""

from __future__ import annotations

import math
from typing import NamedTuple

from memtrade.simulate.program import Code, Linker, Program
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


def laid(linker: Linker) -> Laid:
    walk = Walk(linker, linker.link((), ()), _Nothing())
    walk.persist()
    return Laid(walk.live, walk.sizes, walk.refs, walk.sources, walk.variables)


def live_rows(program: Program, before: Laid) -> list[int]:
    """For each row, the most bytes in use while it runs. O(rows + what they read and make)."""
    rows, tensor_of, readers, _ = program
    sizes, refs, variables = before.sizes.copy(), before.refs.copy(), before.variables.copy()
    buffer_of = before.sources + [0] * (len(tensor_of) - len(before.sources))
    live, reserved = before.live, 0
    series: list[int] = []

    def made(version: int, size: int) -> int:
        """A new buffer of a version that somebody reads."""
        buffer_of[version] = len(sizes)
        sizes.append(size)
        refs.append(readers[version])
        return size

    def replaced(handle: int, size: int) -> int:
        """An update's own copy where a read value is held; what it adds."""
        old = variables.get(handle, 0)
        if not old or refs[old] == 1:
            return 0
        refs[old] -= 1
        variables[handle] = len(sizes)
        sizes.append(size)
        refs.append(1)
        return size

    for _, code, wanted, inputs, outputs, handles in rows:
        if code == Code.RESERVE:
            reserved += wanted[0][0]
            series.append(live + reserved)
            continue
        passing, reserved = reserved, 0
        taken: list[int] = []
        if code == Code.COMPUTE:
            for size, slot, forwarded in wanted:
                if slot < 0:
                    for position in forwarded:
                        buffer = buffer_of[inputs[position]]
                        if refs[buffer] == 1:  # scratch takes its place
                            refs[buffer] += 1
                            taken.append(buffer)
                            break
                    else:
                        passing += size
                    continue
                version = outputs[slot]
                for position in forwarded:
                    buffer = buffer_of[inputs[position]]
                    if refs[buffer] == 1:
                        refs[buffer] += readers[version]
                        buffer_of[version] = buffer
                        break
                else:
                    if readers[version]:
                        live += made(version, size)
                    else:
                        passing += size
        elif code == Code.ALIAS:
            for version, source in zip(outputs, inputs, strict=False):
                buffer = buffer_of[version] = buffer_of[source]
                refs[buffer] += readers[version]
        elif code == Code.READ:
            buffer = variables.get(handles[0][0], 0) if handles else 0
            buffer_of[outputs[0]] = buffer
            refs[buffer] += readers[outputs[0]]
        elif code == Code.UPDATE:
            for handle, size in handles:
                live += replaced(handle, size)
        elif code == Code.ASSIGN:
            handle, size = handles[0]
            value, old = buffer_of[inputs[0]], variables.get(handle, 0)
            if refs[value] == 1:
                refs[value] += 1
                variables[handle] = value
                if old:
                    refs[old] -= 1
                    live -= 0 if refs[old] else sizes[old]
            else:
                live += replaced(handle, size)
        else:
            version, size = outputs[0], wanted[0][0]
            if code == Code.SWAP_OUT:
                size = STRING_BYTES
            elif size > MAX_SLICE_BYTES:
                passing += size // math.ceil(size / MAX_SLICE_BYTES)
            if readers[version]:
                live += made(version, size)
            else:
                passing += size
        series.append(live + passing)
        for buffer in [buffer_of[version] for version in inputs] + taken:
            refs[buffer] -= 1
            if not refs[buffer]:
                live -= sizes[buffer]
    return series


class _Nothing:
    """No allocator: nobody looks at addresses."""

    bytes_in_use = 0

    def allocate(self, num_bytes: int, /) -> int:
        return 1 if num_bytes else 0

    def free(self, handle: int, /) -> None:
        pass
