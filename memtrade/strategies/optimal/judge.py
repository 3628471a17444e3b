"""What the exact simulator says of a choice."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from memtrade.graph import StepGraph
from memtrade.kernel_pairs import as_kernels
from memtrade.plan import Action, Decision
from memtrade.schedule import lower
from memtrade.simulate.defragment import NEAR_LIMIT, defragment
from memtrade.simulate.memory import ROOMY_BYTES, MemoryResult
from memtrade.simulate.overlap import overlap
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.deadline import Deadline
from memtrade.strategies.spill import leaving, spilled
from memtrade.target import Target


@dataclass(frozen=True)
class Verdict:
    """A choice as a program, before it is finished.

    Attributes:
        actions: as `lower` makes them.
        peak_bytes: most bytes asked for, every copy waited for: no plan of the choice needs less.
        host_bytes: of what is swapped.
        least_seconds: of a step in which nothing stalls.
        most_seconds: of one in which every copy is waited for.
    """

    decisions: Mapping[int, Decision]
    actions: tuple[Action, ...]
    peak_bytes: int
    host_bytes: int
    least_seconds: float
    most_seconds: float

    def of(self, tensor: int) -> Decision:
        return self.decisions.get(tensor, "keep")


@dataclass(frozen=True)
class Finished:
    """A choice as the program that a plan carries out.

    Attributes:
        peak_bytes: the allocator's own; above the target's limit where the program does not run in
            that. roomy_bytes: where there is room for every program.
        memory: of that step; copies that nobody has waited for hold theirs.
    """

    verdict: Verdict
    actions: tuple[Action, ...]
    peak_bytes: int
    roomy_bytes: int
    memory: MemoryResult
    seconds: float


class Judge:
    """Judges choices for one graph on one target.

    Raises CancelledError from each of its methods when the deadline has passed.
    """

    def __init__(self, graph: StepGraph, target: Target, deadline: Deadline):
        self.graph, self.target, self.deadline = graph, target, deadline
        self.times = TimeSimulator(graph, target)
        self.simulator = self.times.simulator
        self._judged: dict[tuple[tuple[int, Decision], ...], Verdict] = {}
        self._finished: dict[tuple[tuple[Action, ...], float, int], Finished] = {}
        self._overlapped: tuple[Verdict, float, tuple[Action, ...]] | None = None

    @property
    def finish_count(self) -> int:
        return len(self._finished)

    def judge(self, decisions: Mapping[int, Decision]) -> Verdict:
        """Searches come to the same choice by several ways, so each is judged once."""
        key = tuple(decisions.items())
        if key not in self._judged:
            self._judged[key] = self.judge_program(lower(self.graph, decisions), decisions)
        return self._judged[key]

    def judge_program(
        self, program: tuple[Action, ...], decisions: Mapping[int, Decision]
    ) -> Verdict:
        """Of a program that may do more than carry out `decisions`, which are told for it."""
        self.deadline.check()
        pooled = self.simulator.linker.hidden_of
        actions = as_kernels(self.graph, program, pooled)
        swapped = {action.id for action in actions if action.kind == "swap_out"}
        again: dict[int, Decision] = {
            t: "recompute" for t in pooled if decisions.get(t) == "swap" and t not in swapped
        }
        return Verdict(
            {**decisions, **again},
            actions,
            self.simulator.peak_live_bytes(actions),
            self.graph.bytes_of(swapped),
            self.times.busy_seconds(actions, in_line=self.target.copies_in_line),
            self.times.busy_seconds(actions, in_line=True),
        )

    def spill(self, verdict: Verdict, limit_bytes: int, host_limit_bytes: float) -> Verdict:
        """With what rests where that many bytes are exceeded on the host meanwhile (spill.py)."""
        host = host_limit_bytes - verdict.host_bytes
        program = spilled(self.times, verdict.actions, limit_bytes, host)
        if program == verdict.actions:
            return verdict
        swapped: dict[int, Decision] = dict.fromkeys(leaving(self.graph, program), "swap")
        return self.judge_program(program, {**verdict.decisions, **swapped})

    def seconds(self, verdict: Verdict, copies_bytes: float) -> float:
        """Of the step, if copies may hold memory up to that many bytes in use."""
        self.deadline.check()
        if self.target.copies_in_line:
            return verdict.least_seconds
        return self.times.step_seconds(self._overlap(verdict, copies_bytes))

    def finish(
        self,
        verdict: Verdict,
        copies_bytes: float,
        enough_bytes: int = 0,
        most_bytes: int = sys.maxsize,
    ) -> Finished:
        """The program that a plan carries out: with copies beside compute where there are any, and
        with reservations against the allocator's padding.

        Args:
            copies_bytes: in use, up to which copies may hold memory.
            enough_bytes, most_bytes: see `defragment`.
        """
        self.deadline.check()
        key = (verdict.actions, copies_bytes, enough_bytes)
        if key not in self._finished:
            actions = defragment(
                self.times,
                self._overlap(verdict, copies_bytes),
                enough_bytes=enough_bytes,
                most_bytes=most_bytes,
            )
            self._finished[key] = self._measure(verdict, actions)
        return self._finished[key]

    def _overlap(self, verdict: Verdict, copies_bytes: float) -> tuple[Action, ...]:
        """With copies beside compute. What looks faster is finished next, so the last one stays."""
        last = self._overlapped
        if last is None or last[0] is not verdict or last[1] != copies_bytes:
            actions = overlap(self.times, verdict.actions, copies_bytes)
            last = self._overlapped = verdict, copies_bytes, actions
        return last[2]

    def _measure(self, verdict: Verdict, actions: tuple[Action, ...]) -> Finished:
        timeline = self.times.timeline(actions, limit_bytes=ROOMY_BYTES)
        memory = timeline.memory
        peak_bytes = roomy_bytes = memory.peak_bytes
        limit_bytes = self.target.limit_bytes
        if peak_bytes > NEAR_LIMIT * limit_bytes and verdict.peak_bytes <= limit_bytes:
            # In the limit, other pieces are the smallest that fit: its reservations may be for
            # that, or what fits where there is room may find none.
            within = self.times.timeline(actions).memory
            refused = within.out_of_memory
            if refused is None:
                memory, peak_bytes = within, within.peak_bytes
            else:  # by what the largest hole lacks
                lacks_bytes = max(1, refused.requested_bytes - refused.largest_free_bytes)
                peak_bytes = max(peak_bytes, limit_bytes + lacks_bytes)
        seconds = timeline.step_seconds
        return Finished(verdict, actions, peak_bytes, roomy_bytes, memory, seconds)
