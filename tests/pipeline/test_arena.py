"""A stage's whole step on the allocator, by hand and beside live bytes."""

import pytest

from memtrade.graph import StepGraph
from memtrade.op_types import RECEIVE, SEND
from memtrade.pipeline.design import arena
from memtrade.pipeline.design.arena import arena_peak
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.predict import PipelinePredictor
from memtrade.pipeline.design.schedule import make_schedule
from memtrade.pipeline.design.stages import StageGraph, plan_stages, stage_graphs
from memtrade.simulate.memory import Simulator
from memtrade.strategies import make_options
from tests.graphs import ARENA as DEVICE
from tests.pipeline.graphs import MIB, network


def stages_of(graph: StepGraph, ends: list[str]) -> tuple[StageGraph, ...]:
    return stage_graphs(graph, Partitioner(graph).cut_at(ends, DEVICE))


def peaks(graph: StepGraph, ends: list[str], strategy: str = "original", **settings) -> list[int]:
    stages = stages_of(graph, ends)
    plans = plan_stages(stages, strategy, make_options(strategy), DEVICE)
    schedule = make_schedule(stages=len(stages), **settings)
    return [arena_peak(stage, schedule, i, DEVICE, plans[i]) for i, stage in enumerate(stages)]


@pytest.mark.parametrize("count", [2, 4])
def test_gpipe_holds_every_micro_batch_and_1f1b_as_many_as_there_are_stages_behind(count):
    """The second stage of two: per micro-batch it holds what it received, and of its own layers
    two outputs; the batch is not its own."""
    graph, last = network(4), 1
    never = {"micro_batches": count, "checkpoint": "never"}
    more = {"micro_batches": count + 1, "checkpoint": "never"}
    grown = (
        peaks(graph, ["layer2"], name="gpipe", **more)[last]
        - peaks(graph, ["layer2"], name="gpipe", **never)[last]
    )
    assert grown == pytest.approx(3 * MIB, abs=8192)
    assert peaks(graph, ["layer2"], name="1f1b", **more)[last] == pytest.approx(
        peaks(graph, ["layer2"], name="1f1b", **never)[last], abs=8192
    )


def test_a_recomputed_micro_batch_leaves_what_it_received():
    graph, last = network(6), 1
    few, many = (
        peaks(graph, ["layer2"], name="gpipe", micro_batches=count, checkpoint="always")[last]
        for count in (4, 8)
    )
    assert many - few == pytest.approx(4 * MIB, abs=16384)


def test_a_skip_waits_on_its_stage_until_it_is_received():
    plain = {"name": "gpipe", "micro_batches": 8, "checkpoint": "never"}
    first = peaks(network(6, skips={6: 2}), ["layer2", "layer4"], **plain)[0]
    assert first > peaks(network(6), ["layer2", "layer4"], **plain)[0]


def test_what_goes_between_two_tasks_has_its_turn(monkeypatch):
    """The second of three stages hands on before it receives, and gradients go when both of their
    stages have recomputed."""
    seen: list[StepGraph] = []

    class Spy(Simulator):
        def __init__(self, graph: StepGraph, *given):
            seen.append(graph)
            super().__init__(graph, *given)

    monkeypatch.setattr(arena, "Simulator", Spy)
    settings = {"name": "gpipe", "micro_batches": 2, "checkpoint": "always"}
    peaks(network(4), ["layer1", "layer3"], **settings)
    short = {"layer2": "run", "grad3_2": "back", SEND: "send", RECEIVE: "receive"}
    ran = [short.get(op.type) or short.get(op.name.partition("#")[0]) for op in seen[1].ops]
    forward = ["receive", "run", "send", "receive", "run", "send"]
    backward = ["run", "receive", "back", "run", "send", "receive", "back", "send"]
    assert [each for each in ran if each] == forward + backward


def test_swapping_takes_less_than_recomputing_on_a_real_model(small_gpt2: StepGraph):
    ends = ["block2/add_4"]
    swapped = peaks(small_gpt2, ends, "lms", name="gpipe", micro_batches=8, checkpoint="never")
    again = peaks(small_gpt2, ends, name="gpipe", micro_batches=8, checkpoint="always")
    kept = peaks(small_gpt2, ends, name="gpipe", micro_batches=8, checkpoint="never")
    for less, more, most in zip(swapped, again, kept, strict=True):
        assert less < more < most


def test_it_is_close_to_the_live_bytes_of_a_real_model(small_gpt2: StepGraph):
    made = Partitioner(small_gpt2).cut_at(["block2/add_4"], DEVICE)
    predictor = PipelinePredictor(small_gpt2, made, DEVICE)
    schedule = make_schedule("gpipe", stages=2, micro_batches=4, checkpoint="never")
    live = predictor.predict(schedule, micro_batch_size=2)
    arena = predictor.predict(schedule, micro_batch_size=2, arenas=True)
    for exact, lower in zip(arena.stages, live.stages, strict=True):
        assert exact.allocator
        assert not lower.allocator
        assert exact.peak_bytes == pytest.approx(lower.peak_bytes, rel=0.05)
        assert exact.peak_bytes == exact.activation_bytes + exact.parameter_bytes
        assert (exact.bound, lower.bound) == ("≈", "")
    assert (arena.bound, live.bound) == ("≈", "")


def test_what_the_last_task_sends_lies_there_until_the_task_ends():
    """The last layer's gradient for the first stage is made early. Two others, each as large as all
    else, come behind it, when what was received from there has gone."""
    once = {"name": "gpipe", "micro_batches": 1, "checkpoint": "never"}
    small, large = (
        peaks(network(6, skips={6: 1, 5: 3}, sizes={1: size, 3: 8 * MIB}), ["layer2"], **once)[1]
        for size in (MIB, 2 * MIB)
    )
    assert large - small == MIB


def test_a_stage_hands_over_without_scratch():
    """What stands for other stages is no kernel that nobody has looked at."""
    graph = network(2, size=2 * MIB)
    stage, _ = stages_of(graph, ["layer1"])
    added = {op.type for op in stage.graph.ops} - {op.type for op in graph.ops}
    assert added > {SEND, RECEIVE}
    assert added & {*Simulator(stage.graph, DEVICE).assumed} == set()
