"""A trial as the parent runs it: one child process per trial, watched until it ends.

The parent never imports TensorFlow. So each trial starts from the same state, an allocator's
limit can be set before TensorFlow reads it, and running out of memory, hanging and crashing are
results like any other: `run_child` returns them, it does not raise them.

However the parent ends, no child stays behind: on an exception, Ctrl-C, SIGTERM and SIGHUP the
parent kills the child's process group, and when the parent itself is killed, the kernel kills the
child (`memtrade.measure.child`).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from memtrade.comparison import Verified
from memtrade.errors import MemtradeError
from memtrade.measure import host
from memtrade.measure.child import PARENT_VARIABLE
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

# What TensorFlow logs of an allocation that failed.
_OOM = "OOM when allocating tensor"

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
        on_wait: called about twice a second while the child runs. Whatever any of the three raises
            ends the child, and is raised here.
        environment: the child's variables, by default `child_environment(spec)`.
        worker: the command to start.

    Raises:
        MemtradeError: the child says that the input is bad.
    """
    environment = dict(child_environment(spec) if environment is None else environment)
    environment[PARENT_VARIABLE] = str(os.getpid())
    kills_before = host.oom_kills()
    conversation = Conversation(on_event, on_log, on_wait)
    # A file and not a pipe: a worker that never reads cannot block the parent.
    with tempfile.TemporaryFile() as request, signals_raise():
        request.write(encode_spec(spec))
        request.seek(0)
        process = subprocess.Popen(
            worker,
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + (timeout_seconds or math.inf)
            timed_out = not conversation.listen(process, deadline)
        finally:
            _kill_group(process)
    status, reason = _classify(
        conversation,
        exit_code=process.returncode,
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
        # Where oneDNN's own scratch memory does not fit, TensorFlow 2.21 logs the failed
        # allocation and then trips over the tensor that it did not get, in place of an error.
        failed = [line[line.index(_OOM) :] for line in said.log if _OOM in line]
        if failed:
            return "out_of_memory", failed[-1]
        if any("std::bad_alloc" in line for line in said.log):
            return "out_of_host_memory", f"the process heap could not grow{where}"
    telling = [line for line in said.log if not _NOISE.match(line)]
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


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the child, and all that it started, unless it has ended by itself; closes its pipes."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Within it, SIGTERM and SIGHUP raise SystemExit, as Ctrl-C raises KeyboardInterrupt: so
    that `finally` clauses run. Only the main thread may set handlers; elsewhere it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
