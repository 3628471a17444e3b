"""Memory and time of schedules, against figures that one can work out by hand."""

import dataclasses

import pytest

from memtrade.graph import StepGraph
from memtrade.papers.fused import fused_kernels
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.predict import (
    Hosts,
    PipelinePredictor,
    Timing,
    own_kernels,
    simulate_timing,
    stage_memory,
)
from memtrade.pipeline.design.schedule import CheckpointMode, Schedule, ScheduleName, make_schedule
from memtrade.pipeline.design.stages import stage_graphs
from memtrade.pipeline.design.work import (
    StageBytes,
    StageSeconds,
    TaskSeconds,
    stage_bytes,
    stage_program,
)
from memtrade.simulate.memory import Simulator
from memtrade.strategies import find_planned, make_options
from tests.graphs import ARENA, target
from tests.pipeline.graphs import MIB, network

DEVICE = target("p40")
BYTES = StageBytes(
    parameters=200, constants=7, batch=10, received=20, held=1000,
    forward=1100, bare_forward=300, backward=1500, swapped=0,
)  # fmt: skip


def peak(
    name: ScheduleName = "gpipe",
    *,
    stages: int = 2,
    micro_batches: int = 4,
    checkpoint: CheckpointMode = "never",
    stage: int = 0,
) -> int:
    schedule = make_schedule(
        name, stages=stages, micro_batches=micro_batches, checkpoint=checkpoint
    )
    return stage_memory(BYTES, schedule, stage).activation_bytes


def test_gpipe_holds_all_micro_batches():
    always = 7 + 4 * 10
    assert peak() == always + 3 * 1000 + 1500
    assert peak(checkpoint="always") == always + 3 * 20 + 1500
    # Of the last one nothing is recomputed, and it is the first to come back.
    assert peak(checkpoint="except_last") == always + 3 * 20 + 1500


def test_1f1b_holds_as_many_as_stages_follow():
    always = 7 + 4 * 10
    assert [peak("1f1b", stages=3, stage=i) for i in range(3)] == [
        always + waiting * 1000 + 1500 for waiting in (2, 1, 0)
    ]


def test_a_recomputation_that_needs_more_than_the_backward_part_is_the_peak():
    needy = dataclasses.replace(BYTES, forward=2000)
    schedule = make_schedule("gpipe", stages=1, micro_batches=1, checkpoint="always")
    found = stage_memory(needy, schedule, 0)
    assert found.activation_bytes == 7 + 10 + 20 + 2000
    assert found.peak_task.kind == "recompute"
    assert found.peak_bytes == found.activation_bytes + 200


def timing(
    schedule: Schedule, *, seconds=1.0, host=0.0, hosts: Hosts = "own", rate=1e30, graph=None
) -> Timing:
    task = TaskSeconds(device=seconds, host=host)
    free = TaskSeconds(device=0.0, host=0.0)
    work = StageSeconds(forward=task, bare_forward=task, backward=task, update=free)
    made = Partitioner(graph or network(4)).cut_at(
        [f"layer{i + 1}" for i in range(schedule.stages - 1)], DEVICE
    )
    return simulate_timing(
        schedule, made, [work] * schedule.stages, link_bytes_per_s=rate, hosts=hosts
    )


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_bubble_is_gpipes_formula(name):
    found = timing(make_schedule(name, stages=4, micro_batches=8, checkpoint="never"))
    assert found.step_seconds == pytest.approx(2 * (8 + 4 - 1))
    assert found.bubble == pytest.approx((4 - 1) / (8 + 4 - 1))


def test_tasks_start_by_the_clock_if_they_all_take_one():
    schedule = make_schedule("1f1b", stages=3, micro_batches=4, checkpoint="never")
    found = timing(schedule)
    for stage, tasks in enumerate(schedule.tasks):
        assert found.start_seconds[stage] == pytest.approx([task.clock for task in tasks])


def test_a_recomputation_does_not_wait_for_the_gradient():
    schedule = make_schedule("gpipe", stages=2, micro_batches=1, checkpoint="always")
    found = timing(schedule)
    # Stage 1: forward 1 to 2, again to 3, backward to 4. Stage 0 has recomputed by 2.
    assert found.end_seconds[0] == pytest.approx((1, 2, 5))
    assert found.recompute_seconds == pytest.approx((1, 1))


def test_sending_takes_its_time_beside_computing():
    schedule = make_schedule("gpipe", stages=2, micro_batches=2, checkpoint="never")
    found = timing(schedule, rate=MIB / 0.5)
    assert found.start_seconds[1][0] == pytest.approx(1.5)
    assert found.start_seconds[0][:2] == pytest.approx((0, 1))


def test_one_host_for_all_stages_starts_one_after_the_other():
    schedule = make_schedule("gpipe", stages=3, micro_batches=6, checkpoint="never")
    own = timing(schedule, seconds=0.1, host=1.0)
    shared = timing(schedule, seconds=0.1, host=1.0, hosts="shared")
    assert own.forward_seconds == pytest.approx(6 + 2)
    assert shared.forward_seconds == pytest.approx(6 * 3)


def test_bytes_of_a_stage_by_hand():
    """Two layers: x and the first output are kept for the backward part; a gradient is 1 MiB."""
    graph = network(4)
    made = Partitioner(graph).cut_at(["layer2"], DEVICE)
    first, second = (stage_bytes(s, DEVICE) for s in stage_graphs(graph, made))
    assert first.received == 0
    # layer1's output, and what stands for the loss; the batch is the stage's anyway
    assert first.held == MIB + 4
    assert second.received == MIB
    assert second.held == MIB + MIB + MIB + 4  # layer2's, read again; layer3's, layer4's, the loss
    assert first.bare_forward < first.forward + MIB


def test_recomputation_and_1f1b_save_memory_on_a_real_model(small_gpt2: StepGraph):
    made = Partitioner(small_gpt2).by_time(4, DEVICE, slack=0.1)
    predictor = PipelinePredictor(small_gpt2, made, DEVICE)

    def activations(name, checkpoint) -> int:
        schedule = make_schedule(name, stages=4, micro_batches=16, checkpoint=checkpoint)
        return predictor.predict(schedule, micro_batch_size=2).activation_bytes

    never = activations("gpipe", "never")
    assert activations("gpipe", "always") < 0.2 * never
    assert activations("1f1b", "never") < 0.2 * never
    assert activations("1f1b", "always") < activations("gpipe", "always")


def test_one_stage_one_micro_batch_is_the_step_itself(small_gpt2: StepGraph):
    made = Partitioner(small_gpt2).cut_at([], DEVICE)
    schedule = make_schedule("gpipe", stages=1, micro_batches=1, checkpoint="never")
    found = PipelinePredictor(small_gpt2, made, DEVICE).predict(schedule, micro_batch_size=2)
    whole = Simulator(small_gpt2, DEVICE).peak_live_bytes(stage_program(small_gpt2, ()))
    gradients = stage_graphs(small_gpt2, made)[0].gradient_bytes
    assert found.peak_bytes == pytest.approx(whole + gradients, rel=0.02)
    assert found.samples_per_second == 2 / found.timing.step_seconds


def test_swapping_within_a_stage_moves_memory_to_the_host(small_gpt2: StepGraph):
    made = Partitioner(small_gpt2).by_time(2, DEVICE, slack=0.1)
    stages = stage_graphs(small_gpt2, made)
    lms = find_planned("lms").plan
    # In the arena, where nothing is computed while bytes move.
    plans = [lms(stage.graph, make_options("lms"), ARENA).actions for stage in stages]
    schedule = make_schedule("gpipe", stages=2, micro_batches=4, checkpoint="never")
    plain, swapped = (
        PipelinePredictor(small_gpt2, made, ARENA, stages=stages, plans=each).predict(
            schedule, micro_batch_size=2
        )
        for each in (None, plans)
    )
    assert swapped.activation_bytes < 0.7 * plain.activation_bytes
    assert sum(s.host_bytes for s in swapped.stages) > 0 == sum(s.host_bytes for s in plain.stages)
    assert swapped.timing.step_seconds > plain.timing.step_seconds


def test_fused_kernels_hold_less_and_take_less_time(small_gpt2: StepGraph):
    made = Partitioner(small_gpt2).by_time(2, DEVICE, slack=0.1)
    schedule = make_schedule("gpipe", stages=2, micro_batches=4, checkpoint="never")
    ops, fused = (
        PipelinePredictor(small_gpt2, made, DEVICE, kernels=kernels).predict(
            schedule, micro_batch_size=2
        )
        for kernels in (own_kernels, fused_kernels)
    )
    assert fused.activation_bytes < 0.8 * ops.activation_bytes
    assert fused.parameter_bytes == ops.parameter_bytes
    assert fused.timing.step_seconds < ops.timing.step_seconds


def test_what_does_not_fit_is_said(small_gpt2: StepGraph):
    made = Partitioner(small_gpt2).by_time(2, DEVICE, slack=0.1)
    small = DEVICE.replace(limit_bytes=1000)
    schedule = make_schedule("gpipe", stages=2, micro_batches=1)
    assert PipelinePredictor(small_gpt2, made, small).predict(
        schedule, micro_batch_size=2
    ).fits == (False, False)
