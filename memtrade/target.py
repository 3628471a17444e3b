"""What a plan is made for: one value, made once by whoever knows, and handed through.

    command or library ──► Target ──► strategy ──► reservations, judge ──► rewriter
                              └─────► simulator: allocator, kernels, clock

No function in between has a default of its own: a plan for a GPU is judged by the GPU's allocator,
kernels and rates, and so is everything that is said of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from memtrade.costs import op_cost
from memtrade.devices import Device, load_device
from memtrade.facts import CPU, OUTPUTS, Facts, shipped
from memtrade.graph import StepGraph
from memtrade.plan import Order

# The name of the device on a machine without a GPU: TensorFlow's CPU allocator with a hard limit.
ARENA = "arena"
_UNTOLD_BYTES = 4096

# In the place of an offset that nothing tells.
SOMEWHERE = -2


class Places(NamedTuple):
    """What lies in the arena before the first step: a step's own layers may have left holes among
    the variables, which nothing but the allocator knows.

    Attributes:
        free: (offset, bytes) of each free piece; the last one ends with the arena. Offsets count
            through its regions, the older one first.
        captures, inputs: where the variables that the step captures lie, and its batch, in the
            order of the graph; -1 for what has no place yet, or no bytes; SOMEWHERE for variables
            that are there, and that reads copy, so that nothing tells where, and for what is in
            no region.
        built: the rewritten step is there, too, with the constants that its graph keeps.
        untold_bytes: neither free nor told of; as they may not be there, no peak counts them.
    """

    free: tuple[tuple[int, int], ...]
    captures: tuple[int, ...]
    inputs: tuple[int, ...]
    built: bool = False
    untold_bytes: int = 0

    def narrowed(self) -> Places:
        """As if small tensors that nothing tells of lay in each hole: scratch and constants that
        kernels of TensorFlow's keep. What hangs on the whole hole does not hold then."""
        *holes, tail = self.free
        untold = [min(size, _UNTOLD_BYTES) for _, size in holes]
        left = ((at + less, size - less) for (at, size), less in zip(holes, untold, strict=True))
        free = (*(hole for hole in left if hole[1] > 0), tail)
        return self._replace(free=free, untold_bytes=sum(untold))


@dataclass(frozen=True, kw_only=True)
class Target:
    """A device as plans see it.

    Attributes:
        device: its rates, and whether copies to the host are in line with compute (the arena) or
            beside it (a GPU).
        facts: what its kernels ask the allocator for and, where they were asked, take.
        order: whether the rewritten step runs in the plan's order, or in TensorFlow's.
        limit_bytes: the most that the allocator gives.
        here: the device of this machine that it stands for, "arena" or "gpu:N"; "" for a profile.
        margin_bytes: set aside for what a step was seen to take and nothing explains.
        places: what lies there already; None where variables and batch lie one after the other.
    """

    device: Device
    facts: Facts
    order: Order = "pinned"
    limit_bytes: int
    here: str = ""
    margin_bytes: int = 0
    places: Places | None = None

    @property
    def copies_in_line(self) -> bool:
        """Whether a swap holds compute up, as in the arena."""
        return self.device.blocking_transfers

    @property
    def name(self) -> str:
        return self.device.name

    def op_seconds(self, graph: StepGraph) -> list[float]:
        """What each op takes: as its kernel was seen to, else by the device's roofline."""
        return [
            self.device.seconds(op_cost(op, graph), self.facts.of(op, graph).seconds)
            for op in graph.ops
        ]

    def replace(self, **changes: object) -> Target:
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def among(self, places: Places | None) -> Target:
        """The same where so much lies in the arena already, if that is known."""
        return self.replace(places=places) if places else self


def profile_target(
    name_or_path: str | Path, *, order: Order = "pinned", limit_bytes: int | None = None
) -> Target:
    """A device out of `memtrade devices`, or from a TOML file of one's own, with shipped facts.

    Args:
        limit_bytes: None is the memory that the profile says.

    Raises:
        UnknownNameError: neither a file nor the name of a device.
        MemtradeError: the file is no profile.
    """
    device = load_device(name_or_path)
    return Target(
        device=device,
        facts=shipped(CPU if device.blocking_transfers else OUTPUTS),
        order=order,
        limit_bytes=limit_bytes or device.memory_bytes,
    )
