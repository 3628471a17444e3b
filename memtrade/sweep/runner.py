"""Runs the trials of a sweep on this machine, one child process each, several at a time if asked.

Each trial has a thread that waits for its child. Whatever ends the sweep ends the children: they
are killed on an exception, Ctrl-C, SIGTERM and SIGHUP, and the kernel kills them when this process
is killed (`memtrade.measure.child`).
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import msgspec

from memtrade.errors import MemtradeError
from memtrade.measure.children import signals_raise
from memtrade.measure.protocol import Event
from memtrade.measure.records import Record, make_record
from memtrade.measure.trial import run_child
from memtrade.sweep.grid import Trial
from memtrade.sweep.watch import End, NoRecord, Watch
from memtrade.units import parse_bytes


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
        _measure, jobs=jobs, watch=watch, stop=stop, command_line=command_line, known=known
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
    places: dict[bytes, list[int]] = {}
    for i, trial in enumerate(trials):
        if trial.spec.strategy_options.get("budget"):
            options = {**trial.spec.strategy_options, "budget": ""}
            spec = msgspec.structs.replace(trial.spec, strategy_options=options)
            places.setdefault(msgspec.json.encode(spec, order="sorted"), []).append(i)
    ordered = list(trials)
    for group in places.values():
        ascending = sorted(
            (trials[i] for i in group),
            key=lambda trial: parse_bytes(trial.spec.strategy_options["budget"]),
        )
        for i, trial in zip(group, ascending, strict=True):
            ordered[i] = trial
    return ordered


def _measure(
    trial: Trial,
    *,
    jobs: int,
    watch: Watch,
    stop: threading.Event,
    command_line: str,
    known: Path | None,
) -> tuple[End, float]:
    """How the trial ended, and the seconds that it took."""

    def check() -> None:
        if stop.is_set():
            raise _StoppedError

    def tell(event: Event) -> None:
        if jobs == 1:
            watch.event(event)

    began = time.monotonic()
    try:
        spec = msgspec.structs.replace(trial.spec, known_folder=str(known) if known else None)
        outcome = run_child(
            spec,
            timeout_seconds=trial.timeout_seconds,
            on_event=tell,
            on_log=watch.log,
            on_wait=check,
        )
        record = make_record(spec, outcome, command=command_line)
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
