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
  has ended. So where copies are slower than compute, swapping saves less than the plan says;
- where the memory is full, a request waits for copies to end, and the host with it.

In the arena a copy is an op like any other (`Device.blocking_transfers`).

Assumed: one op at a time; copies reach their full rate, whatever the other direction does. An op
takes what its kernel was seen to take (`memtrade.facts`), else the roofline's (`devices.py`).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from memtrade.costs import OpClass, op_cost
from memtrade.devices import Device
from memtrade.graph import StepGraph
from memtrade.order import widest_order
from memtrade.plan import Action, Plan
from memtrade.simulate.memory import ROOMY_BYTES, MemoryResult, Simulator
from memtrade.simulate.moments import Lag
from memtrade.target import Target

COMPUTE, COPY_OUT, COPY_IN = "compute", "copy-out", "copy-in"
_CHANNEL = {"swap_out": COPY_OUT, "swap_in": COPY_IN}  # all other actions compute

# How often clock and memory are brought into line; what is left then is a few copies' delay.
MOST_PASSES = 10


class Timeline(msgspec.Struct, frozen=True):
    """What happens when in one step.

    Attributes:
        step_seconds: from the start to the end of the last channel, and what the device profile
            adds to a step (`step_overhead_seconds`, `trace_seconds`).
        stall_seconds: how long compute waits for copies in.
        busy_seconds: channel -> how long it works.
        start_seconds, end_seconds: for each action, on its channel.
        begun_seconds: when the host starts each action, and so when its outputs are allocated.
        channels: for each action.
        memory: its peak and more, with the copies' lags.
        full_seconds: how long the host waits for memory that copies out still hold.
    """

    step_seconds: float
    stall_seconds: float
    busy_seconds: dict[str, float]
    start_seconds: list[float]
    end_seconds: list[float]
    begun_seconds: list[float]
    channels: list[str]
    memory: MemoryResult
    full_seconds: float = 0.0

    @property
    def peak_bytes(self) -> int:
        return self.memory.peak_bytes


class Clocked(NamedTuple):
    """Start and end on the channel and start on the host, of each action; sums of the waits."""

    starts: list[float]
    ends: list[float]
    begun: list[float]
    stall: float = 0.0
    full: float = 0.0
    passes: int = 1


class TimeSimulator:
    """Predicts step times of plans for one graph on one target."""

    def __init__(self, graph: StepGraph, target: Target):
        self.graph, self.target = graph, target
        self.simulator = Simulator(graph, target)
        self._costs = [op_cost(op, graph) for op in graph.ops]
        self.set_device(target.device)

    def set_device(self, device: Device) -> None:
        """Other rates from here on; what kernels ask for stays the target's."""
        self.device = device
        self._clocked: tuple[Sequence[Action], Clocked] | None = None
        self._needed: tuple[Sequence[Action], MemoryResult] | None = None
        known = self.simulator.linker.known
        self.op_seconds = [
            device.seconds(cost, fact.seconds)
            for cost, fact in zip(self._costs, known, strict=True)
        ]
        self.dispatch_seconds = [
            0.0 if cost.op_class is OpClass.FREE else device.dispatch_seconds
            for cost in self._costs
        ]
        sizes = [t.size_bytes for t in self.graph.tensors]
        self.out_seconds = [size / device.device_to_host_bytes_per_s for size in sizes]
        self.in_seconds = [size / device.host_to_device_bytes_per_s for size in sizes]
        self._running = {"run": self.op_seconds, "recompute": self.op_seconds}
        self._copying = {"swap_out": self.out_seconds, "swap_in": self.in_seconds}

    def timeline(
        self,
        plan: Plan | Sequence[Action],
        *,
        limit_bytes: int | None = None,
        series: bool = False,
    ) -> Timeline:
        """Simulates one step.

        Args:
            limit_bytes: of memory, the target's unless given.
            series: also the bytes in use along the actions.
        """
        actions = self.simulator.actions(plan)
        clock = self.clocked(actions)
        if self.target.copies_in_line:
            result = self.simulator.memory(actions, limit_bytes=limit_bytes, series=series)
        else:
            clock, result = self._with_memory(actions, clock, limit_bytes, series)
        channels = [_CHANNEL.get(action.kind, COMPUTE) for action in actions]
        busy: dict[str, float] = dict.fromkeys((COMPUTE, COPY_OUT, COPY_IN), 0.0)
        for channel, start, end in zip(channels, clock.starts, clock.ends, strict=True):
            busy[channel] += end - start
        return Timeline(
            step_seconds=max(clock.ends, default=0.0) + self._beyond(actions),
            stall_seconds=clock.stall,
            busy_seconds=busy,
            start_seconds=clock.starts,
            end_seconds=clock.ends,
            begun_seconds=clock.begun,
            channels=channels,
            memory=result,
            full_seconds=clock.full,
        )

    def _with_memory(
        self, actions: Sequence[Action], clock: Clocked, limit_bytes: int | None, series: bool
    ) -> tuple[Clocked, MemoryResult]:
        """Clock and memory that agree on when the host waits for memory.

        Each pass delays the actions that waited in the one before, until no more do. A delay puts
        off later copies too, so there may be several passes; few plans need more than one.
        """
        held: dict[int, float] = {}  # action -> when copies have ended that held its memory
        while True:
            result = self.simulator.memory(
                actions,
                limit_bytes=limit_bytes,
                series=series,
                lag=Lag(clock.begun, clock.ends),
            )
            late = {i: until for i, until in result.waits if until > held.get(i, 0.0)}
            if not late or result.out_of_memory is not None or clock.passes == MOST_PASSES:
                return clock, result
            held.update(late)
            clock = self._beside(actions, held)._replace(passes=clock.passes + 1)

    def _beyond(self, actions: Sequence[Action]) -> float:
        """What the profile adds to a step besides its channels."""
        device = self.device
        if not device.trace_seconds:
            return device.step_overhead_seconds
        traced = sum(
            action.kind in _CHANNEL
            or (action.kind in ("run", "recompute") and self.op_seconds[action.id] > 0)
            for action in actions
        )
        return device.step_overhead_seconds + traced * device.trace_seconds

    def needed(self, plan: Plan | Sequence[Action]) -> MemoryResult:
        """What a step takes, whatever the limit. The last answer is kept, and the step's as it
        is."""
        actions = plan.actions if isinstance(plan, Plan) else plan
        if not actions:
            return self._as_it_is
        if self._needed is None or self._needed[0] is not actions:
            found = self.timeline(actions, limit_bytes=ROOMY_BYTES).memory
            if not isinstance(actions, tuple):  # whoever made it may change it
                return found
            self._needed = actions, found
        return self._needed[1]

    @cached_property
    def _as_it_is(self) -> MemoryResult:
        return self.timeline((), limit_bytes=ROOMY_BYTES).memory

    @property
    def original_bytes(self) -> int:
        """The peak of the step as it is."""
        return self.needed(()).peak_bytes

    @cached_property
    def _otherwise(self) -> list[MemoryResult]:
        """What it takes in other orders that TensorFlow may have."""
        return [self.needed(each) for each in self.simulator.otherwise]

    @property
    def least_bytes(self) -> int:
        """The same in the order, and the step, that takes least."""
        return min(each.least_peak_bytes for each in (self._as_it_is, *self._otherwise))

    @property
    def most_bytes(self) -> int:
        """The same in the order that takes most."""
        return max(each.peak_bytes for each in (self._as_it_is, *self._otherwise))

    @cached_property
    def abreast_bytes(self) -> int:
        """The same where threads run its branches abreast, if that is more."""
        widest = tuple(Action("run", op_id) for op_id in widest_order(self.graph))
        return max(self.most_bytes, self.needed(widest).peak_bytes)

    def step_seconds(self, plan: Plan | Sequence[Action]) -> float:
        """Only the step's time, if no memory is waited for: fast, for comparing plans."""
        actions = self.simulator.actions(plan)
        return max(self.clocked(actions).ends, default=0.0) + self._beyond(actions)

    def busy_seconds(self, actions: Sequence[Action], *, in_line: bool) -> float:
        """The step's time if nothing stalls. `in_line`: with copies in line with compute."""
        seconds = self._running | self._copying if in_line else self._running
        busy = sum([seconds[each.kind][each.id] for each in actions if each.kind in seconds])
        return busy + self._beyond(actions)

    def clocked(self, actions: Sequence[Action]) -> Clocked:
        """When everything happens, if no memory is waited for. The last answer is kept."""
        if self._clocked is not None and self._clocked[0] is actions:
            return self._clocked[1]
        clock = self._in_line(actions) if self.target.copies_in_line else self._beside(actions, {})
        if isinstance(actions, tuple):  # which nobody changes
            self._clocked = actions, clock
        return clock

    def _in_line(self, actions: Sequence[Action]) -> Clocked:
        """One after the other."""
        seconds = self._running | self._copying
        starts, ends, now = [], [], 0.0
        for action in actions:
            starts.append(now)
            if action.kind in seconds:
                now += seconds[action.kind][action.id]
            ends.append(now)
        return Clocked(starts, ends, starts)

    def _beside(self, actions: Sequence[Action], held: Mapping[int, float]) -> Clocked:
        """Copies beside compute. `held`: action -> when the memory is there that it waits for."""
        ops = self.graph.ops
        starts: list[float] = []
        ends: list[float] = []
        begun: list[float] = []
        host = compute = copy_out = copy_in = stall = full = 0.0
        gone: dict[int, float] = {}  # tensor -> when its copy out has ended
        back: dict[int, float] = {}  # tensor -> when its copy in has ended
        for index, action in enumerate(actions):
            kind, id_ = action.kind, action.id
            if held and held.get(index, 0.0) > host:
                full += held[index] - host
                host = held[index]
            if kind == "swap_out":
                start = max(copy_out, compute, host)
                end = copy_out = gone[id_] = start + self.out_seconds[id_]
            elif kind == "swap_in":
                start = max(copy_in, compute, host, gone.get(id_, 0.0))
                end = copy_in = back[id_] = start + self.in_seconds[id_]
            elif kind == "reserve":
                start = end = max(host, compute)
            elif kind == "wait":
                host = start = end = max(host, gone[id_])
            else:
                host += self.dispatch_seconds[id_]
                if back:
                    ready = max([back.get(t, 0.0) for t in ops[id_].inputs], default=0.0)
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
        return Clocked(starts, ends, begun, stall, full)
