"""The parent's side of the talk with a child: takes in its events and its log as they come."""

from __future__ import annotations

import math
import os
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

import msgspec

from memtrade.comparison import Verified
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

_POLL_SECONDS = 0.5  # how long to wait for output before looking whether the child still lives
_GRACE_SECONDS = 5.0  # for a child that has said its last word to leave by itself
_LOG_LINES = 50  # of the child's stderr, kept for the reason of a crash


@dataclass
class Conversation:
    """What the child has said so far."""

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
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))

    def listen(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """Takes in what the child says until it ends, or has said its last word.

        Returns whether that was before the deadline.
        """
        assert process.stdout is not None
        assert process.stderr is not None
        with selectors.DefaultSelector() as selector:
            for stream, take in (
                (process.stdout, self._take_event),
                (process.stderr, self._take_log),
            ):
                selector.register(stream, selectors.EVENT_READ, _Lines(stream, take))
            while selector.get_map() and not (self.end or self.noise):
                self.on_wait()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                ready = selector.select(min(left, _POLL_SECONDS))
                for key, _ in ready:
                    if not key.data.read():
                        selector.unregister(key.fileobj)
                if not ready and process.poll() is not None:
                    break  # it has ended, although something it started holds its pipes open
        if self.noise:
            return True  # nothing that it says can be relied on: no use in waiting for its end
        left = _GRACE_SECONDS if self.end else max(deadline - time.monotonic(), 0)
        try:
            process.wait(timeout=None if left == math.inf else left)
        except subprocess.TimeoutExpired:
            return self.end is not None
        return True

    def _take_event(self, line: bytes) -> None:
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

    def _take_log(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self.log.append(text)
            self.on_log(text)


class _Lines:
    """Cuts what arrives on a pipe into lines."""

    def __init__(self, stream: IO[bytes], take: Callable[[bytes], None]):
        self._stream, self._take, self._rest = stream, take, b""

    def read(self) -> bool:
        """Takes in what has arrived. Returns whether more may come."""
        chunk = os.read(self._stream.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(line)
        return bool(chunk)
