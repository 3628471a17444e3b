"""What a walk is given, and what it gives: an allocator, when things happen, the highest moment."""

from typing import NamedTuple, Protocol


class Allocator(Protocol):
    """What the walk needs of an allocator."""

    bytes_in_use: int

    def allocate(self, num_bytes: int, /) -> int: ...

    def free(self, handle: int, /) -> object: ...


class Peak(NamedTuple):
    """Most bytes in use, and during which action."""

    in_use: int
    action: int


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
