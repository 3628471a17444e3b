"""Step time of a plan, before it runs: three channels that overlap, and memory under late copies.

    compute    conv1 relu1 conv2 ...            grad3 ──stall── grad2 ...
    copy-out         [── relu1 ──][─ relu2 ─]
    copy-in                                     [── relu2 ──]

On a GPU the host walks the program and starts kernels, and runs ahead of the device while it may:

- an op starts when the host has started it and the op before it has ended;
- a copy out starts when its tensor is there and the copies before it have ended; nobody waits;
- a copy in starts when the actions before it have ended, the copies before it have ended, and the
  tensor has left; the host waits for its end before it starts a reader: a stall;
- memory is taken when the host starts an action, and a swapped tensor's is free only when its copy
  has ended. So where copies are slower than compute, swapping saves less than the plan says.

In the arena a copy is an op like any other (`Device.blocking_transfers`).

Assumed: one op at a time; copies reach their full rate, whatever the other direction does. Op times
are the roofline's (`devices.py`). What could be better: the time that a request waits for a copy
when the memory is full is counted (`waits`), not added to the step's.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memtrade.graph import StepGraph
from memtrade.plan import Action, Plan
from memtrade.simulate.costs import OpClass, op_cost
from memtrade.simulate.devices import Device
from memtrade.simulate.memory import MemoryResult, Simulator
from memtrade.simulate.walk import Lag

COMPUTE, COPY_OUT, COPY_IN = "compute", "copy-out", "copy-in"
_CHANNEL = {"swap_out": COPY_OUT, "swap_in": COPY_IN}  # all other actions compute


class Timeline(msgspec.Struct, frozen=True):
    """What happens when in one step.

    Attributes:
        step_seconds: from the start to the end of the last channel.
        stall_seconds: how long compute waits for copies in.
        busy_seconds: channel -> how long it works.
        start_seconds, end_seconds: for each action, on its channel.
        channels: for each action.
        memory: peak and who holds it, with the copies' lags; None if not asked for.
    """

    step_seconds: float
    stall_seconds: float
    busy_seconds: dict[str, float]
    start_seconds: list[float]
    end_seconds: list[float]
    channels: list[str]
    memory: MemoryResult | None

    @property
    def peak_bytes(self) -> int | None:
        return self.memory.peak_bytes if self.memory else None


def simulate_time(graph: StepGraph, plan: Plan | Sequence[Action], device: Device) -> Timeline:
    """One plan's step on one device. For many plans, keep a `TimeSimulator`."""
    return TimeSimulator(graph, device).timeline(plan)


class TimeSimulator:
    """Predicts step times of plans for one graph on one device."""

    def __init__(self, graph: StepGraph, device: Device):
        self.graph = graph
        self.simulator = Simulator(graph, onednn=device.blocking_transfers)
        self._costs = [op_cost(op, graph) for op in graph.ops]
        self.set_device(device)

    def set_device(self, device: Device) -> None:
        """Other rates from here on; the scratch memory stays that of the first device."""
        self.device = device
        self.op_seconds = [device.seconds(cost) for cost in self._costs]
        self.dispatch_seconds = [
            0.0 if cost.op_class is OpClass.FREE else device.dispatch_seconds
            for cost in self._costs
        ]
        sizes = [t.size_bytes for t in self.graph.tensors]
        self.out_seconds = [size / device.device_to_host_bytes_per_s for size in sizes]
        self.in_seconds = [size / device.host_to_device_bytes_per_s for size in sizes]

    def timeline(
        self, plan: Plan | Sequence[Action], *, memory: bool = True, limit_bytes: int | None = None
    ) -> Timeline:
        """Simulates one step.

        Args:
            memory: also the peak, in the device's memory or under `limit_bytes`.
        """
        actions = self.simulator.actions(plan)
        if self.device.blocking_transfers:
            starts, ends, stall = self._in_line(actions)
            begun = starts
        else:
            starts, ends, begun, stall = self._beside(actions)
        channels = [_CHANNEL.get(action.kind, COMPUTE) for action in actions]
        busy: dict[str, float] = dict.fromkeys((COMPUTE, COPY_OUT, COPY_IN), 0.0)
        for channel, start, end in zip(channels, starts, ends, strict=True):
            busy[channel] += end - start
        result = None
        if memory:
            result = self.simulator.memory(
                actions,
                limit_bytes=limit_bytes or self.device.memory_bytes,
                arena="one_region" if self.device.blocking_transfers else "device",
                lag=None if self.device.blocking_transfers else Lag(begun, ends),
            )
        return Timeline(
            step_seconds=max(ends, default=0.0),
            stall_seconds=stall,
            busy_seconds=busy,
            start_seconds=starts,
            end_seconds=ends,
            channels=channels,
            memory=result,
        )

    def step_seconds(self, plan: Plan | Sequence[Action]) -> float:
        """Only the step's time: fast, for comparing plans."""
        return self.timeline(plan, memory=False).step_seconds

    def _seconds(self, action: Action) -> float:
        """How long the action keeps its channel busy."""
        if action.kind == "swap_out":
            return self.out_seconds[action.id]
        if action.kind == "swap_in":
            return self.in_seconds[action.id]
        return self.op_seconds[action.id] if action.kind in ("run", "recompute") else 0.0

    def _in_line(self, actions: Sequence[Action]) -> tuple[list[float], list[float], float]:
        """Start and end of each action, one after the other."""
        starts, ends, now = [], [], 0.0
        for action in actions:
            starts.append(now)
            now += self._seconds(action)
            ends.append(now)
        return starts, ends, 0.0

    def _beside(
        self, actions: Sequence[Action]
    ) -> tuple[list[float], list[float], list[float], float]:
        """Start and end on the channel, start on the host, and the sum of the stalls."""
        ops = self.graph.ops
        starts: list[float] = []
        ends: list[float] = []
        begun: list[float] = []
        host = compute = copy_out = copy_in = stall = 0.0
        gone: dict[int, float] = {}  # tensor -> when its copy out has ended
        back: dict[int, float] = {}  # tensor -> when its copy in has ended
        for action in actions:
            kind, id_ = action.kind, action.id
            if kind == "swap_out":
                start = max(copy_out, compute, host)
                end = copy_out = gone[id_] = start + self.out_seconds[id_]
            elif kind == "swap_in":
                start = max(copy_in, compute, host, gone.get(id_, 0.0))
                end = copy_in = back[id_] = start + self.in_seconds[id_]
            elif kind == "reserve":
                start = end = max(host, compute)
            else:
                host += self.dispatch_seconds[id_]
                if back:
                    ready = max((back.get(t, 0.0) for t in ops[id_].inputs), default=0.0)
                    if ready > host:
                        stall += max(0.0, ready - max(host, compute))
                        host = ready
                start = max(host, compute)
                end = start + self.op_seconds[id_]
                if self.op_seconds[id_]:
                    compute = end
            starts.append(start)
            ends.append(end)
            begun.append(host)
        return starts, ends, begun, stall


def prefetch(
    graph: StepGraph, actions: Sequence[Action], device: Device, *, lookahead: float = 1.0
) -> tuple[Action, ...]:
    """The same program with each swap_in moved ahead, so that its copy ends when it is needed.

    From the last to the first: a copy must end before its place in the program is reached and
    before the next copy starts; it starts its own duration (times `lookahead`) earlier. It stays
    behind its swap_out and behind readers of the version before. Memory is not looked at: the
    earlier copies take theirs earlier, so check the peak afterwards.

    In the arena, where copies block, the program stays as it is. O(actions + swaps log actions).
    """
    if device.blocking_transfers:
        return tuple(actions)
    simulator = TimeSimulator(graph, device)
    clock = _compute_clock(simulator, actions)
    earliest: dict[int, int] = {}  # index of a swap_in -> the place it may not pass
    last_use: dict[int, int] = {}  # tensor -> index after its swap_out and its last reader
    for index, action in enumerate(actions):
        if action.kind == "swap_out":
            last_use[action.id] = index + 1
        elif action.kind == "swap_in":
            earliest[index] = last_use.get(action.id, index)
        elif action.kind != "reserve":
            for t in graph.ops[action.id].inputs:
                if t in last_use:
                    last_use[t] = index + 1
    places: list[tuple[int, int]] = []
    free = float("inf")
    for index in sorted(earliest, reverse=True):
        seconds = simulator.in_seconds[actions[index].id] * lookahead
        free = min(free, clock[index]) - seconds
        place = index
        while place > earliest[index] and clock[place] > free:
            place -= 1
        places.append((place, index))
    ahead: dict[int, list[int]] = {}
    for place, index in sorted(places):
        ahead.setdefault(place, []).append(index)
    moved: list[Action] = []
    for index, action in enumerate(actions):
        moved.extend(actions[i] for i in ahead.get(index, ()))
        if index not in earliest:
            moved.append(action)
    return tuple(moved)


def _compute_clock(simulator: TimeSimulator, actions: Sequence[Action]) -> list[float]:
    """When each action is reached if nothing stalls."""
    clock, now = [], 0.0
    for action in actions:
        clock.append(now)
        if action.kind in ("run", "recompute"):
            now += simulator.op_seconds[action.id]
    return clock
