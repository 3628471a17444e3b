"""Child processes: started in groups of their own, watched by one loop, and ended with a block.

However the parent ends, no child stays behind: on an exception, Ctrl-C, SIGTERM and SIGHUP the
block kills the children's process groups, and when the parent itself is killed, the kernel kills
the children (`memtrade.measure.child`).
"""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Protocol

from memtrade.measure.child import PARENT_VARIABLE
from memtrade.measure.protocol import Status

_POLL_SECONDS = 0.25  # how long to wait for output before looking whether the children still live
_END_SECONDS = 0.02
_LOG_LINES = 50  # of a child's stderr, kept for the reason of a crash

# What TensorFlow logs of an allocation that failed.
_OOM = re.compile(r"OOM when allocating tensor|ran out of memory trying to allocate")

# By these, a process ends itself.
_FATAL_SIGNALS = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE})

# Lines of TensorFlow's log that do not say why it ended: stack frames, information, warnings.
_NOISE = re.compile(r"\s*@ |\s*\[\[\{\{node |\*\*\* |WARNING: All log messages|[IW]\d{4} ")
_PREFIX = re.compile(r"[EF]\d{4} \S+\s+\d+ ")


@dataclass(frozen=True)
class Child:
    """A process, and the last lines of its log. `stage` is that of a pipeline that it serves."""

    process: subprocess.Popen[bytes]
    name: str = "the worker"
    stage: int | None = None
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def failed_allocation(self) -> str | None:
        """The last one that it logged: where oneDNN's own scratch memory does not fit, TensorFlow
        2.21 logs that and then trips over the tensor that it did not get, in place of an error."""
        failed = [line[found.start() :] for line in self.log if (found := _OOM.search(line))]
        return failed[-1] if failed else None

    def how_it_ended(self, where: str, *, oom_killed: bool) -> tuple[Status, str]:
        """The status and the reason of a process that ended without its last word.

        Args:
            where: in which phase, as the end of a sentence.
            oom_killed: whether the kernel's OOM killer took any process meanwhile.
        """
        code = self.process.returncode
        if code == -signal.SIGKILL:
            if oom_killed:
                return "out_of_host_memory", f"taken by the kernel's OOM killer{where}"
            return "crashed", f"killed by SIGKILL{where}"
        if -code in _FATAL_SIGNALS:
            if failed := self.failed_allocation:
                return "out_of_memory", failed
            if any("std::bad_alloc" in line for line in self.log):
                return "out_of_host_memory", f"the process heap could not grow{where}"
        telling = [line for line in self.log if not _NOISE.match(line)]
        last_line = ": " + _PREFIX.sub("", telling[-1]) if telling else ""
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        return "crashed", how + where + last_line


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Listener(Protocol):
    """Who takes in what children say."""

    def take_event(self, child: Child, line: bytes) -> None:
        """A line on stdout."""

    def take_log(self, child: Child, text: str) -> None:
        """A line on stderr, which the child's `log` has already."""

    def has_enough(self, *, quiet: bool) -> bool:
        """Whether there is nothing more to wait for. `quiet`: nothing waits to be read, so what has
        ended has said all."""
        ...


@contextlib.contextmanager
def children() -> Iterator[list[Child]]:
    """The list of the children, all of which are ended with the block; signals raise within it."""
    started: list[Child] = []
    with signals_raise():
        try:
            yield started
        finally:
            for child in started:
                if not child.has_ended:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.process.pid, signal.SIGKILL)
            for child in started:
                child.process.wait()
                for stream in (child.process.stdout, child.process.stderr):
                    if stream is not None:
                        stream.close()


def start(
    command: Sequence[str],
    request: bytes,
    environment: Mapping[str, str],
    *,
    name: str = "the worker",
    stage: int | None = None,
    log: bool = True,
) -> Child:
    """Starts a process that finds `request` on its stdin. Without `log`, nobody gets its stderr."""
    # A file and not a pipe: a child that never reads cannot block the parent.
    with tempfile.TemporaryFile() as file:
        file.write(request)
        file.seek(0)
        process = subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if log else subprocess.DEVNULL,
            env={**environment, PARENT_VARIABLE: str(os.getpid())},
            start_new_session=True,
        )
    return Child(process, name, stage)


def supervise(
    started: Sequence[Child],
    listener: Listener,
    *,
    deadline: float,
    on_wait: Callable[[], None] = lambda: None,
) -> bool:
    """Hands on what the children say until the listener has enough of it.

    Returns whether that was before the deadline, on the clock of `time.monotonic`. `on_wait` is
    called several times a second.
    """

    def take_log(child: Child, line: bytes) -> None:
        if text := line.decode(errors="replace").rstrip():
            child.log.append(text)
            listener.take_log(child, text)

    with selectors.DefaultSelector() as selector:
        for child in started:
            for stream, take in (
                (child.process.stdout, listener.take_event),
                (child.process.stderr, take_log),
            ):
                if stream is not None:
                    lines = _Lines(stream, child, take)
                    selector.register(stream, selectors.EVENT_READ, lines)
        quiet = False
        while not listener.has_enough(quiet=quiet):
            on_wait()
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # A process ends within a moment of its pipes.
            patience = _POLL_SECONDS if selector.get_map() else _END_SECONDS
            ready = selector.select(min(left, patience))
            for key, _ in ready:
                if not key.data.read():
                    selector.unregister(key.fileobj)
            # What a child started may hold its pipes open behind its end.
            quiet = not ready or not selector.get_map()
        # What it said between the look at its pipes and the one at itself: no more than they hold.
        for key, _ in selector.select(0):
            key.data.read()
    return True


class _Lines:
    """Cuts what arrives on a pipe into lines."""

    def __init__(self, stream: IO[bytes], child: Child, take: Callable[[Child, bytes], None]):
        self._stream, self._child, self._take, self._rest = stream, child, take, b""

    def read(self) -> bool:
        """Takes in what has arrived. Returns whether more may come."""
        chunk = os.read(self._stream.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(self._child, line)
        return bool(chunk)


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
