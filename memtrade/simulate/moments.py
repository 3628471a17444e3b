"""What a walk is given, and what it gives: an allocator, when things happen, the highest moment."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec


class Allocator(Protocol):
    """What the walk needs of an allocator."""

    bytes_in_use: int

    def allocate(self, num_bytes: int, /) -> int: ...

    def free(self, handle: int, /) -> object: ...


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """Who holds memory at the peak, and the bytes it asked for.

    `label` is a tensor's name, "scratch of" an op, or "variables", "batch", "constants".
    """

    label: str
    size_bytes: int


class Peak(NamedTuple):
    """Most bytes in use, during which action, and how many buffers had been made by then."""

    in_use: int
    action: int
    buffers: int


class Lag(NamedTuple):
    """When things happen, where copies run beside compute: seconds, for each action.

    A tensor on its way out holds its memory until its copy has ended, and later actions, which
    the host starts before that, find it occupied.

    Attributes:
        begun: when the host starts the action, and so when its outputs are allocated.
        ended: when the device is done with it.
    """

    begun: list[float]
    ended: list[float]
