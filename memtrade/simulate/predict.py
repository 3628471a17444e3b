"""What a step will cost, before it runs, in the figures that a trial measures."""

import msgspec

from memtrade.graph import StepGraph
from memtrade.plan import Plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import Target
from memtrade.units import megabytes_between


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulator says of a step. Never mixed with what is measured.

    Attributes:
        device_profile: whose times they are; None in records of GPUs whose rates were not known.
        peak_bytes: most bytes in use on the device; of a step that does not fit, what it takes.
        persistent_bytes: in use between steps. memory_cost_bytes: peak_bytes less that.
        host_bytes: most bytes of swapped tensors in host memory.
        fits: whether the step runs under the memory limit.
        abreast_bytes: as peak_bytes, where threads run the branches of a step without a plan
            abreast, or TensorFlow in another order that it may have, if that is more; else 0.
        least_bytes: as peak_bytes, in another order that it may have, or in another step where
            variables move, if that is less; else 0.
        bound: what stands before the peak: "≥", "≈", "≤" or nothing; see `bound_of`.
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
    bound: str = ""
    abreast_bytes: int = 0
    least_bytes: int = 0

    @property
    def range_bytes(self) -> tuple[int, int]:
        """The least and the most that the peak may be, as far as is foreseen."""
        return self.least_bytes or self.peak_bytes, max(self.peak_bytes, self.abreast_bytes)

    @property
    def peak_text(self) -> str:
        return f"{self.bound} {megabytes_between(*self.range_bytes)}".lstrip()


class Predictor:
    """Predicts plans for one graph on one target."""

    def __init__(self, graph: StepGraph, target: Target):
        self.target = target
        self.clock = TimeSimulator(graph, target)

    def predict(self, plan: Plan, *, limit_bytes: int | None = None) -> Predicted:
        """The step under a limit of the device's memory, the target's unless given."""
        timeline = self.clock.timeline(plan, limit_bytes=limit_bytes)
        fits = timeline.memory.out_of_memory is None
        memory = timeline.memory if fits else self.clock.needed(plan)
        graph = self.clock.graph
        least_bytes = most_bytes = memory.peak_bytes
        if not plan.actions and not graph.data.unsized:
            least_bytes, most_bytes = self.clock.least_bytes, self.clock.abreast_bytes
        return Predicted(
            device_profile=self.target.name,
            peak_bytes=memory.peak_bytes,
            persistent_bytes=memory.persistent_bytes,
            memory_cost_bytes=memory.peak_bytes - memory.persistent_bytes,
            host_bytes=memory.host_peak_bytes,
            fits=fits,
            abreast_bytes=most_bytes if most_bytes > memory.peak_bytes else 0,
            least_bytes=least_bytes if least_bytes < memory.peak_bytes else 0,
            step_seconds=timeline.step_seconds,
            stall_seconds=timeline.stall_seconds,
            bound=memory.bound(graph, plan),
        )
