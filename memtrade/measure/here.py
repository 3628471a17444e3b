"""The target of a device that is here: what commands, trials and the library run on."""

from __future__ import annotations

import re
from pathlib import Path

from memtrade.measure import host
from memtrade.plan import Order
from memtrade.simulate.devices import device_names
from memtrade.target import ARENA, Target, profile_target

# What stands for a card like none that has a profile: the slowest copies, so that none is taken
# for hidden that is not.
GENERIC = "gtx-1070"

# Of what the machine has free, the share that swapped tensors may take.
HOST_SHARE = 0.8


def here_target(
    device_name: str,
    *,
    profile: str | Path | None = None,
    order: Order = "pinned",
    limit_bytes: int | None = None,
) -> Target:
    """The target of "arena" or "gpu:N", with the host memory that is free now.

    Args:
        profile: in place of the device's own.
        limit_bytes: None is the memory that the profile says.
    """
    chosen = profile or profile_of(device_name)
    target = profile_target(chosen, order=order, limit_bytes=limit_bytes)
    free_bytes = host.free_memory_bytes()
    if device_name == ARENA:  # its memory is the machine's own
        free_bytes -= target.limit_bytes
    return target.replace(host_bytes=max(0, int(free_bytes * HOST_SHARE)))


def profile_of(device_name: str) -> str:
    """The profile of the arena; of a GPU, the one whose name is nearest to the card's."""
    if device_name == ARENA:
        return ARENA
    card = next((gpu.name for gpu in host.gpus() if f"gpu:{gpu.index}" == device_name), "")
    words = set(re.findall(r"\w+", card.lower()))

    def likeness(name: str) -> float:
        own = set(name.split("-"))
        return len(own & words) / len(own)

    nearest = max(device_names(), key=likeness)
    return nearest if likeness(nearest) >= 0.5 else GENERIC
