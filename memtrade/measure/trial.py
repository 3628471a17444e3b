"""A trial as the parent runs it: one child process per trial, watched until it ends.

The parent never imports TensorFlow. So each trial starts from the same state, an allocator's
limit can be set before TensorFlow reads it, and running out of memory, hanging and crashing are
results like any other: `run_child` returns them, it does not raise them.

However the parent ends, no child stays behind (`memtrade.measure.children`).
"""

from __future__ import annotations

import math
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memtrade.comparison import Verified
from memtrade.errors import MemtradeError
from memtrade.measure import host
from memtrade.measure.children import children, start
from memtrade.measure.conversation import Conversation
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import (
    Corrected,
    Done,
    Event,
    Failed,
    Measured,
    PlanSummary,
    Progress,
    Runtime,
    Status,
    TrialSpec,
    encode_spec,
)
from memtrade.measure.records import Record, make_record
from memtrade.simulate.calibration import Rates
from memtrade.simulate.predict import Predicted

WORKER = (sys.executable, "-m", "memtrade.measure")

# By these, a process ends itself.
_FATAL_SIGNALS = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE})

# Lines of TensorFlow's log that do not say why it ended: stack frames, information, warnings.
_NOISE = re.compile(r"\s*@ |\*\*\* |WARNING: All log messages|[IW]\d{4} ")
_PREFIX = re.compile(r"[EF]\d{4} \S+\s+\d+ ")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a child ended, and what it had said until then."""

    status: Status
    reason: str = ""
    runtime: Runtime | None = None
    plan: PlanSummary | None = None
    predicted: Predicted | None = None
    corrections: tuple[Corrected, ...] = ()
    measured: Measured | None = None
    verified: Verified | None = None
    rates: Rates | None = None


def run_trial(
    spec: TrialSpec,
    *,
    timeout_seconds: float | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    on_log: Callable[[str], None] = lambda line: None,
    on_wait: Callable[[], None] = lambda: None,
    command_line: str = "",
    environment: Mapping[str, str] | None = None,
    worker: Sequence[str] = WORKER,
) -> Record:
    """Measures `spec` in a child process. The arguments are those of `run_child`.

    `command_line` is what the user typed, for the record.
    """
    outcome = run_child(
        spec,
        timeout_seconds=timeout_seconds,
        on_event=on_event,
        on_log=on_log,
        on_wait=on_wait,
        environment=environment,
        worker=worker,
    )
    return make_record(
        spec,
        command=command_line,
        status=outcome.status,
        reason=outcome.reason,
        measured=outcome.measured,
        predicted=outcome.predicted,
        corrections=outcome.corrections,
        plan=outcome.plan,
        runtime=outcome.runtime,
    )


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
        child = start(worker, encode_spec(spec), environment)
        started.append(child)
        conversation = Conversation(child, on_event, on_log, on_wait)
        timed_out = not conversation.listen(time.monotonic() + (timeout_seconds or math.inf))
    status, reason = _classify(
        conversation,
        exit_code=child.process.returncode,
        timeout_seconds=timeout_seconds if timed_out else None,
        oom_killed=host.oom_kills() > kills_before,
        task=spec.task,
    )
    return Outcome(
        status=status,
        reason=reason,
        runtime=conversation.runtime,
        plan=conversation.plan,
        predicted=conversation.predicted,
        corrections=tuple(conversation.corrections),
        measured=conversation.end.measured if isinstance(conversation.end, Done) else None,
        verified=conversation.verified,
        rates=conversation.rates,
    )


def _classify(
    said: Conversation,
    *,
    exit_code: int,
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
        if (task == "measure" and said.end.measured is None) or (
            task == "verify" and said.verified is None
        ):
            return "crashed", f"the worker ended without the result of {task}"
        return "ok", ""
    where = f" in {_phase_text(said.phase)}" if said.phase else ""
    if timeout_seconds is not None:
        return "timeout", f"no result within {timeout_seconds:g} s: stopped{where}"
    if exit_code == -signal.SIGKILL:
        if oom_killed:
            return "out_of_host_memory", f"taken by the kernel's OOM killer{where}"
        return "crashed", f"killed by SIGKILL{where}"
    if -exit_code in _FATAL_SIGNALS:
        if failed := said.child.failed_allocation:
            return "out_of_memory", failed
        if any("std::bad_alloc" in line for line in said.child.log):
            return "out_of_host_memory", f"the process heap could not grow{where}"
    telling = [line for line in said.child.log if not _NOISE.match(line)]
    last_line = ": " + _PREFIX.sub("", telling[-1]) if telling else ""
    how = f"killed by {_signal_name(-exit_code)}" if exit_code < 0 else f"exit code {exit_code}"
    return "crashed", how + where + last_line


def _phase_text(phase: Progress) -> str:
    return f"{phase.phase} {phase.step} of {phase.of}" if phase.of else phase.phase


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
