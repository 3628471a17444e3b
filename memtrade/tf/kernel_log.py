"""What kernels asked the allocator for, read off TensorFlow's log.

With `TF_CPP_VMODULE=log_memory=2,bfc_allocator=3` each request is a line, and each output that a
kernel hands on is one, with its address:

    AllocateRaw cpu  16384 0x7f..40           a request, and where it was granted
    DeallocateRaw cpu 12336                   given back
    MemoryLogTensorOutput { kernel_name: "k3/run" index: 1 ... ptr: 1405... }
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
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

    Scratch counts as held until the kernel ends. Where one piece was given back before another
    was asked for, the sum of all would be more than the kernel ever held: then the scratch is one
    piece of what was held beyond the outputs at most. What is given back that the kernel never
    asked for was another's.
    """
    outputs = {e.address: e.slot for e in events if isinstance(e, Output) and e.kernel == kernel}
    outputs.pop(0, None)
    made: list[tuple[int, int]] = []
    own: Counter[int] = Counter()
    held = most = 0
    for event in events:
        if isinstance(event, Granted):
            slot = outputs.get(event.address, -1)
            made = [(size, -1 if slot >= 0 and other == slot else other) for size, other in made]
            made.append((event.size_bytes, slot))
            own[event.size_bytes] += 1
            held += event.size_bytes
            most = max(most, held)
        elif isinstance(event, Returned) and own[event.size_bytes]:
            own[event.size_bytes] -= 1
            held -= event.size_bytes
    if sum(size for size, _ in made) == most:
        return made
    kept = [(size, slot) for size, slot in made if slot >= 0]
    scratch = most - sum(size for size, _ in kept)
    return [(scratch, -1), *kept] if scratch > 0 else kept
