"""A pipelined step is the unpipelined one: same losses, same variables, several steps on."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.models import make_model
from memtrade.pipeline.partition import Partitioner
from memtrade.pipeline.schedule import make_schedule
from memtrade.simulate.devices import load_device
from memtrade.tf.build import make_step
from memtrade.tf.construction import Construction
from memtrade.tf.pipeline import build_pipeline, draw_step, session_config

BATCH, STEPS = 4, 3
GPT2 = {"layers": 2, "width": 16, "heads": 2, "positions": 8, "vocabulary": 30}
TIED = GPT2 | {"tied": True}
UNET = {"num_convs": 1, "base_channels": 4, "image_size": 64, "dropout": 0.0}
RESNET = {"layers": 18, "image_size": 32, "num_classes": 10}

v1 = tf.compat.v1


def pipelined(family, options, stages, micro_batches, schedule, checkpoint, optimizer):
    """Runs the pipeline on logical devices of this process: (losses, values by variable)."""
    whole = make_model(family, options | {"batch_size": BATCH})
    part = dataclasses.replace(whole, batch_size=BATCH // micro_batches)
    step = draw_step(part, whole, optimizer=optimizer)
    partition = Partitioner(step.trace.graph).by_time(stages, load_device("arena"), slack=0.1)
    plan = make_schedule(
        schedule, stages=stages, micro_batches=micro_batches, checkpoint=checkpoint
    )
    devices = [f"/device:CPU:{i}" for i in range(stages)]
    pipeline = build_pipeline(step, partition, plan, devices)
    config = session_config()
    config.device_count["CPU"] = stages
    with v1.Session(graph=pipeline.graph, config=config) as session:
        session.run(pipeline.initialize)
        losses, times = [], []
        for _ in range(STEPS):
            loss, times, _ = session.run([pipeline.loss, pipeline.times, pipeline.updated])
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


def test_dropout_draws_the_same_again_in_a_recomputation():
    options = GPT2 | {"dropout": 0.5}
    kept, values, _, _ = pipelined("gpt2", options, 2, 2, "gpipe", "never", "sgd")
    recomputed, again, _, _ = pipelined("gpt2", options, 2, 2, "gpipe", "always", "sgd")
    assert recomputed == kept
    for name, value in values.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_tasks_run_one_after_the_other_and_wait_for_what_they_read():
    _, _, plan, times = pipelined("gpt2", GPT2, 2, 4, "gpipe", "always", "sgd")
    begin, end = {}, {}
    for stage, own in enumerate(times):
        assert (np.diff(own) >= 0).all()
        for i, task in enumerate(plan.tasks[stage]):
            begin[stage, task.kind, task.micro_batch] = own[2 * i]
            end[stage, task.kind, task.micro_batch] = own[2 * i + 1]
    for i in range(4):
        assert end[0, "forward", i] <= end[1, "forward", i]
        assert begin[1, "backward", i] <= end[0, "backward", i]
    # GPipe: all forward, then all backward, the last micro-batch first.
    assert end[1, "forward", 3] <= begin[1, "backward", 3] <= begin[1, "backward", 0]


def test_a_keras_model_is_refused():
    model = make_model("keras/MobileNetV2", {"batch_size": 2})
    with pytest.raises(UnsupportedGraphError, match="a pipeline runs built-in models"):
        draw_step(model, model, optimizer="sgd")
