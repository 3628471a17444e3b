"""`memtrade run`: measures strategies side by side and ends in one table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from memtrade.commands.flags import (
    DeviceFlags,
    ModelFlags,
    StrategyFlags,
    check_writable,
    make_specs,
)
from memtrade.commands.progress import Reporter, reporting
from memtrade.commands.screen import show
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import run_trial
from memtrade.results.records import Record, save_record
from memtrade.results.tables import compare, seconds, status_text
from memtrade.units import megabytes

Flag = Annotated[bool, Parameter(negative="")]


def run(
    *,
    model: ModelFlags | None = None,
    strategy: StrategyFlags | None = None,
    device: DeviceFlags | None = None,
    steps: int = 5,
    warmup: int = 1,
    plan: Path | None = None,
    results: Path = Path("runs"),
    json: Flag = False,
    verbose: Flag = False,
    command_line: Annotated[str, Parameter(parse=False)] = "",
) -> int:
    """Measure strategies: peak memory, memory cost, host memory, step time.

    Each strategy runs in a process of its own. Out of memory, time-out and crash are results with
    a reason, and the next strategy follows. Ctrl-C keeps what has finished.

    Parameters
    ----------
    steps
        Counted steps; the step time is their median.
    warmup
        Steps before those.
    plan
        A plan saved by `memtrade plan --output`, in place of --strategy.
    results
        The folder for the records, one JSON file per trial.
    json
        Print the records to stdout as JSON, and no table.
    verbose
        Pass on what TensorFlow logs.
    """
    strategy_flags, device_flags = strategy or StrategyFlags(), device or DeviceFlags()
    specs = make_specs(
        model or ModelFlags(),
        strategy_flags,
        device_flags,
        task="measure",
        names=strategy_flags.names(),
        steps=steps,
        warmup=warmup,
        plan=plan,
    )
    check_writable(results)
    records: list[Record] = []
    try:
        with reporting() as reporter:
            for position, spec in enumerate(specs, start=1):
                reporter.trial(position, len(specs), spec.strategy)
                record = _measure(spec, reporter, device_flags.timeout, command_line, verbose)
                save_record(record, results)
                records.append(record)
                reporter.ended(_in_short(record))
    except KeyboardInterrupt:
        done = f"{len(records)} of {len(specs)} trials had finished"
        print(f"memtrade: stopped; {done}", file=sys.stderr)
        _show(records, json)
        return 130
    _show(records, json)
    statuses = [record.status for record in records]
    if "crashed" in statuses:
        return 1
    return 3 if "infeasible" in statuses else 0


def _measure(
    spec: TrialSpec, reporter: Reporter, timeout: float, command_line: str, verbose: bool
) -> Record:
    return run_trial(
        spec,
        timeout_seconds=timeout,
        on_event=reporter.event,
        on_log=log if verbose else ignore,
        command_line=command_line,
    )


def log(line: str) -> None:
    print(line, file=sys.stderr)


def ignore(line: str) -> None:
    """For logs that nobody asked for."""


def _in_short(record: Record) -> str:
    if record.measured is None:
        return f"{status_text(record.status)}: {record.reason}"
    measured = record.measured
    return f"peak {megabytes(measured.peak_bytes)} MB, {seconds(measured.median_seconds)} s a step"


def _show(records: Sequence[Record], json: bool) -> None:
    if json:
        encoded = msgspec.json.encode(list(records), order="sorted")
        print(msgspec.json.format(encoded, indent=2).decode())
        return
    show(compare(records))
