"""A trial as the parent runs it: one child process per trial, watched until it ends.

The parent never imports TensorFlow. So each trial starts from the same state, an allocator's
limit can be set before TensorFlow reads it, and running out of memory, hanging and crashing are
results like any other: `run_child` returns them, it does not raise them.

However the parent ends, no child stays behind (`memtrade.measure.children`).
"""

import contextlib
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from memtrade.comparison import Verified
from memtrade.errors import MemtradeError
from memtrade.measure import host
from memtrade.measure.children import Child, children, start, supervise
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import (
    Calibrated,
    Corrected,
    Done,
    Event,
    Failed,
    Outcome,
    Planned,
    Progress,
    Ready,
    Simulated,
    Status,
    TrialSpec,
)

WORKER = (sys.executable, "-m", "memtrade.measure")

# Made before there are threads: where two of them learn a type at once, msgspec 0.22 crashes.
_EVENTS = msgspec.json.Decoder(Event)

_GRACE_SECONDS = 5.0  # for a child that has said its last word to leave by itself


def run_child(
    spec: TrialSpec,
    *,
    timeout_seconds: float | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    on_log: Callable[[str], None] = lambda line: None,
    on_wait: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
    worker: Sequence[str] = WORKER,
) -> Outcome:
    """Starts the worker on `spec` and watches it to its end.

    Args:
        timeout_seconds: from the start of the process; None waits for ever.
        on_event, on_log: called with each event, and with each line of the child's stderr.
        on_wait: called several times a second while the child runs. Whatever any of the three
            raises ends the child, and is raised here.
        environment: the child's variables, by default `child_environment(spec)`.
        worker: the command to start.

    Raises:
        MemtradeError: the child says that the input is bad.
    """
    if environment is None:
        environment = child_environment(spec)
    kills_before = host.oom_kills()
    with children() as started:
        child = start(worker, msgspec.json.encode(spec), environment)
        started.append(child)
        conversation = _Conversation(child, on_event, on_log, on_wait)
        timed_out = not conversation.listen(time.monotonic() + (timeout_seconds or math.inf))
    status, reason = _classify(
        conversation,
        timeout_seconds=timeout_seconds if timed_out else None,
        oom_killed=host.oom_kills() > kills_before,
        task=spec.task,
    )
    return replace(conversation.told, status=status, reason=reason)


@dataclass
class _Conversation:
    """What the child has said so far."""

    child: Child
    on_event: Callable[[Event], None]
    on_log: Callable[[str], None]
    on_wait: Callable[[], None]
    told: Outcome = field(default_factory=Outcome)
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
            event = _EVENTS.decode(line)
        except msgspec.DecodeError:
            self.noise = line.decode(errors="replace")[:80]
            return
        match event:
            case Ready(runtime=runtime):
                self.told = replace(self.told, runtime=runtime)
            case Planned(summary=summary):
                self.told = replace(self.told, plan=summary)
            case Simulated(predicted=predicted):
                self.told = replace(self.told, predicted=predicted)
            case Corrected():
                self.told = replace(self.told, corrections=(*self.told.corrections, event))
            case Calibrated(profile=profile):
                self.told = replace(self.told, profile=profile)
            case Verified():
                self.told = replace(self.told, verified=event)
            case Progress():
                self.phase = event
            case Done(measured=measured):
                self.told, self.end = replace(self.told, measured=measured), event
            case Failed():
                self.end = event
        self.on_event(event)

    def take_log(self, child: Child, text: str) -> None:
        self.on_log(text)

    def has_enough(self, *, quiet: bool) -> bool:
        return bool(self.end or self.noise or (quiet and self.child.has_ended))


def _classify(
    said: _Conversation,
    *,
    timeout_seconds: float | None,
    oom_killed: bool,
    task: str,
) -> tuple[Status, str]:
    """The status and the reason of a child that has ended; raises on bad input."""
    if said.noise is not None:
        return "crashed", f"the worker wrote a line that is no event: {said.noise!r}"
    if isinstance(said.end, Failed):
        if said.end.status == "bad_input":
            raise MemtradeError(said.end.reason)
        return said.end.status, said.end.reason
    if isinstance(said.end, Done):
        if (task == "measure" and said.told.measured is None) or (
            task == "verify" and said.told.verified is None
        ):
            return "crashed", f"the worker ended without the result of {task}"
        return "ok", ""
    where = f" in {said.phase.text}" if said.phase else ""
    if timeout_seconds is not None:
        return "timeout", f"no result within {timeout_seconds:g} s: stopped{where}"
    return said.child.how_it_ended(where, oom_killed=oom_killed)
