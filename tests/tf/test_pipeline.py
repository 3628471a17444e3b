"""A pipelined step is the unpipelined one: same losses, same variables, several steps on."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.models import make_model
from memtrade.pipeline.design.partitioner import Partitioner
from memtrade.pipeline.design.schedule import make_schedule
from memtrade.pipeline.design.stages import plan_stages, stage_graphs
from memtrade.pipeline.tf import build_pipeline, draw_step, session_config
from memtrade.strategies import make_options
from memtrade.tf.build import make_step
from memtrade.tf.construction import Construction
from tests.graphs import ARENA, target

pytestmark = pytest.mark.usefixtures("small_models")

BATCH, STEPS = 4, 3
GPT2 = {"layers": 2, "width": 16, "heads": 2, "positions": 8, "vocabulary": 30}
TIED = GPT2 | {"tied": True}
UNET = {"num_convs": 1, "base_channels": 4, "image_size": 64, "dropout": 0.0}
RESNET = {"layers": 18, "image_size": 32, "num_classes": 10}

v1 = tf.compat.v1


def pipelined(family, options, *settings, **others):
    """Runs the pipeline on logical devices of this process: (losses, values by variable, schedule,
    times)."""
    return _pipelined(family, tuple(options.items()), *settings, **others)


@functools.cache
def _pipelined(
    family, options, stages, micro_batches, schedule, checkpoint, optimizer,
    *, strategy="original", deferred=False, rate=None,
):  # fmt: skip
    whole = make_model(family, dict(options) | {"batch_size": BATCH})
    part = dataclasses.replace(whole, batch_size=BATCH // micro_batches)
    step = draw_step(part, whole, optimizer=optimizer, learning_rate=rate)
    partition = Partitioner(step.trace.graph).by_time(stages, ARENA, slack=0.1)
    plan = make_schedule(
        schedule, stages=stages, micro_batches=micro_batches, checkpoint=checkpoint
    )
    devices = [f"/device:CPU:{i}" for i in range(stages)]
    within = plan_stages(
        stage_graphs(step.trace.graph, partition), strategy, make_options(strategy), ARENA
    )
    pipeline = build_pipeline(
        step, partition, plan, devices, plans=within, deferred_batch_norm=deferred
    )
    config = session_config()
    config.device_count["CPU"] = stages
    with v1.Session(graph=pipeline.graph, config=config) as session:
        session.run(pipeline.initialize)
        losses, times = [], []
        for _ in range(STEPS):
            session.run(pipeline.step)
            loss, times = session.run([pipeline.loss, pipeline.times])
            losses.append(float(loss))
        return losses, session.run(pipeline.values), plan, times


def accumulated(family, options, micro_batches, optimizer):
    """The unpipelined step, its gradients averaged over micro-batches."""
    step = make_step(
        make_model(family, options | {"batch_size": BATCH}),
        optimizer=optimizer,
        construction=Construction(micro_batches=micro_batches),
    )
    batch = step.make_batch()
    losses = [float(step.function(*batch)) for _ in range(STEPS)]
    return losses, {variable.name: variable.numpy() for variable in step.variables()}


@pytest.mark.parametrize(
    ("family", "options", "stages", "schedule", "checkpoint", "optimizer"),
    [
        ("gpt2", GPT2, 2, "gpipe", "always", "momentum"),
        ("gpt2", GPT2, 3, "1f1b", "except_last", "adam"),
        ("gpt2", TIED, 3, "gpipe", "never", "sgd"),  # a weight that two stages read
        ("unet", UNET, 3, "gpipe", "always", "momentum"),  # skips past a stage
    ],
)
def test_the_update_is_the_unpipelined_one(
    family, options, stages, schedule, checkpoint, optimizer
):
    losses, values, _, _ = pipelined(family, options, stages, 2, schedule, checkpoint, optimizer)
    expected_losses, expected = accumulated(family, options, 1, optimizer)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, atol=1e-4, err_msg=name)
    assert losses[-1] < losses[0]  # it trains: equal by doing nothing would not do


def test_batch_norm_is_that_of_accumulated_micro_batches():
    # Moving averages, too: a recomputation that moved them again would differ.
    losses, values, _, _ = pipelined("resnet", RESNET, 2, 2, "gpipe", "always", "sgd")
    expected_losses, expected = accumulated("resnet", RESNET, 2, "sgd")
    assert losses == pytest.approx(expected_losses, abs=1e-4)
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("family", "options", "schedule", "checkpoint", "strategy"),
    [
        ("gpt2", GPT2 | {"dropout": 0.5}, "1f1b", "always", "lms"),  # masks are swapped, too
        ("gpt2", TIED, "gpipe", "never", "optimal"),
        ("unet", UNET, "gpipe", "except_last", "lms"),
    ],
)
def test_a_plan_within_the_stages_changes_nothing(family, options, schedule, checkpoint, strategy):
    settings = (family, options, 2, 2, schedule, checkpoint, "momentum")
    losses, values, _, _ = pipelined(*settings, strategy=strategy)
    expected_losses, expected, _, _ = pipelined(*settings)
    assert losses == pytest.approx(expected_losses, abs=1e-6)
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, atol=1e-6, err_msg=name)


# A learning rate that leaves float32 weights where they are, so all steps see the same statistics.
STANDING = 1e-12
MOVED_BY = 0.003  # ResNet's averages, of what is between them and the batch's


def moved(images):
    """ResNet's moving averages, before and after one ordinary step on some of the batch."""
    size = len(range(*images.indices(BATCH)))
    whole = make_step(make_model("resnet", RESNET | {"batch_size": BATCH}), optimizer="sgd")
    step = make_step(
        make_model("resnet", RESNET | {"batch_size": size}), optimizer="sgd", learning_rate=STANDING
    )
    averages = [v for v in step.variables() if "moving_" in v.name]
    before = {v.name: v.numpy() for v in averages}
    step.function(*(part[images] for part in whole.make_batch()))
    return before, {v.name: v.numpy() for v in averages}


def positions(name, channels):
    """Of an image, that one of ResNet's batch norms averages over."""
    edge = 16 if name.startswith("stem") else {32: 8, 64: 4, 128: 2, 256: 1}[channels]
    return edge * edge


def test_deferred_batch_norm_moves_averages_once_by_the_whole_batch():
    """By hand, from ordinary steps on each of the micro-batches."""
    settings = ("resnet", RESNET, 2, 2, "gpipe", "always", "sgd")
    _, values, _, _ = pipelined(*settings, deferred=True, rate=STANDING)
    start, first = moved(slice(0, 2))
    _, second = moved(slice(2, 4))
    _, together = moved(slice(0, 4))
    means = {}
    for name in sorted(start):  # a layer's mean comes before its variance
        of_each = [start[name] + (end[name] - start[name]) / MOVED_BY for end in (first, second)]
        layer, _, kind = name.rpartition("/")
        if kind == "moving_mean:0":
            means[layer] = of_each
            statistic = np.mean(of_each, axis=0)
        else:
            n = 2 * positions(name, len(start[name]))
            squares = [
                var * (n - 1) / n + mean**2 for var, mean in zip(of_each, means[layer], strict=True)
            ]
            biased = np.mean(squares, axis=0) - np.mean(means[layer], axis=0) ** 2
            statistic = biased * 2 * n / (2 * n - 1)
        expected = start[name]
        for _ in range(STEPS):
            expected = expected + (statistic - expected) * MOVED_BY
        np.testing.assert_allclose(values[name], expected, atol=1e-5, err_msg=name)
    # The first layer sees what it sees unpipelined: there it is the whole batch's to the digit.
    for kind in ("moving_mean:0", "moving_variance:0"):
        name = next(each for each in start if each.startswith("stem") and each.endswith(kind))
        statistic = start[name] + (together[name] - start[name]) / MOVED_BY
        expected = statistic + (start[name] - statistic) * (1 - MOVED_BY) ** STEPS
        np.testing.assert_allclose(values[name], expected, atol=1e-6)


def test_deferred_batch_norm_trains_the_same_weights():
    settings = ("resnet", RESNET, 2, 2, "gpipe", "always", "sgd")
    losses, values, _, _ = pipelined(*settings, deferred=True)
    expected_losses, expected, _, _ = pipelined(*settings)
    assert losses == expected_losses
    moved_names = [name for name, value in expected.items() if (values[name] != value).any()]
    assert moved_names
    assert all("moving_" in name for name in moved_names)


def test_there_must_be_batch_norm_to_defer():
    with pytest.raises(UnsupportedGraphError, match="no batch norm to defer"):
        pipelined("gpt2", GPT2, 2, 2, "gpipe", "always", "sgd", deferred=True)


def test_dropout_draws_the_same_again_in_a_recomputation():
    options = GPT2 | {"dropout": 0.5}
    kept, values, _, _ = pipelined("gpt2", options, 2, 2, "gpipe", "never", "momentum")
    recomputed, again, _, _ = pipelined("gpt2", options, 2, 2, "gpipe", "always", "momentum")
    assert recomputed == kept
    for name, value in values.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_tasks_run_one_after_the_other_and_wait_for_what_they_read():
    _, _, plan, times = pipelined("gpt2", GPT2, 2, 4, "gpipe", "always", "sgd")
    begin, end = {}, {}
    for stage, own in enumerate(times):
        assert len(own) == 2 * len(plan.tasks[stage]) + 1  # and the end of the update
        assert (np.diff(own) >= 0).all()
        for i, task in enumerate(plan.tasks[stage]):
            begin[stage, task.kind, task.micro_batch] = own[2 * i]
            end[stage, task.kind, task.micro_batch] = own[2 * i + 1]
    for i in range(4):
        # A task begins when what it reads is there, which may leave before its maker's end.
        assert begin[0, "forward", i] <= begin[1, "forward", i]
        assert begin[1, "backward", i] <= begin[0, "backward", i]
    for i in range(2, 4):
        # Nothing piles up: a stage goes on once its reader has taken what it made last, and that
        # leaves when the reader is through with the one before.
        assert end[1, "forward", i - 2] <= begin[0, "forward", i]
    # GPipe: all forward, then all backward, the last micro-batch first.
    assert end[1, "forward", 3] <= begin[1, "backward", 3] <= begin[1, "backward", 0]


def test_a_keras_model_is_refused():
    model = make_model("keras/MobileNetV2", {"batch_size": 2})
    with pytest.raises(UnsupportedGraphError, match="a pipeline runs built-in models"):
        draw_step(model, model, optimizer="sgd")


def test_a_stage_on_a_gpu_swaps_to_its_own_host():
    whole = make_model("gpt2", GPT2 | {"batch_size": BATCH})
    step = draw_step(dataclasses.replace(whole, batch_size=2), whole, optimizer="sgd")
    graph = step.trace.graph
    gpu = target("gtx-1070")
    partition = Partitioner(graph).by_time(2, gpu, slack=0.1)
    schedule = make_schedule("gpipe", stages=2, micro_batches=2, checkpoint="never")
    gpus = [f"/job:stage/task:{i}/device:GPU:0" for i in range(2)]
    within = plan_stages(stage_graphs(graph, partition), "lms", make_options("lms"), gpu)
    built = build_pipeline(step, partition, schedule, gpus, plans=within).graph.as_graph_def()
    on_hosts = [node for node in built.node if "GPU" not in node.device]
    assert {node.device for node in on_hosts} == {gpu.replace("GPU", "CPU") for gpu in gpus}
    devices = {node.name: node.device for node in built.node}
    moved, readers = 0, set()
    for node in built.node:
        for name in (each for each in node.input if not each.startswith("^")):
            source = devices[name.partition(":")[0]]
            if source != node.device and "CPU" in source + node.device:
                assert source.partition("/device")[0] == node.device.partition("/device")[0]
                moved += 1
                readers.add(node.op)
    assert moved == 2 * sum(action.kind == "swap_out" for plan in within for action in plan) * 2
    assert readers == {"Identity"}
