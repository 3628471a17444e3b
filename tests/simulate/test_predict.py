"""Predictions: the figures of a trial, from the simulators, with the limit's verdict."""

from __future__ import annotations

import msgspec
import pytest

from memtrade.devices import load_device
from memtrade.errors import UnsupportedGraphError
from memtrade.facts import Fact
from memtrade.graph import Op, StepGraph
from memtrade.plan import Action, Plan
from memtrade.simulate.memory import Simulator
from memtrade.simulate.predict import Predicted, Predictor
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import PLANNED, find_planned, make_options
from tests.graphs import ARENA, Builder, chain, on

MIB = 1 << 20
GRAPH = chain(8, size=4 * MIB)


def plan(strategy: str) -> Plan:
    return PLANNED[strategy].plan(GRAPH, make_options(strategy), ARENA)


@pytest.mark.parametrize("strategy", ["original", "checkpoints", "lms"])
def test_the_figures_are_the_simulators(strategy: str) -> None:
    made = plan(strategy)
    predicted = Predictor(GRAPH, ARENA).predict(made, limit_bytes=512 * MIB)
    memory = Simulator(GRAPH, ARENA).memory(made, limit_bytes=512 * MIB)
    timeline = TimeSimulator(GRAPH, ARENA).timeline(made)
    assert predicted.fits
    assert predicted.device_profile == "arena"
    assert predicted.peak_bytes == memory.peak_bytes
    assert predicted.persistent_bytes == memory.persistent_bytes
    assert predicted.memory_cost_bytes == memory.peak_bytes - memory.persistent_bytes
    assert predicted.host_bytes == memory.host_peak_bytes
    assert predicted.step_seconds == timeline.step_seconds
    assert (predicted.host_bytes > 0) == (strategy == "lms")


def test_a_step_that_does_not_fit_says_what_it_would_take() -> None:
    predictor = Predictor(GRAPH, ARENA)
    roomy = predictor.predict(plan("original"), limit_bytes=512 * MIB)
    tight = predictor.predict(plan("original"), limit_bytes=roomy.peak_bytes // 2)
    assert not tight.fits
    assert msgspec.structs.replace(tight, fits=True) == roomy


def test_the_targets_limit_counts_unless_another_is_given() -> None:
    roomy = Predictor(GRAPH, ARENA).predict(plan("original"))
    tight = ARENA.replace(limit_bytes=roomy.peak_bytes // 2)
    assert roomy.fits
    assert not Predictor(GRAPH, tight).predict(plan("original")).fits


def test_a_kernel_that_was_seen_takes_what_it_took() -> None:
    class Seen:
        name, merges = "seen", False

        def of(self, op: Op, graph: StepGraph) -> Fact:
            fact = ARENA.facts.of(op, graph)
            return fact._replace(seconds=2.0) if op.name == "layer3" else fact

        def is_known(self, op_type: str) -> bool:
            return True

    [layer3] = [op.id for op in GRAPH.ops if op.name == "layer3"]
    plain, seen = TimeSimulator(GRAPH, ARENA), TimeSimulator(GRAPH, ARENA.replace(facts=Seen()))
    overhead = ARENA.device.launch_overhead_seconds
    assert seen.op_seconds[layer3] == 2.0 + overhead != plain.op_seconds[layer3]
    assert seen.op_seconds == seen.target.op_seconds(GRAPH)
    others = [i for i in range(len(GRAPH.ops)) if i != layer3]
    assert [seen.op_seconds[i] for i in others] == [plain.op_seconds[i] for i in others]


def test_late_copies_hold_memory_on_a_gpu() -> None:
    def at(bytes_per_s: float) -> Predicted:
        gpu = msgspec.structs.replace(
            load_device("gtx-1070"),
            host_to_device_bytes_per_s=bytes_per_s,
            device_to_host_bytes_per_s=bytes_per_s,
        )
        return Predictor(GRAPH, on(gpu)).predict(plan("lms"), limit_bytes=512 * MIB)

    late, quick = at(1e8), at(1e15)
    assert late.stall_seconds is not None
    assert late.stall_seconds > 0
    assert quick.peak_bytes < late.peak_bytes


def test_a_size_that_nothing_tells_makes_a_prediction_a_lower_bound() -> None:
    unsized = StepGraph(msgspec.structs.replace(GRAPH.data, unsized=("layer3:0",)))
    known, unknown = (
        Predictor(graph, ARENA).predict(Plan("original", {}, graph.fingerprint, "pinned", (), ()))
        for graph in (GRAPH, unsized)
    )
    assert (known.bound, unknown.bound) == ("≈", "≥")
    assert unknown.peak_text == known.peak_text.replace("≈", "≥")


def test_a_step_as_it_is_may_take_what_its_branches_take_abreast() -> None:
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    sums = []
    for i in range(4):
        (y,) = b.op(f"sin{i}", "Sin", [x], sizes=[MIB])
        (z,) = b.op(f"exp{i}", "Exp", [y], sizes=[4 * MIB])
        sums += b.op(f"sum{i}", "Sum", [z], sizes=[4])
    (loss,) = b.op("loss", "AddN", sums, sizes=[4])
    graph = b.build(inputs=[x], outputs=[loss], loss=loss)
    as_it_is = Plan("original", {}, graph.fingerprint, "pinned", (), ())
    told = Predictor(graph, ARENA).predict(as_it_is)
    assert told.abreast_bytes > 2 * told.peak_bytes
    assert told.peak_text == "≈ 7.3 to 19.9"
    in_order = tuple(Action("run", op.id) for op in graph.ops)
    planned = Predictor(graph, ARENA).predict(msgspec.structs.replace(as_it_is, actions=in_order))
    assert planned.peak_text == "7.3"


@pytest.mark.parametrize("name", ["checkmate", "greedy", "optimal", "rotor"])
def test_no_budget_is_planned_for_where_nothing_tells_a_size(name: str) -> None:
    unsized = StepGraph(msgspec.structs.replace(GRAPH.data, unsized=("layer3:0",)))
    options = make_options(name, {"budget": "1GB"})
    with pytest.raises(UnsupportedGraphError, match="layer3:0"):
        find_planned(name).plan(unsized, options, ARENA)
