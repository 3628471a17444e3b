"""What the allocator is asked for along a step, request by request: the memory walk, told anew."""

from collections.abc import Sequence
from typing import NamedTuple

from memtrade.plan import Action
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import Lives, Usage, walk_twice


class MemoryEvent(NamedTuple):
    """A request that was granted, or its memory given back.

    Attributes:
        address, size_bytes: of the chunk; `size_bytes` is what was asked for.
        action: position in the history's actions; -1 for what was there before the step.
        op: that made it; -1 where it is nobody's of the step.
        label, group: as in `usage.Held`.
    """

    is_free: bool
    address: int
    size_bytes: int
    action: int
    seconds: float
    op: int
    label: str
    group: str


class History(NamedTuple):
    """One step's requests, in order; first what lies there before it.

    Attributes:
        regions: (address, bytes) of what the allocator has from the device.
    """

    actions: Sequence[Action]
    regions: tuple[tuple[int, int], ...]
    events: list[MemoryEvent]


def history(clock: TimeSimulator, usage: Usage) -> History:
    """That of a step whose use of memory is known (`use_of_memory`, under the target's limit)."""
    simulator = clock.simulator
    program = simulator.link(usage.actions)
    allocator = simulator.allocator(None if usage.fits else ROOMY_BYTES)
    walk = walk_twice(clock, program, usage.timeline, allocator)
    told = Lives(clock.graph, usage.actions, program, walk)
    seconds = {moment.action: moment.seconds for moment in usage.moments}

    def event(row: int, buffer: int, *, is_free: bool) -> MemoryEvent:
        held = told.held(told.lives[buffer])
        action = program.rows[row].action if row >= 0 else -1
        return MemoryEvent(
            is_free=is_free,
            address=walk.handles[buffer],
            action=action,
            seconds=seconds.get(action, 0.0),
            **held._asdict(),
        )

    before = [b for b, life in told.lives.items() if life.born < 0]
    events = [event(-1, b, is_free=False) for b in before]
    events += [event(row, abs(b), is_free=b < 0) for row, b in walk.log]
    return History(usage.actions, allocator.regions, events)
