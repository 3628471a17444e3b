"""The parent's side of the talk with a child: takes in its events and its log as they come."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from memtrade.comparison import Verified
from memtrade.measure.children import Child, supervise
from memtrade.measure.protocol import (
    Calibrated,
    Corrected,
    Done,
    Event,
    Failed,
    Planned,
    PlanSummary,
    Progress,
    Ready,
    Runtime,
    Simulated,
    decode_event,
)
from memtrade.simulate.calibration import Rates
from memtrade.simulate.predict import Predicted

_GRACE_SECONDS = 5.0  # for a child that has said its last word to leave by itself


@dataclass
class Conversation:
    """What the child has said so far."""

    child: Child
    on_event: Callable[[Event], None]
    on_log: Callable[[str], None]
    on_wait: Callable[[], None] = lambda: None
    runtime: Runtime | None = None
    plan: PlanSummary | None = None
    predicted: Predicted | None = None
    corrections: list[Corrected] = field(default_factory=list)
    verified: Verified | None = None
    rates: Rates | None = None
    phase: Progress | None = None
    end: Done | Failed | None = None
    noise: str | None = None  # the first line on stdout that is no event

    def listen(self, deadline: float) -> bool:
        """Takes in what the child says until it ends, or has said its last word.

        Returns whether that was before the deadline.
        """
        in_time = supervise([self.child], self, deadline=deadline, on_wait=self.on_wait)
        if self.end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.process.wait(timeout=_GRACE_SECONDS)
        return in_time

    def take_event(self, child: Child, line: bytes) -> None:
        if self.end or self.noise:
            return
        try:
            event = decode_event(line)
        except msgspec.DecodeError:
            self.noise = line.decode(errors="replace")[:80]
            return
        match event:
            case Ready(runtime=runtime):
                self.runtime = runtime
            case Planned(summary=summary):
                self.plan = summary
            case Simulated(predicted=predicted):
                self.predicted = predicted
            case Corrected():
                self.corrections.append(event)
            case Calibrated(rates=rates):
                self.rates = rates
            case Verified():
                self.verified = event
            case Progress():
                self.phase = event
            case Done() | Failed():
                self.end = event
        self.on_event(event)

    def take_log(self, child: Child, text: str) -> None:
        self.on_log(text)

    def has_enough(self, *, quiet: bool) -> bool:
        return bool(self.end or self.noise or (quiet and self.child.has_ended))
