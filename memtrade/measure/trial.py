"""A trial as the parent runs it: one child process per trial, watched until it ends.

The parent never imports TensorFlow. So each trial starts from the same state, an allocator's
limit can be set before TensorFlow reads it, and running out of memory, hanging and crashing are
results like any other: `run_child` returns them, it does not raise them.
"""

import contextlib
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from memtrade.comparison import Verified
from memtrade.errors import MemtradeError, UnsupportedGraphError
from memtrade.graph import StepGraph
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
from memtrade.units import mebibytes

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

    Raises MemtradeError where the child says that the input is bad.
    """
    kills_before = host.oom_kills()
    with children() as started:
        request = msgspec.json.encode(spec)
        child = start(worker, request, environment or child_environment(spec))
        started.append(child)
        said = _Conversation(_EVENTS, on_event, on_log, child)
        in_time = supervise(
            started,
            said,
            deadline=time.monotonic() + (timeout_seconds or math.inf),
            on_wait=on_wait,
        )
        if said.end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(timeout=_GRACE_SECONDS)
    status, reason = said.verdict(
        child if in_time else None,
        timeout_seconds=timeout_seconds,
        oom_killed=host.oom_kills() > kills_before,
    )
    missing = {"measure": said.told.measured, "verify": said.told.verified}.get(spec.task, "none")
    if status == "ok" and missing is None:
        status, reason = "crashed", f"the worker ended without the result of {spec.task}"
    return replace(said.told, status=status, reason=reason)


@dataclass
class Conversation:
    """What the children of a trial, of whatever kind, have said so far. Its heirs `note` the rest.

    Attributes:
        events: decodes a line.
        end: the last word, behind which nothing counts.
        noise: what is said of the first line on stdout that is no event.
    """

    events: msgspec.json.Decoder[Any]
    on_event: Callable[[Any], None]
    on_log: Callable[[str], None]
    phase: Progress | None = field(default=None, init=False)
    end: Any = field(default=None, init=False)
    noise: str = field(default="", init=False)

    def note(self, event: Any) -> None:
        """Keeps what an event says."""

    def take_event(self, child: Child, line: bytes) -> None:
        if self.end or self.noise:
            return
        try:
            event = self.events.decode(line)
        except msgspec.DecodeError:
            said = line.decode(errors="replace")[:80]
            self.noise = f"{child.name} wrote a line that is no event: {said!r}"
            return
        match event:
            case Progress():
                self.phase = event
            case Failed():
                self.end = event
            case _:
                self.note(event)
        self.on_event(event)

    def take_log(self, child: Child, text: str) -> None:
        self.on_log(text)

    def verdict(
        self, ended: Child | None, *, timeout_seconds: float | None, oom_killed: bool
    ) -> tuple[Status, str]:
        """How it went, and why, by the last word or by the child that ended without one; without
        either, the time was up. Raises MemtradeError on bad input."""
        if self.noise:
            return "crashed", self.noise
        if isinstance(self.end, Failed):
            if self.end.status == "bad_input":
                raise MemtradeError(self.end.reason)
            return self.end.status, self.end.reason
        if self.end:
            return "ok", ""
        where = f" in {self.phase.text}" if self.phase else ""
        if ended is None:
            return "timeout", f"no result within {timeout_seconds:g} s: stopped{where}"
        return ended.how_it_ended(where, oom_killed=oom_killed)


@dataclass
class _Conversation(Conversation):
    child: Child
    told: Outcome = field(default_factory=Outcome)

    def note(self, event: Event) -> None:
        match event:
            case Planned(summary=summary):
                self.told = replace(self.told, plan=summary)
            case Ready() | Simulated() | Calibrated() | Done():
                self.told = replace(self.told, **msgspec.structs.asdict(event))
                self.end = event if isinstance(event, Done) else None
            case Corrected():
                self.told = replace(self.told, corrections=(*self.told.corrections, event))
            case Verified():
                self.told = replace(self.told, verified=event)

    def has_enough(self, *, quiet: bool) -> bool:
        return bool(self.end or self.noise or (quiet and self.child.has_ended))


# More than any device has, and any machine.
_MOST_BYTES = 1 << 45


def extract_graph(
    spec: TrialSpec,
    *,
    timeout_seconds: float,
    on_event: Callable[[Event], None] = lambda event: None,
    on_log: Callable[[str], None] = lambda line: None,
) -> StepGraph:
    """The graph of the spec's step, traced in a child, which allocates nothing.

    Raises UnsupportedGraphError where it could not be traced, and why, or where one of its tensors
    or variables is too large for any device.
    """
    graph = StepGraph.from_bytes(told_by_child(spec, timeout_seconds, on_event, on_log))
    sizes = [(t.size_bytes, t.id) for t in graph.tensors]
    sizes += zip(graph.data.capture_bytes, graph.data.captures, strict=True)
    most_bytes, largest = max(sizes, key=lambda pair: pair[0], default=(0, 0))
    if most_bytes > _MOST_BYTES:
        raise UnsupportedGraphError(
            f"{graph.name} has {graph.label(largest)} of {mebibytes(most_bytes)}, which no device "
            "holds: give a smaller batch, smaller examples or fewer classes"
        )
    return graph


def told_by_child(
    spec: TrialSpec,
    timeout_seconds: float,
    on_event: Callable[[Event], None],
    on_log: Callable[[str], None],
) -> bytes:
    """What a child writes of the step that it traces: its graph, or the findings as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "told"
        outcome = run_child(
            msgspec.structs.replace(spec, graph_path=str(path)),
            timeout_seconds=timeout_seconds,
            on_event=on_event,
            on_log=on_log,
        )
        if outcome.status != "ok":
            status = outcome.status.replace("_", " ")
            raise UnsupportedGraphError(f"the step could not be traced: {status}: {outcome.reason}")
        return path.read_bytes()
