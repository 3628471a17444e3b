"""What a step will cost, before it runs, in the figures that a trial measures."""

from __future__ import annotations

import msgspec

from memtrade.graph import StepGraph
from memtrade.plan import Plan
from memtrade.simulate.devices import Device
from memtrade.simulate.memory import MemoryResult, Simulator
from memtrade.simulate.timeline import TimeSimulator

# More than any step needs: what a step that does not fit would take.
ROOMY_BYTES = 1 << 42


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulator says of a step. Never mixed with what is measured.

    Attributes:
        device_profile: the profile that the times are for; None leaves them out.
        peak_bytes: most bytes in use on the device; of a step that does not fit, what it takes.
        persistent_bytes: in use between steps. memory_cost_bytes: peak_bytes less that.
        host_bytes: most bytes of swapped tensors in host memory.
        fits: whether the step runs under the memory limit.
        stall_seconds: the part of `step_seconds` for which compute waits for copies.
    """

    device_profile: str | None
    peak_bytes: int
    persistent_bytes: int
    memory_cost_bytes: int
    host_bytes: int
    fits: bool
    step_seconds: float | None = None
    stall_seconds: float | None = None


class Predictor:
    """Predicts plans for one graph.

    Args:
        profile: the device. None stands for a GPU of unknown rates: its memory only, with copies
            that take no time and kernels that take no scratch memory, which is a lower bound.
    """

    def __init__(self, graph: StepGraph, profile: Device | None):
        self.profile = profile
        self._timed = TimeSimulator(graph, profile) if profile else None
        self._untimed = Simulator(graph, onednn=False)

    def predict(self, plan: Plan, *, limit_bytes: int) -> Predicted:
        """The step under a limit of the device's memory."""
        memory, seconds, stall = self._simulate(plan, limit_bytes)
        fits = memory.out_of_memory is None
        if not fits:
            memory, _, _ = self._simulate(plan, ROOMY_BYTES)
        return Predicted(
            device_profile=self.profile.name if self.profile else None,
            peak_bytes=memory.peak_bytes,
            persistent_bytes=memory.persistent_bytes,
            memory_cost_bytes=memory.peak_bytes - memory.persistent_bytes,
            host_bytes=memory.host_peak_bytes,
            fits=fits,
            step_seconds=seconds,
            stall_seconds=stall,
        )

    def _simulate(
        self, plan: Plan, limit_bytes: int
    ) -> tuple[MemoryResult, float | None, float | None]:
        """The memory, the step's seconds and those of them that are stalls."""
        if self._timed is None:
            memory = self._untimed.memory(plan, limit_bytes=limit_bytes, arena="device")
            return memory, None, None
        timeline = self._timed.timeline(plan, limit_bytes=limit_bytes)
        assert timeline.memory is not None
        return timeline.memory, timeline.step_seconds, timeline.stall_seconds
