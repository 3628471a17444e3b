"""The search for one strategy: predictions guide it, made-up trials decide."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import msgspec
import pytest

from memtrade.errors import InfeasibleBudgetError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.measure import host
from memtrade.measure import max_batch as module
from memtrade.measure.max_batch import BatchSearch, Obstacle, make_max_batch_record
from memtrade.measure.protocol import Measured, Outcome, Status, StepDone, TrialSpec
from memtrade.measure.records import Record, make_record
from memtrade.options import option
from memtrade.plan import Plan
from memtrade.rebatch import Rebatcher
from memtrade.strategies import PLANNED, Strategy, lms, make_options
from memtrade.target import Target
from memtrade.units import parse_bytes
from tests.graphs import ARENA, chain

MIB = 1 << 20
LIMIT = 64 * MIB
FREE = 64 << 30
# What else a measurement has.
MEASURED = (
    "persistent_bytes", "host_bytes", "trace_seconds", "plan_seconds", "rewrite_seconds",
)  # fmt: skip


class Chains(Rebatcher):
    """A chain of layers whose tensors grow with the batch: 64 KiB for each example."""

    def __init__(self) -> None:
        pass

    def at(self, batch: int) -> StepGraph:
        return chain(8, size=batch << 16)


class Device:
    """What really runs: batches up to `truth`. Counts the trials."""

    def __init__(self, truth: int, *, failure: Status = "out_of_memory"):
        self.truth = truth
        self.failure: Status = failure
        self.specs: list[TrialSpec] = []

    @property
    def batches(self) -> list[int]:
        return [spec.model_options["batch_size"] for spec in self.specs]

    def measure(self, spec: TrialSpec, foreseen: object = None) -> Record:
        self.specs.append(spec)
        runs = spec.model_options["batch_size"] <= self.truth
        status: Status = "ok" if runs else self.failure
        return make_record(spec, Outcome(status=status, reason="" if runs else "why"), command="")


def search(
    device: Device,
    strategy: str = "original",
    *,
    free_bytes: Callable[[], int] = lambda: FREE,
    rebatcher: Rebatcher | None = None,
    step: int = 1,
    most: int | None = None,
) -> BatchSearch:
    base = TrialSpec(
        model_options={"batch_size": 8},
        strategy=strategy,
        strategy_options=dataclasses.asdict(make_options(strategy)),
        memory_limit_bytes=LIMIT,
    )
    return BatchSearch(
        base,
        rebatcher or Chains(),
        ARENA.replace(limit_bytes=LIMIT),
        device.measure,
        step=step,
        most=most,
        free_bytes=free_bytes,
    )


@pytest.fixture(scope="module")
def predicted() -> int:
    """What the simulator says of the original."""
    made = search(Device(0))
    made.run()
    assert made.predicted is not None
    return made.predicted.batch


def test_the_prediction_is_the_simulators(predicted: int) -> None:
    assert 64 < predicted < 256  # 8 layers of 64 KiB and a gradient or two, in 64 MiB


def test_a_right_prediction_takes_two_trials(predicted: int) -> None:
    device = Device(predicted)
    found = search(device).run()
    assert (found.batch, found.failing) == (predicted, predicted + 1)
    assert found.why == Obstacle("device memory", "why")
    assert device.batches == [predicted, predicted + 1]


@pytest.mark.parametrize("miss", [-40, -3, -2, -1, 1, 2, 3, 40])
def test_a_wrong_prediction_is_corrected(predicted: int, miss: int) -> None:
    device = Device(predicted + miss)
    found = search(device).run()
    assert (found.batch, found.failing) == (predicted + miss, predicted + miss + 1)
    assert {predicted + miss, predicted + miss + 1} <= set(device.batches)
    if abs(miss) <= 2:
        assert len(device.batches) <= 4


def test_few_trials_are_enough_for_a_batch_within_a_share(predicted: int) -> None:
    for truth in (predicted, predicted + 1, round(predicted * 0.96)):
        device = Device(truth)
        made = search(device)
        made.within, made.trials = 0.03, 3
        found = made.run()
        assert len(device.batches) <= 3
        assert found.batch in device.batches
        assert found.batch <= truth <= found.batch * 1.06


def test_without_trials_the_prediction_decides(predicted: int) -> None:
    made = search(Device(0))
    made.measure = None
    assert made.run().batch == predicted


def test_only_multiples_are_tried_and_none_beyond_the_maximum(predicted: int) -> None:
    device = Device(predicted)
    found = search(device, step=10).run()
    assert found.batch == predicted // 10 * 10
    assert all(batch % 10 == 0 for batch in device.batches)
    device = Device(predicted)
    found = search(device, most=20).run()
    assert (found.batch, found.failing, device.batches) == (20, None, [20])


def test_no_trial_is_started_that_the_machine_has_no_memory_for(predicted: int) -> None:
    """Swapped tensors are on the host: there, the arena counts as well."""
    device = Device(10**6)
    free = int((host.PROCESS_BYTES + 100 * MIB) / host.SAFE_SHARE)
    made = search(device, "lms", free_bytes=lambda: free)
    found = made.run()
    assert found.why is not None
    assert found.why.bound == "host memory"
    assert found.why.reason.startswith("not tried: it would take 1.2 GB of this machine's memory")
    assert max(device.batches) == found.batch > 0
    # About 9 tensors of an example leave, and some are in the arena.
    assert 100 < found.batch < 200


def test_where_nothing_may_be_tried_nothing_is(predicted: int) -> None:
    device = Device(10**6)
    found = search(device, free_bytes=lambda: host.PROCESS_BYTES // 2).run()
    assert (found.batch, device.batches) == (0, [])


@pytest.mark.parametrize(
    ("failure", "bound"),
    [("out_of_host_memory", "host memory"), ("timeout", "time limit"), ("crashed", "crash")],
)
def test_other_ends_of_a_trial_bound_the_batch_too(failure: Status, bound: str) -> None:
    found = search(Device(5, failure=failure)).run()
    assert found.batch == 5
    assert found.why is not None
    assert found.why.bound == bound


def test_a_strategy_without_a_plan_is_searched_from_the_batch_that_was_asked_for() -> None:
    device = Device(11)
    made = search(device)
    made.rebatcher = None
    assert made.run().batch == 11
    assert made.predicted is None
    assert device.batches[0] == 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budgeted:
    budget: str = option("", "the most device memory")
    host_memory_limit: str = option("", "the most host memory")


class Planner:
    """A strategy that notes its budgets; up to `feasible` examples it has the plan of lms."""

    def __init__(self, feasible: int):
        self.feasible = feasible
        self.seen: list[Budgeted] = []

    def plan(self, graph: StepGraph, options: Budgeted, target: Target) -> Plan:
        self.seen.append(options)
        if graph.tensors[0].size_bytes > self.feasible << 16:
            raise InfeasibleBudgetError(2, 1, "layer1")
        return lms.plan(graph, lms.Options(), target)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    made = Planner(feasible=50)
    strategy = Strategy("budgeted", "", Budgeted, made.plan)
    monkeypatch.setitem(PLANNED, "budgeted", strategy)
    from memtrade import strategies

    monkeypatch.setitem(strategies.STRATEGIES, "budgeted", strategy)
    return made


def test_a_budget_is_the_limit_less_a_margin_at_each_batch(planner: Planner) -> None:
    device = Device(10**6)
    found = search(device, "budgeted").run()
    assert (found.batch, found.failing) == (50, 51)
    assert found.why is not None
    assert found.why.bound == "no plan"
    assert "no plan fits a budget" in found.why.reason
    for options in planner.seen:
        assert 0.998 * LIMIT < parse_bytes(options.budget) < LIMIT
        assert parse_bytes(options.host_memory_limit) < 0.9 * FREE - LIMIT
    assert device.batches == [50]  # what has no plan cannot be tried
    assert device.specs[0].strategy_options["budget"] == planner.seen[0].budget


def test_plans_near_the_smallest_peak_are_left_where_a_batch_may_be_missed(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strategy's own are asked for where a trial is due, or the very largest is wanted."""

    def near(graph: StepGraph, options: Budgeted, target: Target) -> Plan:
        if graph.tensors[0].size_bytes > 40 << 16:
            raise InfeasibleBudgetError(2, 1, "layer1")
        return lms.plan(graph, lms.Options(), target)

    monkeypatch.setitem(PLANNED, "budgeted", dataclasses.replace(PLANNED["budgeted"], near=near))
    few = search(Device(10**6), "budgeted")
    few.within, few.trials = 0.03, 3
    few.on_plan, asked = lambda batch: asked.append(batch), []
    found = few.run()
    assert few.predicted is not None
    assert few.predicted.batch == 40
    assert few.predicted.why == Obstacle("no plan", "no plan was found within 67.1 MB")
    assert len(asked) > 4
    assert (found.batch, len(planner.seen)) == (43, 2)  # in three trials, 40 and 41 before it
    assert parse_bytes(few.candidate(40).spec.strategy_options["budget"]) > 0.998 * LIMIT
    assert search(Device(10**6), "budgeted").run().batch == 50


@pytest.mark.parametrize(
    ("measured", "fits", "spare"),
    [(-1000, True, 0), (5000, True, 5000), (None, True, None), (None, False, 0)],
)
def test_a_trial_teaches_what_it_took_above_the_prediction(
    planner: Planner, measured: int | None, fits: bool, spare: int | None
) -> None:
    """And without room, what it must have lacked; but nothing where that was predicted."""
    peaks: list[int] = []

    def measure(spec: TrialSpec, foreseen: object) -> Record:
        foreseen = made.candidate(spec.model_options["batch_size"]).predicted
        assert foreseen is not None
        peaks.append(foreseen.peak_bytes)
        if measured is None:
            return make_record(spec, Outcome(status="out_of_memory"), command="")
        step = StepDone(1.0, peaks[0] + measured, 0.0)
        seen = Measured.of([step, step], warmup=1, **dict.fromkeys(MEASURED, 0))
        return make_record(spec, Outcome(status="ok", measured=seen), command="")

    made = search(Device(0), "budgeted", most=48)
    made.measure, made.within, made.trials, made.start = measure, 0.03, 1, 48
    if not fits:
        predicted = made.candidate(48).predicted
        assert predicted is not None
        doubted = msgspec.structs.replace(predicted, fits=False)
        made._candidates[48] = dataclasses.replace(made.candidate(48), predicted=doubted)
        made._met(48)
    else:
        made.run()
    assert len(peaks) == 1
    assert made.spare_bytes == (int(1.005 * LIMIT) - peaks[0] if spare is None else spare)
    if spare == 5000:  # the next plan leaves that much
        assert parse_bytes(made.candidate(40).spec.strategy_options["budget"]) <= LIMIT - 5000


def test_a_budget_that_was_asked_for_stays(planner: Planner) -> None:
    made = search(Device(10**6), "budgeted")
    options = {"budget": "1MB", "host_memory_limit": ""}
    made.base = msgspec.structs.replace(made.base, strategy_options=options)
    made.run()
    assert {options.budget for options in planner.seen} == {"1MB"}


def test_where_holes_keep_a_plan_from_fitting_a_smaller_budget_is_tried(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first prediction of each batch says that it does not fit."""
    predict = module.Predictor.predict
    turns = itertools.cycle((False, True))

    def doubtful(self: module.Predictor, plan: Plan) -> module.Predicted:
        predicted = predict(self, plan)
        return msgspec.structs.replace(predicted, fits=next(turns))

    monkeypatch.setattr(module.Predictor, "predict", doubtful)
    device = Device(10**6)
    assert search(device, "budgeted", most=8).run().batch == 8
    first, second = (parse_bytes(options.budget) for options in planner.seen)
    assert second < first
    assert parse_bytes(device.specs[0].strategy_options["budget"]) == second


def test_a_plan_that_may_not_fit_is_tried_where_a_smaller_budget_has_none(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction does not have the last word: there is a plan, so a trial tells."""
    predict, plan = module.Predictor.predict, planner.plan

    def doubtful(self: module.Predictor, plan: Plan) -> module.Predicted:
        predicted = predict(self, plan)
        return msgspec.structs.replace(predicted, fits=False)

    def strict(graph: StepGraph, options: Budgeted, target: Target) -> Plan:
        if parse_bytes(options.budget) < 0.99 * LIMIT:
            raise InfeasibleBudgetError(2, 1, "layer1")
        return plan(graph, options, target)

    monkeypatch.setattr(module.Predictor, "predict", doubtful)
    strategy = dataclasses.replace(PLANNED["budgeted"], plan=strict)
    monkeypatch.setitem(PLANNED, "budgeted", strategy)
    device = Device(10**6)
    made = search(device, "budgeted", most=8)
    assert made.run().batch == 8
    assert made.predicted is not None
    assert made.predicted.batch == 0
    assert 8 in device.batches
    assert parse_bytes(device.specs[0].strategy_options["budget"]) > 0.99 * LIMIT


def test_the_search_begins_where_it_is_told(predicted: int, planner: Planner) -> None:
    """Both with predictions, which take large steps from there, and without."""
    asked: list[int] = []
    made = search(Device(predicted))
    made.start, made.on_plan = predicted - 20, asked.append
    assert made.run().batch == predicted
    assert asked[:2] == [predicted - 20, predicted - 20 + (predicted - 20) // 4]
    assert made.predicted is not None
    assert made.predicted.batch == predicted
    device = Device(11)
    without = search(device)
    without.rebatcher, without.start = None, 10
    assert without.run().batch == 11
    assert device.batches == [10, 11, 13, 12]


def test_a_graph_that_a_strategy_cannot_plan_is_an_answer(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(graph: StepGraph, options: Budgeted, target: Target) -> Plan:
        raise UnsupportedGraphError("too large for this")

    monkeypatch.setitem(PLANNED, "budgeted", dataclasses.replace(PLANNED["budgeted"], plan=refuse))
    found = search(Device(10**6), "budgeted").run()
    assert found.batch == 0
    assert found.why == Obstacle("unsupported", "too large for this")


def test_the_record_tells_the_answer_and_the_trials(predicted: int) -> None:
    device = Device(predicted - 1)
    made = search(device)
    record = make_max_batch_record(made, made.run(), command="memtrade max-batch")
    assert (record.batch_size, record.failing_batch_size) == (predicted - 1, predicted)
    assert record.predicted_batch_size == predicted
    assert record.predicted_bound == record.bound == "device memory"
    assert [tried.batch_size for tried in record.trials] == device.batches
    assert "batch_size" not in record.spec.model_options
    best = [tried.id for tried in record.trials if tried.batch_size == predicted - 1]
    assert record.best_trial == best[0]
    again = search(Device(0))
    assert make_max_batch_record(again, again.run(), command="").id == record.id
    other = search(Device(0), step=2)
    assert make_max_batch_record(other, other.run(), command="").id != record.id
