"""Which trials of a sweep run on this machine, and how: one child process each, several at a time
if asked.

What a trial takes is known only once it has run. So it is granted what it may take at most: its
memory limit, and host memory for the process and for swapped tensors. Each has a thread that waits
for its child. Whatever ends the sweep ends the children: they are killed on an exception, Ctrl-C,
SIGTERM and SIGHUP, and by the kernel when this process is killed (`memtrade.measure.child`).
"""

import contextlib
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.measure import host
from memtrade.measure.children import signals_raise
from memtrade.measure.protocol import Event, TrialSpec
from memtrade.measure.records import Record, make_record
from memtrade.measure.trial import run_child
from memtrade.sweep.grid import Trial
from memtrade.units import megabytes, parse_bytes

# Host memory beside the device's: the same 30% by which `default_limit_bytes` leaves room, and no
# less than a process with TensorFlow and the graph of a deep model takes.
HOST_SHARE = 0.3
LEAST_HOST_BYTES = 1 << 30

# The words of --retry, and the statuses that each one runs again.
RETRY: dict[str, frozenset[str]] = {
    "oom": frozenset({"out_of_memory", "out_of_host_memory"}),
    "crash": frozenset({"crashed"}),
    "timeout": frozenset({"timeout"}),
    "infeasible": frozenset({"infeasible"}),
    "unsupported": frozenset({"unsupported"}),
}
ALL, PARALLEL = "all", "parallel"
_STATUSES = frozenset().union(*RETRY.values())
_MEANT = {word: frozenset({word}) for word in (*_STATUSES, PARALLEL)} | RETRY | {ALL: _STATUSES}


@dataclass(frozen=True, kw_only=True)
class NoRecord:
    """A trial that makes no record, and why in one line.

    Attributes:
        kind: "refused" is bad input that only the child could see, such as a limit below the
            variables' size; "lost" is a trial whose node or process went away each time.
    """

    kind: Literal["refused", "lost"]
    reason: str


End = Record | NoRecord


class Watch(Protocol):
    """Told by a runner; `event` and `log` by any thread, the rest by the one that called it."""

    def note(self, text: str) -> None:
        """Something about the whole sweep that a user wants to know."""

    def started(self, trial: Trial) -> None:
        """Runs now. Not told of trials that a cluster places by itself."""

    def event(self, event: Event) -> None:
        """What a child says; only where one trial runs at a time."""

    def log(self, line: str) -> None:
        """A line that a child logs, of which nobody knows whose where several run at a time."""

    def ended(self, trial: Trial, end: End, seconds: float) -> None:
        """Is over, `seconds` after it began. A record is not saved yet."""

    def again(self, trial: Trial, why: str) -> None:
        """Did not come to its end and will run once more."""


def parse_retry(text: str) -> frozenset[str]:
    """The statuses to run again, and `PARALLEL` for trials whose times others disturbed.

    Statuses themselves are understood, too: "crashed", "out_of_memory". Raises UnknownNameError,
    with the choices.

    >>> sorted(parse_retry("oom,crash"))
    ['crashed', 'out_of_host_memory', 'out_of_memory']
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := [word for word in words if word not in _MEANT]:
        raise UnknownNameError("word of --retry", wrong[0], [*RETRY, ALL, PARALLEL])
    return frozenset().union(*(_MEANT[word] for word in words))


def to_run(
    trials: Iterable[Trial], records: Mapping[str, Record], retry: frozenset[str]
) -> list[Trial]:
    """The trials that have no record in `records`, by id, or one that is to be made again."""

    def done(record: Record | None) -> bool:
        disturbed = record is not None and record.jobs > 1 and PARALLEL in retry
        return record is not None and record.status not in retry and not disturbed

    return [trial for trial in trials if not done(records.get(trial.id))]


class Demand(NamedTuple):
    """Of one trial. `memory_bytes` is the machine's own: in the arena the device's is of it."""

    memory_bytes: int
    gpus: int


def need_of(spec: TrialSpec) -> Demand:
    limit_bytes = spec.memory_limit_bytes or 0
    on_gpu = spec.device != "arena"
    host_bytes = max(int(limit_bytes * HOST_SHARE), LEAST_HOST_BYTES)
    return Demand(memory_bytes=host_bytes + (0 if on_gpu else limit_bytes), gpus=int(on_gpu))


def jobs_that_fit(asked: int, specs: Sequence[TrialSpec]) -> tuple[int, str]:
    """How many of the trials may run at a time on this machine, `asked` at most and 1 at least,
    and why it is fewer than `asked`, or "".

    At most one per core, one per GPU that is asked for, and as many as free memory holds of the
    largest.
    """
    if not specs:
        return asked, ""
    cores = host.describe_machine().cores
    free_bytes = host.free_memory_bytes()
    largest_bytes = max(need_of(spec).memory_bytes for spec in specs)
    free = f"its limit and what it needs on the host, and {megabytes(free_bytes)} MB are free"
    gpus = {spec.device for spec in specs if need_of(spec).gpus}
    bounds = [
        (cores, f"there are {cores} cores"),
        (free_bytes // largest_bytes, f"a trial may take {megabytes(largest_bytes)} MB, {free}"),
    ]
    if gpus and all(need_of(spec).gpus for spec in specs):
        bounds.append((len(gpus), f"the trials use {', '.join(sorted(gpus))}, one at a time each"))
    fits, why = min(bounds, key=lambda bound: bound[0])
    fits = max(fits, 1)
    return (asked, "") if fits >= asked else (fits, why)


@contextlib.contextmanager
def sole_sweep(folder: Path) -> Iterator[None]:
    """Holds the folder, which is made if it is not there, for one sweep: two would run the same
    trials. It is locked itself, so however a sweep ends, its lock goes with its process.

    Raises MemtradeError where another sweep holds it, or it cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise MemtradeError(f"cannot use the folder {str(folder)!r}: {error.strerror}") from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MemtradeError(
            f"another sweep writes into {str(folder)!r}: wait for its end, or choose another "
            "folder with --results"
        ) from None
    except OSError as error:
        raise MemtradeError(
            f"the folder {str(folder)!r} cannot be locked for one sweep ({error.strerror}): choose "
            "one on a local disk with --results"
        ) from error


class _StoppedError(Exception):
    """Ends a child whose sweep is over."""


def run_locally(
    trials: Sequence[Trial],
    *,
    jobs: int,
    watch: Watch,
    command_line: str = "",
    known: Path | None = None,
) -> None:
    """Runs the trials in their order, up to `jobs` at a time and one at a time on each GPU; of
    those that differ only in their budget, the one with the smallest first.

    The kernel may take a trial for its memory because of its neighbours. Such a trial is no result:
    it runs again at the end, alone.

    Args:
        known: the folder through which trials hand on their plans.
    """
    trials = leaner_first(trials)
    jobs = max(min(jobs, len(trials)), 1)
    stop = threading.Event()
    measure = partial(
        _measure, jobs=jobs, watch=watch, stop=stop, command=command_line, known=known
    )
    waiting, alone = deque(trials), []
    running: dict[Future[tuple[End, float]], Trial] = {}
    with signals_raise(), ThreadPoolExecutor(jobs) as threads:
        try:
            while waiting or running:
                while len(running) < jobs and (trial := _take(waiting, running.values())):
                    watch.started(trial)
                    running[threads.submit(measure, trial)] = trial
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    trial = running.pop(future)
                    end, seconds = future.result()
                    starved = isinstance(end, Record) and end.status == "out_of_host_memory"
                    if jobs > 1 and starved:
                        watch.again(trial, f"{end.reason}, beside other trials")
                        alone.append(trial)
                    else:
                        watch.ended(trial, end, seconds)
        finally:
            stop.set()
    if alone:
        run_locally(alone, jobs=1, watch=watch, command_line=command_line, known=known)


def leaner_first(trials: Sequence[Trial]) -> list[Trial]:
    """The trials in their order, but those that differ only in their budget ascend in it, in the
    places that they have."""

    def budget(trial: Trial) -> str:
        return trial.spec.strategy_options.get("budget") or ""

    def without(trial: Trial) -> bytes:
        options = {**trial.spec.strategy_options, "budget": ""}
        spec = msgspec.structs.replace(trial.spec, strategy_options=options)
        return msgspec.json.encode(spec, order="sorted")

    ascending: dict[bytes, list[Trial]] = {}
    for trial in sorted(filter(budget, trials), key=lambda trial: parse_bytes(budget(trial))):
        ascending.setdefault(without(trial), []).append(trial)
    return [ascending[without(each)].pop(0) if budget(each) else each for each in trials]


def _measure(
    trial: Trial, jobs: int, watch: Watch, stop: threading.Event, command: str, known: Path | None
) -> tuple[End, float]:
    """How the trial ended, and the seconds that it took."""

    def check() -> None:
        if stop.is_set():
            raise _StoppedError

    began = time.monotonic()
    try:
        spec = msgspec.structs.replace(trial.spec, known_folder=str(known) if known else None)
        outcome = run_child(
            spec,
            timeout_seconds=trial.timeout_seconds,
            on_event=watch.event if jobs == 1 else lambda event: None,
            on_log=watch.log,
            on_wait=check,
        )
        record = make_record(spec, outcome, command=command)
        end = msgspec.structs.replace(record, jobs=jobs)
    except MemtradeError as error:
        end = NoRecord(kind="refused", reason=str(error))
    return end, time.monotonic() - began


def _take(waiting: deque[Trial], running: Iterable[Trial]) -> Trial | None:
    """Takes the first trial whose device has room: the arena has, a GPU serves one at a time."""
    busy = {trial.spec.device for trial in running} - {"arena"}
    for trial in waiting:
        if trial.spec.device not in busy:
            waiting.remove(trial)
            return trial
    return None
