"""The largest batch of one strategy: where the simulator says it lies, and what trials say of it.

A strategy with a plan is planned anew for each batch size, from a graph that is made without
tracing (`memtrade.rebatch`), and simulated: that gives the search its guess. Then trials decide,
each in a child process as any other. A strategy without a plan has no guess but the batch size
that was asked for.

Strategies that plan for a budget get the memory limit, less a margin for what the simulator does
not know. No trial is started that would take more host memory than is safe.

Where a batch that is a little larger may be missed (`within`), few trials have to do: predictions
take what plans are found soon (`Strategy.near`), and a trial that takes more than was predicted
leaves that much free in the plans after it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec

from memtrade.errors import InfeasibleBudgetError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.measure import host
from memtrade.measure.foreseen import Foreseen
from memtrade.measure.protocol import Status, TrialSpec
from memtrade.measure.records import MAX_BATCH_PREFIX, AnyRecord, Record
from memtrade.models import options_of
from memtrade.plan import Plan
from memtrade.rebatch import Rebatcher
from memtrade.search import Found, largest
from memtrade.simulate.predict import Predicted, Predictor
from memtrade.strategies import PLANNED, find_strategy, make_options
from memtrade.target import Target
from memtrade.units import megabytes

Bound = Literal[
    "device memory", "host memory", "no plan", "time limit", "crash", "unsupported", "asked maximum"
]
_BOUND_OF: dict[Status, Bound] = {
    "out_of_memory": "device memory",
    "out_of_host_memory": "host memory",
    "infeasible": "no plan",
    "timeout": "time limit",
    "crashed": "crash",
    "unsupported": "unsupported",
}

# How a trial ends that a smaller batch may not: a budget that a step breaks is "infeasible", too.
SHORT_OF_MEMORY: frozenset[Status] = frozenset(
    {"out_of_memory", "out_of_host_memory", "infeasible"}
)

# Of the limit, what a budget leaves free, tried in this order until the plan fits when simulated: a
# pinned plan's peak is known to a few parts in 10,000 (results/measured), but holes between the
# pieces in use can keep a request from fitting where their sum would do.
_MARGINS = {"pinned": (0.001, 0.02, 0.05, 0.1, 0.15, 0.2), "dataflow": (0.02, 0.05, 0.1, 0.15)}

# The same where a batch that is a little larger may be missed: plans are asked for that are found
# soon, so more budgets are tried, from the whole limit on.
_FINE = {"pinned": (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05), "dataflow": _MARGINS["dataflow"]}

# The same for a batch that is about to be tried, where no plan that is found soon fits: the
# strategy looks as long as it takes.
_FAR = (0.0, 0.02)

# What a trial without room is taken to have lacked, at least, as a share of the limit.
_LACKED = 0.005


@dataclass(frozen=True)
class Obstacle:
    """What keeps a batch size from running."""

    bound: Bound
    reason: str


@dataclass(frozen=True)
class Candidate:
    """A batch size before it is tried; `predicted` and `foreseen` (the plan, and its graph) are
    None without a plan."""

    spec: TrialSpec
    predicted: Predicted | None = None
    obstacle: Obstacle | None = None
    foreseen: Foreseen | None = None

    @property
    def is_foreseen(self) -> bool:
        """Whether the prediction is that it runs."""
        return self.predicted is not None and self.predicted.fits

    @property
    def is_refused(self) -> bool:
        """Whether the step cannot be planned at all."""
        return self.obstacle is not None and self.obstacle.bound != "no plan"


class Tried(msgspec.Struct, frozen=True):
    """One trial of a search: the record is among the others under this id."""

    batch_size: int
    id: str
    status: Status


@dataclass
class BatchSearch:
    """The search for one strategy. `run` does it.

    Attributes:
        base: a trial; the search begins at its batch size unless `start` is given.
        rebatcher: of the model; None for a strategy without a plan.
        target: of the device, with the limit.
        target_at: makes the target for the step at a batch size; None takes `target` for all.
        measure: runs a trial by the plan that was foreseen, or finds the record of one that has
            run; None: predictions decide.
        start: the batch size where predictions begin, or trials where there are none.
        on_plan: called with each batch size before it is planned and simulated.
        step: only multiples of it are asked for.
        most: the largest batch size that may be asked for.
        stride: from `start` to the second prediction; None is a quarter of `start`.
        within: a batch that is larger by no more than this share may be missed.
        trials: the most that may be run.
        spare_bytes: of the limit, what plans leave free, as trials took so much more than was
            predicted.
    """

    base: TrialSpec
    rebatcher: Rebatcher | None
    target: Target
    measure: Callable[[TrialSpec, Foreseen | None], Record] | None
    target_at: Callable[[int, StepGraph], Target] | None = None
    start: int | None = None
    stride: int | None = None
    on_plan: Callable[[int], None] = lambda batch: None
    step: int = 1
    most: int | None = None
    within: float = 0.0
    trials: int | None = None
    free_bytes: Callable[[], int] = host.free_memory_bytes
    tried: list[Tried] = field(default_factory=list)
    predicted: Found[Obstacle] | None = None
    spare_bytes: int = 0
    _candidates: dict[int, Candidate] = field(default_factory=dict)

    def run(self) -> Found[Obstacle]:
        """The answer, by trials, but for sizes without a plan and those not safe to try."""
        guess = self.start or self.base.model_options["batch_size"]
        if self.rebatcher is not None:
            self.predicted = largest(
                self._foreseen,
                guess=guess,
                step=self.step,
                most=self.most,
                # Planning takes time: no small steps.
                stride=max((self.stride or guess // 4) // self.step, 1),
                within=self.within / 2,
            )
            guess = self.predicted.batch
            if self.measure is None:
                return self.predicted
        return largest(
            self._met,
            guess=guess,
            step=self.step,
            most=self.most,
            stride=max(int(guess * self.within) // self.step, 1),
            within=self.within,
            spent=lambda: len(self.tried) == self.trials,
        )

    def _foreseen(self, batch: int) -> Obstacle | None:
        candidate = self.candidate(batch)
        predicted = candidate.predicted
        if predicted is not None and not predicted.fits:
            peak = predicted.peak_text
            return Obstacle("device memory", f"the predicted peak is {peak} MB")
        return candidate.obstacle or self._host_obstacle(candidate)

    def _met(self, batch: int) -> Obstacle | None:
        candidate = self._surest(batch)
        obstacle = candidate.obstacle or self._host_obstacle(candidate)
        if obstacle is not None:
            return obstacle
        assert self.measure is not None
        record = self.measure(candidate.spec, candidate.foreseen)
        self.tried.append(Tried(batch, record.id, record.status))
        if self.within and candidate.predicted is not None:
            self._learn(candidate.predicted, record)
        if record.status == "ok":
            return None
        return Obstacle(_BOUND_OF[record.status], record.reason)

    def _learn(self, predicted: Predicted, record: Record) -> None:
        """Few trials are left: later plans leave as much free as this one took above what was
        predicted or, where it had no room, must have lacked."""
        limit_bytes = self.target.limit_bytes
        lacked = 0
        if record.measured is not None:
            lacked = record.measured.peak_bytes - predicted.peak_bytes
        elif record.status == "out_of_memory" and predicted.fits:
            lacked = int((1 + _LACKED) * limit_bytes) - predicted.peak_bytes
        if lacked > self.spare_bytes:
            self.spare_bytes = lacked
            ran = {each.batch_size for each in self.tried if each.status == "ok"}
            self._candidates = {b: c for b, c in self._candidates.items() if b in ran}

    def _surest(self, batch: int) -> Candidate:
        """The batch as it will be tried: what is found soon says little of what there is."""
        soon = self.candidate(batch)
        if self._near is None or soon.is_foreseen or soon.is_refused:
            return soon
        far = self._make_candidate(batch, far=True)
        if far.is_foreseen or soon.predicted is None:
            self._candidates[batch] = far
        return self._candidates[batch]

    def candidate(self, batch: int) -> Candidate:
        if batch not in self._candidates:
            self.on_plan(batch)
            self._candidates[batch] = self._make_candidate(batch)
        return self._candidates[batch]

    def _make_candidate(self, batch: int, *, far: bool = False) -> Candidate:
        options = self.base.model_options | {"batch_size": batch}
        spec = msgspec.structs.replace(self.base, model_options=options)
        if self.rebatcher is None:
            return Candidate(spec)
        graph = self.rebatcher.at(batch)
        target = self.target_at(batch, graph) if self.target_at else self.target
        predictor = Predictor(graph, target)
        spec = with_default(spec, "host_memory_limit", _words(self._host_limit_bytes()))
        candidate = Candidate(spec)
        limit_bytes = self.target.limit_bytes - self.spare_bytes
        near = None if far else self._near
        make = near or PLANNED[spec.strategy].plan
        for margin in _FAR if far else (_FINE if self.within else _MARGINS)[spec.order]:
            budget_bytes = int(limit_bytes * (1 - margin))
            before = candidate.predicted
            if self.within and before is not None and before.peak_bytes <= budget_bytes:
                continue  # it would be the same plan
            budgeted = with_default(spec, "budget", _words(budget_bytes))
            if budgeted is not spec:
                budgeted = msgspec.structs.replace(budgeted, leaves_margin=True)
            try:
                typed = make_options(budgeted.strategy, budgeted.strategy_options)
                plan = make(graph, typed, target)
            except InfeasibleBudgetError as error:
                if candidate.predicted is not None:
                    break  # there is a plan, for the larger budget: a trial may tell
                why = str(error)
                if near is not None:  # it has not looked for the smallest peak
                    why = f"no plan was found within {megabytes(budget_bytes)} MB"
                return Candidate(budgeted, obstacle=Obstacle("no plan", why))
            except UnsupportedGraphError as error:
                return Candidate(budgeted, obstacle=Obstacle("unsupported", str(error)))
            predicted = predictor.predict(plan)
            candidate = Candidate(budgeted, predicted, foreseen=(plan, graph))
            if (predicted.fits and predicted.peak_bytes <= limit_bytes) or budgeted is spec:
                break
        return candidate

    @property
    def _near(self) -> Callable[[StepGraph, Any, Target], Plan] | None:
        """How plans are found soon, where a batch that is a little larger may be missed."""
        planned = PLANNED.get(self.base.strategy)
        return planned.near if planned and self.within else None

    def _host_limit_bytes(self) -> int:
        """What swapped tensors may take, by what is free now."""
        device_bytes = self.target.limit_bytes if self.base.device == "arena" else 0
        return host.room_for_swaps_bytes(self.free_bytes(), device_bytes)

    def _host_obstacle(self, candidate: Candidate) -> Obstacle | None:
        """Of a trial that might bring the machine down. The arena is in the machine's memory."""
        if candidate.predicted is None:
            return None
        device_bytes = 0
        if self.base.device == "arena":
            device_bytes = min(candidate.predicted.peak_bytes, self.target.limit_bytes)
        swapped = round(host.HEAP_FACTOR * candidate.predicted.host_bytes)
        needed, free = device_bytes + swapped + host.PROCESS_BYTES, self.free_bytes()
        if needed <= host.SAFE_SHARE * free:
            return None
        return Obstacle(
            "host memory",
            f"not tried: it would take {needed / 1e9:,.1f} GB of this machine's memory, "
            f"of which {free / 1e9:,.1f} GB are free",
        )


def with_default(spec: TrialSpec, option: str, value: str) -> TrialSpec:
    """The trial with an option of its strategy set, if there is one that was left as it is."""
    for each in options_of(find_strategy(spec.strategy).options):
        if each.name == option and spec.strategy_options[option] == each.default:
            options = spec.strategy_options | {option: value}
            return msgspec.structs.replace(spec, strategy_options=options)
    return spec


def _words(size_bytes: int) -> str:
    """A size as an option takes it, rounded down."""
    return f"{size_bytes // 100_000 / 10}MB"


class MaxBatchRecord(AnyRecord, frozen=True, kw_only=True):
    """The outcome of one search.

    Attributes:
        spec: the trials, but for the batch size and what depends on it.
        step: the batch sizes asked for are multiples of it.
        most: the largest that could be asked for, if there was such a limit.
        batch_size: the largest that runs; 0 if none does.
        failing_batch_size: the next one; None if `most` was reached.
        bound: what is in the way there. reason: the same in one line.
        predicted_batch_size: what the simulator said; None without a prediction.
        trials: in the order in which they ran; the records lie beside this one.
    """

    prefix: ClassVar[str] = MAX_BATCH_PREFIX

    spec: TrialSpec
    step: int
    most: int | None
    batch_size: int
    failing_batch_size: int | None
    bound: Bound
    reason: str
    predicted_batch_size: int | None
    predicted_bound: Bound | None
    trials: tuple[Tried, ...]

    @property
    def words(self) -> tuple[str, ...]:
        return self.model, self.spec.strategy

    @property
    def best_trial(self) -> str | None:
        """The id of the trial at `batch_size`."""
        ids = [tried.id for tried in self.trials if tried.batch_size == self.batch_size]
        return ids[0] if ids else None


def make_max_batch_record(
    search: BatchSearch, found: Found[Obstacle], *, command: str
) -> MaxBatchRecord:
    """The record of a search that has ended now, on this machine."""
    options = {k: v for k, v in search.base.model_options.items() if k != "batch_size"}
    spec = msgspec.structs.replace(search.base, model_options=options)
    predicted = search.predicted
    return MaxBatchRecord.made_now(
        spec,
        ("max batch", spec, search.step, search.most),
        command=command,
        spec=spec,
        step=search.step,
        most=search.most,
        batch_size=found.batch,
        failing_batch_size=found.failing,
        bound=_bound(found),
        reason=found.why.reason if found.why else "",
        predicted_batch_size=predicted.batch if predicted else None,
        predicted_bound=_bound(predicted) if predicted else None,
        trials=tuple(search.tried),
    )


def _bound(found: Found[Obstacle]) -> Bound:
    return found.why.bound if found.why else "asked maximum"
