"""`memtrade.largest_batch`: the largest batch that a training step of one's own carries.

    make_batch(n) ─► trace at two sizes ─► graph at any size ─► plan, simulate ─► guess
                                                                                   │
    the step at n, in a file ─► child under a hard limit ─► runs, or does not ◄────┘  at most thrice

What is found has run, in a process of its own, so that running out of memory is an answer and not
the end of the user's.
"""

import dataclasses
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memtrade.errors import MemtradeError, UnsupportedGraphError, sizes_apart
from memtrade.measure import host
from memtrade.measure.foreseen import Foreseen
from memtrade.measure.here import BatchTargets
from memtrade.measure.max_batch import SHORT_OF_MEMORY, BatchSearch, Bound, Obstacle
from memtrade.measure.protocol import Status, TrialSpec
from memtrade.measure.records import Record
from memtrade.measure.step_trial import try_step
from memtrade.options import Value
from memtrade.plan import Order
from memtrade.rebatch import Rebatcher
from memtrade.search import Found
from memtrade.settings import ORIGINAL, Settings, check_count, memory_bytes, settings_of
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import use_of_memory
from memtrade.strategies import find_planned, make_options
from memtrade.strategies.base import clock_of
from memtrade.target import ARENA
from memtrade.tf.calling import as_function, step_to_read
from memtrade.tf.extract import trace_concrete
from memtrade.tf.loss import Named
from memtrade.tf.replicas import parts_of
from memtrade.tf.step import TrainStep
from memtrade.tf.structure import arguments_of
from memtrade.units import megabytes

log = logging.getLogger("memtrade")

# A batch that is larger by no more than this share may be missed, so that few trials do.
TOLERANCE = 0.03
TRIALS = 3

# TensorFlow itself takes 2 MiB of an arena.
_LEAST_BYTES = 4 << 20

# Of the sizes that a batch may have, the two that are traced.
_TRACED = (2, 3)

# Where small batches have zeros as constants, which larger ones make by ops, it and the one below.
_LARGER = 128

# A guess from the programme of a strategy is off by a few times this part, as a rule.
_CLOSE = 24


class NoBatchFitsError(MemtradeError):
    """Not even the smallest batch runs. Carries what that needs, in bytes."""

    def __init__(self, message: str, *, needed_bytes: int, budget_bytes: int):
        self.needed_bytes, self.budget_bytes = needed_bytes, budget_bytes
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class TriedBatch:
    """One batch size that was tried; `peak_bytes` where it ran."""

    batch_size: int
    status: Status
    reason: str = ""
    peak_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """What `largest_batch` found.

    Attributes:
        peak_bytes: of the step at `batch_size`: measured by a trial, or predicted without one.
        bound: what is in the way of a larger one. reason: the same in one line.
        trials: in the order in which they ran.
        strategy, options: what `apply` and `optimize` take to make the same plan.
    """

    batch_size: int
    peak_bytes: int
    budget_bytes: int
    bound: Bound
    reason: str
    trials: tuple[TriedBatch, ...]
    strategy: str
    options: dict[str, Any]


def largest_batch(
    train_step: Callable[..., Any],
    make_batch: Callable[[int], Any],
    strategy: str = "ome",
    *,
    budget: str | int | None = None,
    most: int | None = None,
    multiple_of: int = 1,
    trials: int = TRIALS,
    loss: Named = None,
    order: Order = "pinned",
    device: str | None = None,
    profile: str | None = None,
    **options: Value,
) -> LargestBatch:
    """The largest batch whose step, rewritten by a strategy, runs within a budget.

    The simulator says where it lies, and trials in child processes under a hard limit decide: the
    batch found has run, and one that is 3% larger has not. The step is only traced here; weights,
    and whatever else it changes, stay as they are.

    Args:
        train_step: as `memtrade.apply` takes it.
        make_batch: from a number of examples to a batch, as `memtrade.apply` takes an example:
            tensors, arrays or, which costs nothing, `tf.TensorSpec`s.
        strategy: see `memtrade.apply`. "auto" is `optimal` here, for at the largest batch nothing
            else fits.
        budget: what the step may take; by default the device's memory.
        most: the largest batch that may be asked for.
        multiple_of: only multiples of it are.
        trials: how many may be run; 0 takes the prediction. So does a profile, and with a warning a
            GPU of which this process holds the memory.
        loss: see `memtrade.apply`; so for all that follow.
        order: "pinned" or "dataflow".
        device: that the step runs on.
        profile: that plans are made for.
        **options: the strategy's.

    Raises:
        NoBatchFitsError: not even the smallest batch fits; the message says what it needs.
        UnsupportedGraphError: the step cannot be rewritten, or not be run in another process.
    """
    check_count("multiple_of", multiple_of)
    check_count("most", most, optional=True)
    check_count("trials", trials, least=0)
    if most is not None and most < multiple_of:
        raise MemtradeError(f"most is at least multiple_of, {multiple_of}, not {most}")
    if not callable(make_batch):
        raise MemtradeError(
            "make_batch is a function from a number of examples to a batch, such as "
            f"lambda n: tf.TensorSpec([n, 8]), not {make_batch!r}"
        )
    _check_takes_a_number(make_batch)
    settings = settings_of(
        strategy, budget=budget, order=order, device=device, profile=profile, **options
    )
    return _Search(
        as_function(train_step), make_batch, settings, loss, multiple_of, most, trials
    ).run()


def _check_takes_a_number(make_batch: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(make_batch)
    except ValueError:  # a function without one to ask
        return
    try:
        signature.bind(1)
    except TypeError as error:
        raise MemtradeError(
            "make_batch is a function of one argument, the number of examples, not one of "
            f"{signature}: {error}"
        ) from None


@dataclass(frozen=True)
class _Search:
    """One search: the step at sizes that were traced, and what trials say."""

    function: Any
    make_batch: Callable[[int], Any]
    settings: Settings
    loss: Named
    unit: int
    most: int | None
    trials: int
    records: dict[int, Record] = field(default_factory=dict)

    def run(self) -> LargestBatch:
        limit_bytes = self.settings.budget_bytes
        if limit_bytes is None:
            limit_bytes = memory_bytes(self.settings.device_name, self.settings.target)
        limit_bytes = self._whole(limit_bytes)
        target = self.settings.target.replace(limit_bytes=limit_bytes)
        rebatcher = self._rebatcher([self.unit * each for each in _TRACED])
        targets = BatchTargets(target, rebatcher, environment=os.environ, unit=self.unit)
        start = self._start(targets, limit_bytes)
        if rebatcher.grows_constants and start > self.unit * _TRACED[-1]:
            size = min(start // self.unit, _LARGER) * self.unit
            rebatcher = self._rebatcher([size, size - self.unit])
            targets = BatchTargets(target, rebatcher, environment=os.environ, unit=self.unit)
        chosen, options = self.settings.strategy.name, self._options()
        if self.settings.automatic and start == self.most:
            chosen, options = ORIGINAL, {}  # all that may be asked for fits as it is
        guess = self._guess(targets, limit_bytes, chosen, start)
        search = BatchSearch(
            TrialSpec(
                model_options={"batch_size": self.unit},
                strategy=chosen,
                strategy_options=options,
                order=target.order,
                device=self.settings.device_name,
                memory_limit_bytes=limit_bytes,
                steps=1,
            ),
            rebatcher,
            target,
            None,
            target_at=targets.at,
            start=guess or start,
            stride=guess // _CLOSE if guess else None,
            on_plan=lambda batch: log.info("a batch of %d is planned", batch),
            step=self.unit,
            most=self.most,
            within=TOLERANCE,
            trials=self.trials,
        )
        if self._can_try(limit_bytes):
            search.measure = self._measure
        found = search.run()
        if not found.batch:
            self._refuse_trials(search)
            raise self._none_fits(targets, limit_bytes)
        return self._outcome(search, found, limit_bytes)

    def _whole(self, limit_bytes: int) -> int:
        """Trials have limits of whole MiB, and of a few at least."""
        if self.trials and limit_bytes < _LEAST_BYTES:
            least, limit = sizes_apart(_LEAST_BYTES, limit_bytes)
            raise MemtradeError(
                f"trials have a budget of at least {least}, not {limit}: give more, or "
                "largest_batch trials=0 for a prediction"
            )
        return limit_bytes >> 20 << 20 if self.trials else limit_bytes

    def _options(self) -> dict[str, Any]:
        """The strategy's, but for the budget: a search has its own margins below the limit."""
        options = dataclasses.asdict(self.settings.options)
        return options | {"budget": ""} if "budget" in options else options

    def _traced(self, batch: int) -> tuple[TrainStep, Any]:
        example = arguments_of(self.function, self.make_batch(batch))
        return step_to_read(self.function, example, self.loss)

    def _rebatcher(self, sizes: Sequence[int]) -> Rebatcher:
        traces = [trace_concrete(*self._traced(size)) for size in sizes]
        if len(parts_of(traces[0])) > 1:
            raise UnsupportedGraphError(
                "the step runs on several devices, and a largest batch is found for one: search "
                "with a replica's own step, and give memtrade.apply so many for each"
            )
        first, second = (traced.graph for traced in traces)
        shapes = [[graph.tensors[t].shape for t in graph.data.inputs] for graph in (first, second)]
        if shapes[0] == shapes[1]:
            raise MemtradeError(
                f"make_batch({sizes[0]}) and make_batch({sizes[1]}) give batches of the same "
                "shapes, so none is the largest: make as many examples as it is asked for"
            )
        return Rebatcher(first, sizes[0], second, sizes[1])

    def _start(self, targets: BatchTargets, limit_bytes: int) -> int:
        """The largest batch of the step as it is, on a line through its peaks at two sizes."""
        sizes = [self.unit * 8, self.unit * 16]
        peaks = [clock_of(*targets.step(size)).original_bytes for size in sizes]
        return self._on_line(sizes, peaks, limit_bytes)

    def _on_line(self, sizes: Sequence[int], peaks: Sequence[float], limit_bytes: int) -> int:
        """The batch whose peak is at the limit, on a line through two."""
        each_bytes = max((peaks[1] - peaks[0]) / (sizes[1] - sizes[0]), 1.0)
        batch = sizes[0] + int((limit_bytes - peaks[0]) / each_bytes)
        return min(max(batch, self.unit), self.most or sys.maxsize)

    def _guess(
        self, targets: BatchTargets, limit_bytes: int, strategy: str, start: int
    ) -> int | None:
        """Where a strategy that tells its smallest peak soon has it at the limit, on a line through
        two sizes; None where nothing tells it."""
        about = find_planned(strategy).about
        low = start // self.unit * self.unit
        if about is None or not low:
            return None
        options = make_options(strategy, self._options())
        sizes = low, 2 * low
        steps = map(targets.step, sizes)
        peaks = [about(graph, options, target) for graph, target in steps]
        return self._on_line(sizes, peaks, limit_bytes)

    def _can_try(self, limit_bytes: int) -> bool:
        name = self.settings.device_name
        if not self.trials or not self.settings.target.here:
            return False
        if name == ARENA:
            return True
        free = [card.free_bytes for card in host.gpus() if f"gpu:{card.index}" == name]
        if free and free[0] is not None and free[0] >= limit_bytes:
            return True
        warnings.warn(
            f"no batch is tried: {name} has less free than {megabytes(limit_bytes)} MB, which this "
            "process may hold itself. The batch is predicted. For trials, call "
            "tf.config.experimental.set_memory_growth(gpu, True) before TensorFlow uses the GPU",
            stacklevel=5,
        )
        return False

    def _measure(self, spec: TrialSpec, foreseen: Foreseen | None) -> Record:
        batch = spec.model_options["batch_size"]
        step, concrete = self._traced(batch)
        record = try_step(spec, concrete, step.specs, loss=self.loss, foreseen=foreseen)
        self.records[batch] = record
        return record

    def _outcome(
        self, search: BatchSearch, found: Found[Obstacle], limit_bytes: int
    ) -> LargestBatch:
        candidate = search.candidate(found.batch)
        assert candidate.predicted is not None
        record = self.records.get(found.batch)
        measured = record.measured if record else None
        options = {
            name: value
            for name, value in candidate.spec.strategy_options.items()
            if value != dataclasses.asdict(make_options(candidate.spec.strategy))[name]
        }
        return LargestBatch(
            batch_size=found.batch,
            peak_bytes=measured.peak_bytes if measured else candidate.predicted.peak_bytes,
            budget_bytes=limit_bytes,
            bound=found.why.bound if found.why else "asked maximum",
            reason=found.why.reason if found.why else "",
            trials=tuple(_trial(batch, record) for batch, record in self.records.items()),
            strategy=candidate.spec.strategy,
            options=options,
        )

    def _refuse_trials(self, search: BatchSearch) -> None:
        """Raises MemtradeError where trials ended otherwise than for want of memory, or went on
        failing below what was predicted to fit."""
        if not self.records:
            return
        batch, last = list(self.records.items())[-1]
        if last.status not in SHORT_OF_MEMORY:
            raise MemtradeError(f"a batch of {batch} could not be tried: {last.reason}")
        predicted = search.predicted.batch if search.predicted else 0
        if batch > self.unit:
            raise MemtradeError(
                f"a batch of {predicted} was predicted to fit, and in {len(self.records)} trials "
                f"not even {batch} ran: {last.reason}. Give a smaller budget or more trials"
            )

    def _none_fits(self, targets: BatchTargets, limit_bytes: int) -> NoBatchFitsError:
        """What the smallest batch needs at least, and for whom."""
        graph, target = targets.step(self.unit)
        strategy = self.settings.strategy
        options = make_options(strategy.name, self._options())
        usage = use_of_memory(TimeSimulator(graph, target), strategy.plan(graph, options, target))
        limit, peak = sizes_apart(limit_bytes, usage.peak_bytes)
        return NoBatchFitsError(
            f"no batch fits {limit}: at batch {self.unit}, the smallest peak of "
            f"{strategy.name} is {peak}, of which {usage.held_text}. "
            "Give a larger budget, another strategy or a smaller model",
            needed_bytes=usage.peak_bytes,
            budget_bytes=limit_bytes,
        )


def _trial(batch: int, record: Record) -> TriedBatch:
    peak_bytes = record.measured.peak_bytes if record.measured else None
    return TriedBatch(
        batch_size=batch, status=record.status, reason=record.reason, peak_bytes=peak_bytes
    )
