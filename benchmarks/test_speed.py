"""How long planning, simulating and rewriting take, from ResNet-18 to 200: `make speed`.

Not a timed test: it prints and saves what it measured. The rows grow with the number of ops, so a
step that is worse than linear shows as a falling "ops per second".
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf

from memtrade.models import make_model
from memtrade.simulate.memory import Simulator
from memtrade.strategies import PLANNED, make_options
from memtrade.target import profile_target
from memtrade.tf.build import make_step
from memtrade.tf.extract import Trace, trace
from memtrade.tf.rewrite import rewrite
from memtrade.tf.swap import SerializeTransfer

ARENA = profile_target("arena")
DEPTHS = (18, 34, 50, 101, 152, 200)


@functools.cache
def traced(layers: int) -> Trace:
    with tf.Graph().as_default():
        return trace(make_step(make_model("resnet", {"layers": layers, "batch_size": 32})))


@functools.cache
def planned(layers: int, strategy: str):
    return PLANNED[strategy].plan(traced(layers).graph, make_options(strategy), ARENA)


def label(benchmark, layers: int) -> None:
    benchmark.extra_info["ops"] = len(traced(layers).graph.ops)


@pytest.mark.parametrize("layers", DEPTHS)
@pytest.mark.parametrize("strategy", ["checkpoints", "lms", "ome"])
def test_rewrite(benchmark, strategy, layers):
    plan = planned(layers, strategy)
    label(benchmark, layers)
    benchmark.group = f"rewrite {strategy}"
    graph_def = benchmark.pedantic(
        rewrite, (traced(layers), plan, SerializeTransfer()), rounds=3, warmup_rounds=1
    )
    assert len(graph_def.node) >= len(traced(layers).graph.ops) - len(
        traced(layers).graph.data.captures
    )


@pytest.mark.parametrize("layers", DEPTHS)
@pytest.mark.parametrize("strategy", ["checkpoints", "lms", "ome"])
def test_plan(benchmark, strategy, layers):
    graph = traced(layers).graph
    label(benchmark, layers)
    benchmark.group = f"plan {strategy}"
    plan = benchmark.pedantic(
        PLANNED[strategy].plan, (graph, make_options(strategy), ARENA), rounds=2
    )
    assert plan.actions


@pytest.mark.parametrize("layers", DEPTHS)
def test_simulate(benchmark, layers):
    simulator = Simulator(traced(layers).graph, ARENA)
    plan = planned(layers, "ome")
    label(benchmark, layers)
    benchmark.group = "simulate one step of ome"
    result = benchmark.pedantic(
        simulator.memory, (plan,), {"limit_bytes": 1 << 40, "steps": 1}, rounds=3
    )
    assert result.peak_bytes > 0
