"""What a user sees on stderr while trials run: a live line on a terminal, else plain lines."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import rich.progress
from rich.console import Console

from memtrade.graph import StepGraph
from memtrade.measure import trial
from memtrade.measure.protocol import Corrected, Event, Outcome, Progress, StepDone, TrialSpec
from memtrade.measure.trial import run_child
from memtrade.results.words import seconds
from memtrade.units import megabytes


class Reporter:
    """Plain lines, which suit a log file: one per phase, step and trial."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._head = ""

    def trial(self, position: int, of: int, label: str, *, phase: str = "start") -> None:
        """The trial `position` of `of` begins; `label` says which."""
        self._head = f"[{position}/{of}] {label}"
        self._phase(Progress(phase))

    def event(self, event: Event) -> None:
        match event:
            case Progress():
                self._phase(event)
            case StepDone():
                took, peak = seconds(event.seconds), megabytes(event.peak_bytes)
                self._line(f"{self._head}: {took} s, peak {peak} MB")
            case Corrected():
                self._line(f"{self._head}: {_correction(event)}")

    def ended(self, text: str) -> None:
        """The trial is over; `text` is its result in a few words."""
        self._line(f"{self._head}: {text}")

    def _phase(self, phase: Progress) -> None:
        if phase.of == 0:  # counted phases have their own lines when they end
            self._line(f"{self._head}: {phase.phase}")

    def _line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveReporter(Reporter):
    """One line that changes: trial k of n, phase, step, and how long it has been."""

    def __init__(self, live: rich.progress.Progress):
        super().__init__(sys.stderr)
        self._live = live
        self._task = live.add_task("", total=None)

    def event(self, event: Event) -> None:
        if not isinstance(event, StepDone):  # the phases count steps
            super().event(event)

    def _line(self, text: str) -> None:
        self._live.console.print(text)

    def _phase(self, phase: Progress) -> None:
        self._live.update(
            self._task,
            description=f"{self._head}: {phase.text}",
            total=phase.of or None,
            completed=phase.step - 1 if phase.of else 0,
        )


def asking(reporter: Reporter, device: str) -> Callable[[int, int], None]:
    """Shows how many kernels have been asked, if any are."""

    def on_progress(done: int, of: int) -> None:
        if done == 1:
            reporter.trial(1, 1, device, phase=f"ask {of} kernels")
        reporter.event(Progress("ask kernel", done, of))

    return on_progress


def _correction(event: Corrected) -> str:
    return (
        f"{megabytes(event.measured_bytes)} MB are above the budget of "
        f"{megabytes(event.budget_bytes)} MB ({megabytes(event.predicted_bytes)} were predicted): "
        f"planned anew; {event.remedy}"
    )


def on_terminal() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty()


@contextmanager
def reporting() -> Iterator[Reporter]:
    """The reporter that suits stderr."""
    if not on_terminal():
        yield Reporter(sys.stderr)
        return
    console = Console(stderr=True, markup=False, highlight=False)
    live = rich.progress.Progress(
        rich.progress.SpinnerColumn(),
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(bar_width=20),
        rich.progress.TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    reporter = LiveReporter(live)
    with live, _listening(reporter):
        yield reporter


class _Latest(logging.Handler):
    """Hands the latest line of a log on."""

    def __init__(self, show: Callable[[str], None]):
        super().__init__(logging.INFO)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


@contextmanager
def _listening(reporter: Reporter) -> Iterator[None]:
    """What strategies that take long log of their progress in this process is shown."""
    logger = logging.getLogger("memtrade.strategies")
    handler, before = _Latest(lambda line: reporter.event(Progress(line))), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def watched(
    spec: TrialSpec, reporter: Reporter, *, timeout_seconds: float | None, verbose: bool
) -> Outcome:
    """Runs a trial's child: the reporter shows what it does, and stderr its log if `verbose`."""
    on_log = log if verbose else ignore
    return run_child(spec, timeout_seconds=timeout_seconds, on_event=reporter.event, on_log=on_log)


def extract_graph(spec: TrialSpec, *, timeout_seconds: float, verbose: bool = False) -> StepGraph:
    """The graph of the spec's step. Raises UnsupportedGraphError where it could not be traced."""
    with reporting() as reporter:
        reporter.trial(1, 1, spec.model)
        hear: dict[str, Any] = {"on_event": reporter.event, "on_log": log if verbose else ignore}
        return trial.extract_graph(spec, timeout_seconds=timeout_seconds, **hear)


def say(text: str) -> None:
    """A line of our own on stderr."""
    print(f"memtrade: {text}", file=sys.stderr, flush=True)


def log(line: str) -> None:
    print(line, file=sys.stderr)


def ignore(line: str) -> None:
    """For logs that nobody asked for."""
