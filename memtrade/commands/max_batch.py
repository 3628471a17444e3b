"""`memtrade max-batch`: the largest batch whose step runs under a memory limit, per strategy."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memtrade.commands.progress import Reporter, extract_graph, reporting, say, watched
from memtrade.commands.reading import warnings_on_stderr
from memtrade.commands.run import in_short, refuse_small_limit
from memtrade.commands.screen import Form, check_form, show, show_json
from memtrade.errors import MemtradeError
from memtrade.measure.environment import default_limit_bytes
from memtrade.measure.flags import CommandLine, Flag, StepFlags, Verbose, check_writable, make_specs
from memtrade.measure.foreseen import Foreseen, told
from memtrade.measure.here import BatchTargets, here_target
from memtrade.measure.host import describe_machine
from memtrade.measure.max_batch import BatchSearch, MaxBatchRecord, make_max_batch_record
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import Record, load_records, make_record, save_record, trial_id
from memtrade.models import make_model
from memtrade.options import PARTS
from memtrade.rebatch import Rebatcher
from memtrade.results.max_batches import searches_sheet
from memtrade.results.words import strategy_label
from memtrade.strategies import PLANNED

# The batch sizes, in units, of the two traces from which all other graphs are made.
_TRACED_UNITS = (2, 3)

# How a trial can have ended for it not to be run again. Others depend on the moment.
_SETTLED = ("ok", "out_of_memory", "infeasible", "unsupported")


def max_batch(
    *,
    step: StepFlags = StepFlags(),
    start: int | None = None,
    granularity: int | None = None,
    max_batch_size: int | None = None,
    steps: int = 1,
    warmup: int = 1,
    results: Path = Path("runs"),
    format: Form = "terminal",
    json: Flag = False,
    verbose: Verbose = False,
    command_line: CommandLine = "",
) -> int:
    """Find the largest batch that each strategy carries under a memory limit.

    The simulator says where it lies; trials confirm the last size that runs and the first that
    does not. It begins at --start: plans for large batches take time, so a start near the answer
    saves much of it. Strategies that plan for a budget plan anew at each size. A trial that would
    take more of this machine's memory than is safe is not started, and bounds the batch as well.
    Trials that the folder of records holds are not run again; Ctrl-C keeps what has finished.
    Unless --strategy is given, it is original,checkpoints,lms,ome; all means those that make plans.

    Parameters
    ----------
    start
        The batch size where the simulator begins; the answer may be above or below. Unless given:
        the largest that was found for the strategies before, or --batch-size for the first.
    granularity
        Ask only for multiples of this batch size; 1, or with --split the number of parts.
    max_batch_size
        Ask for no more than this.
    steps
        Counted steps of each trial.
    warmup
        Steps before those.
    results
        The folder for the records: one JSON file per trial and one per search.
    format
        csv has bytes and seconds.
    json
        Print the searches to stdout as JSON, and no table.
    """
    check_form(format, json)
    names = step.strategy.names(everything=PLANNED)
    specs = make_specs(step, task="measure", names=names, steps=steps, warmup=warmup)
    check_writable(results)
    first = specs[0]
    # Parts of other sizes are other graphs: those of one are had from another where all divide.
    unit = PARTS if first.split else 1
    granularity = unit if granularity is None else granularity
    _check_sizes(start, granularity, max_batch_size, unit)
    # Sizes that no model takes are told before anything is traced.
    make_model(first.model, first.model_options | {"batch_size": start or unit})
    target = here_target(first.device, order=first.order, limit_bytes=first.memory_limit_bytes)
    seconds = step.device.timeout
    planning = any(name in PLANNED for name in names)
    rebatcher = _trace(first, unit, seconds, verbose) if planning else None
    targets = BatchTargets(target, rebatcher, unit=unit) if rebatcher else None
    searches: list[MaxBatchRecord] = []
    with reporting() as reporter:
        trials = _Trials(results, reporter, seconds, command_line, verbose)
        with contextlib.suppress(KeyboardInterrupt):
            for position, spec in enumerate(specs, start=1):
                trials.head = (position, len(specs), strategy_label(spec))
                planned = rebatcher if spec.strategy in PLANNED else None
                largest = max((each.batch_size for each in searches), default=0)
                search = BatchSearch(
                    spec,
                    planned,
                    target,
                    trials.measure,
                    target_at=targets and targets.at,
                    start=start or (largest if planned else 0) or None,
                    on_plan=trials.planning,
                    step=granularity,
                    most=max_batch_size,
                )
                searches.append(trials.searched(search))
    stopped = len(searches) < len(specs)
    if stopped:
        done = f"{len(searches)} of {len(specs)} searches had finished; their trials are kept"
        say(f"stopped; {done}")
    if json:
        show_json(searches)
    elif searches:
        show([searches_sheet(searches, trials.records)], format)
    return 130 if stopped else int(any(search.bound == "crash" for search in searches))


def _check_sizes(start: int | None, step: int, most: int | None, unit: int) -> None:
    """Raises MemtradeError for batches that there are not: plans are for multiples of `unit`."""
    if step < 1:
        raise MemtradeError(f"--granularity must be at least 1, not {step}")
    if step % unit:
        raise MemtradeError(
            f"--granularity must be a multiple of {unit}, the number of parts of --split, "
            f"not {step}"
        )
    if start is not None and start < 1:
        raise MemtradeError(f"--start must be at least 1, not {start}")
    if most is not None and most < step:
        raise MemtradeError(
            f"--max-batch-size must be at least the granularity of {step}, not {most}"
        )


def _trace(spec: TrialSpec, unit: int, timeout_seconds: float, verbose: bool) -> Rebatcher:
    """The step at any batch size.

    Raises:
        MemtradeError: not even the variables fit under the limit.
    """
    graphs = []
    batches = [unit * count for count in _TRACED_UNITS]
    # The graph is there even where it cannot run.
    roomy = msgspec.structs.replace(spec, task="extract", memory_limit_bytes=default_limit_bytes())
    for batch in batches:
        options = spec.model_options | {"batch_size": batch}
        traced = msgspec.structs.replace(roomy, model_options=options)
        graphs.append(extract_graph(traced, timeout_seconds=timeout_seconds, verbose=verbose))
    assert spec.memory_limit_bytes is not None
    refuse_small_limit(graphs[0], spec.memory_limit_bytes)
    return Rebatcher(graphs[0], batches[0], graphs[1], batches[1])


@dataclass
class _Trials:
    """Runs trials, or finds them among the records, and says on stderr what happens."""

    folder: Path
    reporter: Reporter
    timeout_seconds: float
    command_line: str
    verbose: bool
    head: tuple[int, int, str] = (1, 1, "")

    def __post_init__(self) -> None:
        with warnings_on_stderr():
            known = load_records(self.folder) if self.folder.is_dir() else []
        self._by_id = {record.id: record for record in known}
        self._machine = describe_machine()

    @property
    def records(self) -> list[Record]:
        return list(self._by_id.values())

    def planning(self, batch: int) -> None:
        self._begin(batch, "simulate")

    def measure(self, spec: TrialSpec, foreseen: Foreseen | None) -> Record:
        self._begin(spec.model_options["batch_size"])
        known = self._by_id.get(trial_id(spec, self._machine))
        if known is not None and known.status in _SETTLED:
            self.reporter.ended(f"{in_short(known)} (ran before)")
            return known
        with told(spec, foreseen) as asked:
            outcome = watched(
                asked, self.reporter, timeout_seconds=self.timeout_seconds, verbose=self.verbose
            )
        record = make_record(spec, outcome, command=self.command_line)
        self.reporter.ended(in_short(record))
        save_record(record, self.folder)
        self._by_id[record.id] = record
        return record

    def searched(self, search: BatchSearch) -> MaxBatchRecord:
        found = make_max_batch_record(search, search.run(), command=self.command_line)
        self._begin(found.batch_size, f"the largest, bound by {found.bound}")
        save_record(found, self.folder)
        return found

    def _begin(self, batch: int, phase: str = "start") -> None:
        position, of, label = self.head
        self.reporter.trial(position, of, f"{label}, batch {batch}", phase=phase)
