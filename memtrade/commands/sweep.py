"""`memtrade sweep`: measures all that a TOML file asks for, and goes on where it was stopped."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from memtrade.commands.progress import Reporter, log, reporting, say
from memtrade.commands.reading import warnings_on_stderr
from memtrade.commands.run import in_short
from memtrade.commands.screen import show
from memtrade.errors import MemtradeError
from memtrade.measure.flags import CommandLine, DeviceFlags, Flag, Verbose, check_writable
from memtrade.measure.host import describe_machine
from memtrade.measure.protocol import FAILED, Event, Measured
from memtrade.measure.records import Record, load_records, save_record, trial_id
from memtrade.results.sheets import Sheet, cell
from memtrade.results.words import plural, seconds, status_text
from memtrade.strategies.known import KNOWN_FOLDER
from memtrade.sweep.cluster import check_answers, resolve_on_cluster, run_on_cluster
from memtrade.sweep.grid import GRID, Trial, read_sweep
from memtrade.sweep.runner import (
    End,
    NoRecord,
    jobs_that_fit,
    parse_retry,
    run_locally,
    sole_sweep,
    to_run,
)
from memtrade.sweep.shipped import sweep_file
from memtrade.units import megabytes


def sweep(
    file: Path,
    /,
    *,
    results: Path = Path("runs"),
    jobs: int = 1,
    retry: str = "",
    cluster: str | None = None,
    dry_run: Flag = False,
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Measure every trial of a sweep file; those that have a record already are left out.

    Each trial runs in a process of its own, and its record is written as soon as it ends. Stopped
    in whatever way, a sweep loses the trial that was running: the same command goes on from there.
    One sweep at a time writes into a folder.

    Parameters
    ----------
    file
        TOML with blocks [[grid]], or the name of one that comes with memtrade: quick, thesis,
        own_ways, ... Keys are the flags of `memtrade run`, spelled with _ (batch_size); a list
        makes an axis.
    results
        The folder for the records, one JSON file per trial, and what to resume from.
    jobs
        Trials at a time on one machine; fewer where cores or free memory do not allow it. They
        disturb each other's times, so records say it.
    retry
        Which failed trials to run again: oom, crash, timeout, infeasible, unsupported or all,
        separated by commas. parallel runs those again that ran beside others.
    cluster
        Run on a Ray cluster: HOST:PORT, or auto for the one that this machine is part of, or else
        a new one of this machine alone.
    dry_run
        Only list the trials and what has become of them.
    """
    if jobs < 1:
        raise MemtradeError(f"--jobs must be at least 1, not {jobs}")
    statuses = parse_retry(retry)
    resolve = DeviceFlags.resolve if cluster is None else resolve_on_cluster
    trials = read_sweep(sweep_file(file, table=GRID), resolve=resolve)
    if dry_run:
        records = _records(results, anywhere=cluster is not None)
        _show(trials, records, {}, todo={each.id for each in to_run(trials, records, statuses)})
        return 0
    if cluster is not None:
        check_answers(cluster)
    check_writable(results)
    with sole_sweep(results):
        records = _records(results, anywhere=cluster is not None)
        todo = to_run(trials, records, statuses)
        jobs = _lowered(jobs, todo) if cluster is None else jobs
        watch = _Watch(todo, results, verbose)
        how: dict[str, Any] = {"jobs": jobs, "watch": watch, "command_line": command_line}
        stopped = False
        try:
            live = cluster is None and jobs == 1 and bool(todo)
            with reporting() if live else nullcontext() as watch.reporter:
                if cluster is None:
                    run_locally(todo, known=results / KNOWN_FOLDER, **how)
                elif todo:
                    run_on_cluster(todo, address=cluster, **how)
        except KeyboardInterrupt:
            stopped = True
            done = f"{len(watch.ends)} of {len(todo)} trials had finished"
            say(f"stopped; {done}: the same command goes on from there")
        except MemtradeError:  # such as a full disk: what was measured is said at least
            if watch.ends:
                _show(trials, records, watch.ends, todo=set())
            raise
        _show(trials, records, watch.ends, todo=set())
    kinds = {end.status if isinstance(end, Record) else end.kind for end in watch.ends.values()}
    failed = 1 if kinds & {*FAILED, "refused", "lost"} else 3 if "infeasible" in kinds else 0
    return 130 if stopped else failed


def _records(folder: Path, *, anywhere: bool) -> dict[str, Record]:
    """The records of the folder by id; damaged ones are named, and their trials run again.

    Of a cluster's nodes, whose CPUs differ, a record counts `anywhere`: by the id that the trial
    would have here, if the versions are the same.
    """
    if not folder.is_dir():
        return {}
    with warnings_on_stderr():
        records = load_records(folder)
    found = {record.id: record for record in records}
    if anywhere:
        here = describe_machine()
        found |= {
            trial_id(record.spec, here): record
            for record in records
            if record.machine.versions == here.versions
        }
    return found


def _lowered(jobs: int, todo: Sequence[Trial]) -> int:
    """How many jobs are possible; says so where it is fewer, and what several jobs mean."""
    fits, why = jobs_that_fit(min(jobs, max(len(todo), 1)), [trial.spec for trial in todo])
    if why:
        say(f"--jobs lowered from {jobs} to {fits}: {why}")
    if fits > 1:
        say(
            f"{fits} trials at a time disturb each other's step times; peaks are not touched. "
            "Records say it; --retry parallel measures them again, one at a time"
        )
    return fits


class Pace:
    """How long the rest of a sweep will take, by the trials that have ended.

    A trial is taken to last as long as those of the same step did on average, or as all did. How
    many run at a time shows in how much time they took together.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def took(self, trial: Trial, seconds: float) -> None:
        self._seconds[trial.step].append(seconds)

    def left_seconds(self, trials: Sequence[Trial], elapsed_seconds: float) -> float:
        """For `trials`, where those that ended took `elapsed_seconds` of real time; one has."""
        ended = [seconds for each in self._seconds.values() for seconds in each]
        alike = [fmean(self._seconds.get(trial.step, ended)) for trial in trials]
        return elapsed_seconds * sum(alike) / sum(ended)

    def text(self, trials: Sequence[Trial]) -> str:
        """ "about 12 min left", "" if nothing is."""
        if not trials:
            return ""
        left = self.left_seconds(trials, time.monotonic() - self._began)
        return f"about {duration(left)} left"


def duration(value: float) -> str:
    """Seconds in the unit that suits them.

    >>> duration(44.2), duration(750), duration(9000)
    ('44 s', '12 min', '2 h 30 min')
    """
    minutes = round(value / 60)
    if value < 90:
        return f"{value:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@dataclass
class _Watch:
    """Saves records as trials end, and says on stderr how far the sweep is.

    With a reporter, which is for one trial at a time, it also says what the trial is doing.
    """

    todo: Sequence[Trial]
    results: Path
    verbose: bool
    reporter: Reporter | None = None
    ends: dict[str, End] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    begun: int = 0

    def note(self, text: str) -> None:
        say(text)

    def started(self, trial: Trial) -> None:
        self.begun += 1
        if self.reporter is not None:
            self.reporter.trial(self.begun, len(self.todo), trial.label)

    def event(self, event: Event) -> None:
        if self.reporter is not None:
            self.reporter.event(event)

    def log(self, line: str) -> None:
        if self.verbose:
            log(line)

    def ended(self, trial: Trial, end: End, seconds: float) -> None:
        text = outcome_text(end)
        self.ends[trial.id] = end
        if isinstance(end, Record):
            self.pace.took(trial, seconds)
            left = self.pace.text([each for each in self.todo if each.id not in self.ends])
            text = "; ".join(filter(None, (text, left)))
        if self.reporter is not None:
            self.reporter.ended(text)
        else:
            print(f"[{len(self.ends)}/{len(self.todo)}] {trial.label}: {text}", file=sys.stderr)
        if isinstance(end, Record):
            save_record(end, self.results)  # last: a full disk leaves what was said

    def again(self, trial: Trial, why: str) -> None:
        self.note(f"{trial.label}: {why}; it will run again")


def outcome_text(end: End) -> str:
    """A trial's end in a few words."""
    return in_short(end) if isinstance(end, Record) else f"{end.kind}: {end.reason}"


def _show(
    trials: Sequence[Trial],
    records: Mapping[str, Record],
    ends: Mapping[str, End],
    *,
    todo: Container[str],
) -> None:
    """One row per trial of the sweep, and how many became what."""
    rows: list[tuple[Trial, str, End | None]] = [
        (trial, *_became(ends.get(trial.id), records.get(trial.id), will_run=trial.id in todo))
        for trial in trials
    ]
    counts = Counter(became for _, became, _ in rows)
    many = ", ".join(f"{count} {became}" for became, count in counts.most_common())
    unmeasured = [(trial, shown) for trial, _, shown in rows if shown and not _measured(shown)]
    sheet = Sheet.of(
        rows,
        [
            ("step", lambda row: row[0].step),
            ("strategy", lambda row: row[0].strategy),
            ("what became of it", lambda row: row[1]),
            ("limit", lambda row: row[0].limit),
            ("peak MB", lambda row: cell(lambda m: megabytes(m.peak_bytes), _measured(row[2]))),
            ("step s", lambda row: cell(lambda m: seconds(m.median_seconds), _measured(row[2]))),
        ],
        title="Trials",
        words=3,
        weak=lambda row: row[2] is not None and _measured(row[2]) is None,
        notes=(
            *(f"{trial.label}: {outcome_text(shown)}" for trial, shown in unmeasured),
            f"{plural([len(trials)], 'trial')}: {many}",
        ),
    )
    show([sheet])


def _measured(end: End | None) -> Measured | None:
    return end.measured if isinstance(end, Record) else None


def _became(end: End | None, before: Record | None, *, will_run: bool) -> tuple[str, End | None]:
    """What became of a trial, and the end that tells more."""
    if isinstance(end, NoRecord):
        return end.kind, end
    if end is not None:
        return ("ran" if end.status == "ok" else f"ran: {status_text(end.status)}"), end
    if before is None:
        return "to run", None
    status = status_text(before.status)
    if will_run:
        return f"to run again: {status}", None
    return ("skipped" if before.status == "ok" else f"skipped: {status}"), before
