"""Copies beside compute, within a limit of memory: where copies in start, and what waits for them.

A program out of `schedule.lower` swaps in just before the reader, and nobody waits for a copy out.
Beside compute both can be had better:

    run 7   swap_in 3   run 8           swap_in 3   run 7   wait 9   run 8

- A copy in starts so early that it has ended when it is needed, unless the memory that it takes is
  in use until later.
- A device's host takes memory long before the op runs that needs it, also where it is that of a
  tensor on its way out. So it waits for each copy out where compute has caught up with the copy's
  end, which costs no time and keeps the peak to the device's own pace;
- and for a copy that has not ended where that takes more memory than the limit.

So the most that is in use at once is the limit, or what the program needs anyhow; with a limit of
nothing, every copy is waited for. In the arena, where copies block, programs stay as they are.
"""

import math
from collections import deque
from collections.abc import Sequence

from memtrade.plan import Action
from memtrade.simulate.timeline import TimeSimulator


def overlap(
    clock: TimeSimulator, actions: Sequence[Action], limit_bytes: float
) -> tuple[Action, ...]:
    """The same program with copies in as early, and copies out as late, as the limit allows.

    Two walks, and O(actions) for each copy in at the most.
    """
    if clock.target.copies_in_line or not any(a.kind == "swap_out" for a in actions):
        return tuple(actions)
    ahead = _bring_ahead(clock, actions, limit_bytes)
    return tuple(_await_copies(clock, _pace(clock, ahead), limit_bytes))


def _bring_ahead(
    clock: TimeSimulator, actions: Sequence[Action], limit_bytes: float
) -> Sequence[Action]:
    """From the last copy in to the first: each must end before the next one starts. It stays behind
    its copy out, and behind readers of the version before."""
    ops, seconds = clock.graph.ops, clock.op_seconds
    live = clock.simulator.live_bytes(actions)
    if min(live) >= limit_bytes:
        return actions
    room = [limit_bytes - live_bytes for live_bytes in live]
    reached: list[float] = []  # when each action is, if nothing stalls
    earliest: dict[int, int] = {}  # index of a swap_in -> the place it may not pass
    last_use: dict[int, int] = {}  # swapped tensor -> index after its last action
    now = 0.0
    for index, action in enumerate(actions):
        kind, id_ = action.kind, action.id
        reached.append(now)
        if kind == "swap_out":
            last_use[id_] = index + 1
        elif kind == "swap_in":
            earliest[index] = last_use[id_]
        else:
            now += seconds[id_]
            for t in ops[id_].inputs if last_use else ():
                if t in last_use:
                    last_use[t] = index + 1
    ahead: dict[int, list[Action]] = {}
    free = math.inf  # when the copy behind this one starts
    for index in sorted(earliest, reverse=True):
        t = actions[index].id
        size_bytes = clock.graph.tensors[t].size_bytes
        free = min(free, reached[index]) - clock.in_seconds[t]
        place = index
        while place > earliest[index] and reached[place] > free and room[place - 1] >= size_bytes:
            place -= 1
            room[place] -= size_bytes
        ahead.setdefault(place, []).append(actions[index])
    made: list[Action] = []
    for index, action in enumerate(actions):
        made.extend(reversed(ahead.get(index, ())))
        if index not in earliest:
            made.append(action)
    return made


def _pace(clock: TimeSimulator, actions: Sequence[Action]) -> Sequence[Action]:
    """With a wait for each copy out before the first op that the device starts after its end."""
    clocked = clock.clocked(actions)
    leaving = deque(
        sorted(
            (clocked.ends[i], action.id)
            for i, action in enumerate(actions)
            if action.kind == "swap_out"
        )
    )
    paced: list[Action] = []
    for action, start in zip(actions, clocked.starts, strict=True):
        while leaving and action.kind in ("run", "recompute") and leaving[0][0] <= start:
            paced.append(Action("wait", leaving.popleft()[1]))
        paced.append(action)
    return paced


def _await_copies(
    clock: TimeSimulator, actions: Sequence[Action], limit_bytes: float
) -> Sequence[Action]:
    """With a wait, too, wherever copies out that nobody waited for would hold too much."""
    live = clock.simulator.live_bytes(actions)
    leaving: dict[int, int] = {}  # tensor -> bytes, in the order of their copies
    leaving_bytes = 0
    made: list[Action] = []
    for action, live_bytes in zip(actions, live, strict=True):
        while leaving and live_bytes + leaving_bytes > limit_bytes:
            made.append(Action("wait", next(iter(leaving))))
            leaving_bytes -= leaving.pop(made[-1].id)
        if action.kind == "wait":
            if action.id in leaving:
                leaving_bytes -= leaving.pop(action.id)
                made.append(action)
            continue
        made.append(action)
        if action.kind == "swap_out":
            leaving[action.id] = clock.graph.tensors[action.id].size_bytes
            leaving_bytes += leaving[action.id]
    return made
