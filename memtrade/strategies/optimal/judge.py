"""What the exact simulator says of a choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memtrade.graph import StepGraph
from memtrade.kernel_pairs import side_by_side
from memtrade.plan import Action, Decision
from memtrade.schedule import lower
from memtrade.simulate.defragment import defragment
from memtrade.simulate.memory import ROOMY_BYTES, Simulator
from memtrade.simulate.timeline import TimeSimulator, pace, prefetch
from memtrade.target import Target


@dataclass(frozen=True)
class Verdict:
    """A choice that was carried out in simulation.

    Attributes:
        peak_bytes: before the program is finished, without the allocator's padding.
        peak_op: at the peak, where it is known.
        host_bytes: most bytes in host memory.
        seconds: of the whole step.
    """

    decisions: Mapping[int, Decision]
    actions: tuple[Action, ...]
    peak_bytes: int
    peak_op: str
    host_bytes: int
    seconds: float

    def of(self, tensor: int) -> Decision:
        return self.decisions.get(tensor, "keep")


class Judge:
    """Judges choices for one graph on one target."""

    def __init__(self, graph: StepGraph, target: Target):
        self.graph, self.target = graph, target
        self.times = TimeSimulator(graph, target)
        self.simulator: Simulator = self.times.simulator

    def judge(self, decisions: Mapping[int, Decision]) -> Verdict:
        """The peak is what is live: reservations bring the allocator's close to it."""
        actions = side_by_side(self.graph, lower(self.graph, decisions))
        if not self.target.copies_in_line:
            return self._on_device(decisions, self._paced(actions), padded=False)
        swapped = {action.id for action in actions if action.kind == "swap_out"}
        return Verdict(
            decisions,
            actions,
            self.simulator.peak_live_bytes(actions),
            "",
            sum(self.graph.tensors[t].size_bytes for t in swapped),
            self.times.step_seconds(actions),
        )

    def _paced(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        return pace(self.graph, prefetch(self.graph, actions, self.target), self.target)

    def _on_device(
        self, decisions: Mapping[int, Decision], actions: tuple[Action, ...], *, padded: bool
    ) -> Verdict:
        timeline = self.times.timeline(actions)
        memory = timeline.memory
        assert memory is not None
        return Verdict(
            decisions,
            actions,
            memory.peak_bytes if padded else memory.live_peak_bytes,
            memory.peak_op,
            memory.host_peak_bytes,
            timeline.step_seconds,
        )

    def finish(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        """With reservations against the allocator's padding."""
        return defragment(self.times, actions)

    def finished(self, decisions: Mapping[int, Decision], actions: tuple[Action, ...]) -> Verdict:
        """Of a finished program, with the allocator's own peak."""
        if not self.target.copies_in_line:
            return self._on_device(decisions, actions, padded=True)
        memory = self.simulator.memory(actions, limit_bytes=ROOMY_BYTES)
        return Verdict(
            decisions,
            actions,
            memory.peak_bytes,
            memory.peak_op,
            memory.host_peak_bytes,
            self.times.step_seconds(actions),
        )
