"""`memtrade run`: measures strategies side by side and ends in one table."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from memtrade.commands.progress import extract_graph, reporting, say, watched
from memtrade.commands.screen import show, show_json
from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.measure.environment import default_limit_bytes
from memtrade.measure.flags import CommandLine, Flag, StepFlags, Verbose, check_writable, make_specs
from memtrade.measure.protocol import FAILED, TrialSpec
from memtrade.measure.records import Record, make_record, save_record
from memtrade.papers import thesis_log
from memtrade.results.tables import compare
from memtrade.results.words import seconds, status_text
from memtrade.units import mebibytes, megabytes


def run(
    *,
    step: StepFlags = StepFlags(),
    steps: int | None = None,
    warmup: int | None = None,
    plan: Path | None = None,
    results: Path = Path("runs"),
    log: Literal["thesis"] | None = None,
    json: Flag = False,
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Measure strategies: peak memory, memory cost, host memory, step time.

    Unless --strategy is given, it is original,checkpoints,lms,ome.
    Each strategy runs in a process of its own. Out of memory, time-out and crash are results with
    a reason, and the next strategy follows. Ctrl-C keeps what has finished.

    Parameters
    ----------
    steps
        Counted steps; the step time is their median. Unless given: 5.
    warmup
        Steps before those. Unless given: 1.
    plan
        A plan saved by `memtrade plan --output`, in place of --strategy.
    results
        The folder for the records, one JSON file per trial.
    log
        Print the records to stdout as the log that the thesis' benchmark prints, and no table.
        Unless told otherwise it runs that benchmark's nine steps, the first one included.
    json
        Print the records to stdout as JSON, and no table.
    """
    if log and json:
        raise MemtradeError("--log and --json both say what is printed: give one of them")
    if log and steps is None and warmup is None:
        steps, warmup = thesis_log.STEPS, 0
    specs = make_specs(
        step,
        task="measure",
        names=step.strategy.names(),
        steps=5 if steps is None else steps,
        warmup=1 if warmup is None else warmup,
        plan=plan,
    )
    check_writable(results)
    timeout = step.device.timeout
    records: list[Record] = []
    failed: list[Path] = []
    try:
        with reporting() as reporter:
            for position, spec in enumerate(specs, start=1):
                reporter.trial(position, len(specs), spec.strategy)
                outcome = watched(spec, reporter, timeout_seconds=timeout, verbose=verbose)
                record = make_record(spec, outcome, command=command_line)
                if record.status != "ok" and record.plan is None and step.device.memory_limit:
                    check_limit(spec, timeout_seconds=timeout)
                records.append(record)
                reporter.ended(in_short(record))
                path = save_record(record, results)
                if record.status == "out_of_memory":
                    failed.append(path)
    except KeyboardInterrupt:
        say(f"stopped; {len(records)} of {len(specs)} trials had finished")
        _show(records, json, log)
        return 130
    except MemtradeError:  # such as a full disk: what was measured is said at least
        if records:
            _show(records, json, log)
        raise
    _show(records, json, log)
    for path in failed:
        command = shlex.join(["memtrade", "explain", str(path)])
        say(f"why it ran out, and what would fit: {command}")
    statuses = {record.status for record in records}
    return 1 if statuses & FAILED else 3 if "infeasible" in statuses else 0


def check_limit(spec: TrialSpec, *, timeout_seconds: float) -> None:
    """Raises MemtradeError where not even the variables fit under the limit.

    Asked only of a trial that did not come as far as its plan: tracing the step without a limit
    takes a child of its own.
    """
    if spec.memory_limit_bytes is None:
        return
    roomy = msgspec.structs.replace(spec, task="extract", memory_limit_bytes=default_limit_bytes())
    try:
        graph = extract_graph(roomy, timeout_seconds=timeout_seconds)
    except MemtradeError:
        return  # it failed for another reason, which the record tells
    refuse_small_limit(graph, spec.memory_limit_bytes)


def refuse_small_limit(graph: StepGraph, limit_bytes: int) -> None:
    """Raises MemtradeError where not even the variables fit under the limit."""
    needed_bytes = sum(graph.data.capture_bytes)
    if needed_bytes >= limit_bytes:
        raise MemtradeError(
            f"the memory limit must exceed the variables' size: the limit is "
            f"{mebibytes(limit_bytes)}, {graph.name}'s variables take {mebibytes(needed_bytes)}"
        )


def in_short(record: Record) -> str:
    """A trial's result in a few words."""
    if record.measured is None:
        return f"{status_text(record.status)}: {record.reason}"
    measured = record.measured
    return f"peak {megabytes(measured.peak_bytes)} MB, {seconds(measured.median_seconds)} s a step"


def _show(records: Sequence[Record], json: bool, log: str | None) -> None:
    if log:
        print(thesis_log.thesis_log(records), end="")
    elif json:
        show_json(records)
    else:
        show(compare(records))
