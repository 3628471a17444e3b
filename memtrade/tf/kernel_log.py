"""What kernels asked the allocator for, read off TensorFlow's log.

With `TF_CPP_VMODULE=log_memory=2,bfc_allocator=3` each request is a line, and each output that a
kernel hands on is one, with its address:

    AllocateRaw cpu  16384 0x7f..40           a request, and where it was granted
    DeallocateRaw cpu 12336                   given back
    MemoryLogTensorOutput { kernel_name: "k3/run" index: 1 ... ptr: 1405... }
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

_LINE = re.compile(
    r"AllocateRaw \S+ +(?P<granted>\d+) (?P<at>0x[0-9a-f]+)"
    r"|DeallocateRaw \S+ +(?P<returned>\d+)"
    r'|MemoryLogTensorOutput \{.*?kernel_name: "(?P<kernel>[^"]*)"(?: index: (?P<index>\d+))?'
    r"(?:.*?requested_bytes: (?P<bytes>\d+))?(?:.* ptr: (?P<ptr>\d+))?"
)


class Granted(NamedTuple):
    """A request, and the address that it got."""

    size_bytes: int
    address: int


class Returned(NamedTuple):
    """Memory given back. Its address is not said."""

    size_bytes: int


class Output(NamedTuple):
    """A tensor that a kernel handed on; address 0 where it has no bytes."""

    kernel: str
    slot: int
    address: int


class Other(NamedTuple):
    """A line that says nothing of use here, but took its time to be written."""


LogLine = Granted | Returned | Output | Other


def read_events(lines: Iterable[str]) -> Iterator[LogLine]:
    for line in lines:
        found = _LINE.search(line)
        if found is None:
            yield Other()
        elif found["granted"]:
            yield Granted(int(found["granted"]), int(found["at"], 16))
        elif found["returned"]:
            yield Returned(int(found["returned"]))
        else:
            yield Output(found["kernel"], int(found["index"] or 0), int(found["ptr"] or 0))


def between(events: list[LogLine], first: str, last: str) -> list[LogLine]:
    """The events after kernel `first` has handed its output on, and before `last` asks for its."""
    names = [event.kernel if isinstance(event, Output) else "" for event in events]
    start = names.index(first) + 1
    end = names.index(last, start)
    own = events[start:end]
    for i in range(len(own) - 1, -1, -1):
        if isinstance(own[i], Granted):
            return own[:i]
    return own


def requests_of(events: list[LogLine], kernel: str) -> list[tuple[int, int]]:
    """(bytes, output or -1 for scratch) of each request, in order.

    Scratch counts as held until the kernel ends, and what was given back serves what is asked for
    next. Where that would still be more than the kernel ever held, the scratch is what was held
    beyond the outputs at most, in the pieces of that moment. What is given back that the kernel
    never asked for was another's.
    """
    outputs = {e.address: e.slot for e in events if isinstance(e, Output) and e.kernel == kernel}
    outputs.pop(0, None)
    made: list[_Piece] = []
    held = most = 0
    then: list[tuple[_Piece, int]] = []  # what was held of each
    for event in events:
        if isinstance(event, Granted):
            _take(made, event.size_bytes, outputs.get(event.address, -1))
            held += event.size_bytes
            if held > most:
                most = held
                then = [(piece, piece.held_bytes) for piece in made]
        elif isinstance(event, Returned):
            piece = next((p for p in made if p.held_bytes == event.size_bytes), None)
            if piece is not None:
                piece.held_bytes = 0
                held -= event.size_bytes
    requests = [(piece.size_bytes, piece.slot) for piece in made]
    kept = sum(size for size, slot in requests if slot >= 0)
    if sum(size for size, _ in requests) <= most:
        return requests
    first = next(i for i, (_, slot) in enumerate(requests) if slot < 0)
    # An output may lie where scratch had lain, which was taken for it until then.
    at_most = [held_bytes for piece, held_bytes in then if piece.slot < 0 and held_bytes]
    pieces = _without(at_most, sum(at_most) - (most - kept))
    scratch = [(each, -1) for each in pieces if most > kept]
    return requests[:first] + scratch + [each for each in requests[first:] if each[1] >= 0]


def _without(pieces: list[int], later_bytes: int) -> list[int]:
    """Scratch of one moment, less as many bytes as outputs take that come later, when some of it
    has been given back: a product that Einsum transposes into its output is as large as that."""
    large_enough = [each for each in pieces if each >= later_bytes]
    if later_bytes < 0 or not large_enough:
        return [sum(pieces) - later_bytes]
    at = pieces.index(min(large_enough))
    left = pieces[at] - later_bytes
    return pieces[:at] + [left] * (left > 0) + pieces[at + 1 :]


@dataclass
class _Piece:
    """Memory that a kernel asked for: its largest request, and what of it is not given back."""

    size_bytes: int
    slot: int
    held_bytes: int


def _take(made: list[_Piece], size_bytes: int, slot: int) -> None:
    """A request: for an output, or for scratch, which may lie where scratch lay before."""
    if slot >= 0:
        for earlier in made:  # of what became the same output, only the last one is it
            earlier.slot = -1 if earlier.slot == slot else earlier.slot
        made.append(_Piece(size_bytes, slot, size_bytes))
        return
    free = sorted((p for p in made if p.slot < 0 and not p.held_bytes), key=lambda p: p.size_bytes)
    large_enough = [piece for piece in free if piece.size_bytes >= size_bytes]
    if free:
        piece = (large_enough or free[-1:])[0]
        piece.size_bytes = max(piece.size_bytes, size_bytes)
        piece.held_bytes = size_bytes
    else:
        made.append(_Piece(size_bytes, -1, size_bytes))
