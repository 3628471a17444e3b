"""What kernels asked the allocator for, read off TensorFlow's log.

With `TF_CPP_VMODULE=log_memory=2,bfc_allocator=3` each request is a line, and each output that a
kernel hands on is one, with its address:

    AllocateRaw cpu  16384 0x7f..40           a request, and where it was granted
    DeallocateRaw cpu 12336                   given back
    MemoryLogTensorOutput { kernel_name: "k3/run" index: 1 ... ptr: 1405... }
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_LINE = re.compile(
    r"AllocateRaw \S+ +(?P<granted>\d+) (?P<at>0x[0-9a-f]+)"
    r"|DeallocateRaw \S+ +(?P<returned>\d+)"
    r'|MemoryLogTensorOutput \{.*?kernel_name: "(?P<kernel>[^"]*)"(?: index: (?P<index>\d+))?'
    r"(?:.*?requested_bytes: (?P<bytes>\d+))?(?:.* ptr: (?P<ptr>\d+))?"
)


_FEW = 16  # requests of a kernel that are told one by one


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
    """(bytes, output or -1 for scratch) of each request, in order; with bytes below 0, of scratch
    that is given back before an output is asked for.

    Other scratch, and that of many requests, counts as held until the kernel ends, and what was
    given back serves what is asked for next. Where that would still be more than the kernel ever
    held, the scratch is what was held beyond the outputs at most, in the pieces of that moment.
    What is given back that the kernel never asked for was another's.
    """
    outputs = {e.address: e.slot for e in events if isinstance(e, Output) and e.kernel == kernel}
    outputs.pop(0, None)
    one_by_one = _one_by_one(events, outputs)
    if _outputs_come_late(one_by_one):
        return one_by_one
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
    pieces = at_most if sum(at_most) == most - kept else [most - kept]
    scratch = [(each, -1) for each in pieces if most > kept]
    return requests[:first] + scratch + [each for each in requests[first:] if each[1] >= 0]


def _one_by_one(events: list[LogLine], outputs: Mapping[int, int]) -> list[tuple[int, int]]:
    """Each request as it came, and scratch as it was given back. An output is what was granted at
    its address last."""
    last = {event.address: i for i, event in enumerate(events) if isinstance(event, Granted)}
    scratch: list[int] = []
    found: list[tuple[int, int]] = []
    for i, event in enumerate(events):
        if isinstance(event, Granted):
            is_last = last[event.address] == i
            slot = outputs.get(event.address, -1) if is_last else -1
            scratch += [event.size_bytes] * (slot < 0)
            found.append((event.size_bytes, slot))
        elif isinstance(event, Returned) and event.size_bytes in scratch:
            scratch.remove(event.size_bytes)
            found.append((-event.size_bytes, -1))
    while found and found[-1][0] < 0:
        found.pop()
    return found


def _outputs_come_late(requests: Sequence[tuple[int, int]]) -> bool:
    """Whether one is asked for after scratch has been given back, by a kernel that asks little."""
    back = next((i for i, (size, _) in enumerate(requests) if size < 0), len(requests))
    return len(requests) <= _FEW and any(slot >= 0 for _, slot in requests[back:])


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
