"""How long `optimal` plans the largest steps, and how much memory that takes: part of `make speed`.

    pytest benchmarks/test_planning.py --benchmark-json=results/speed/planning.json
    python benchmarks/planning_table.py results/speed/planning.json > results/speed/planning.md

Each plan is made in a process of its own, from a graph in a file, as `memtrade plan` does it; its
options leave `time_limit` at the default. TARGETS are not asserted here: whether the machine is
busy decides. The table has them beside what was measured.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf

from memtrade.graph import StepGraph
from memtrade.models import make_model
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.predict import Predictor
from memtrade.strategies import PLANNED, make_options
from memtrade.target import profile_target
from memtrade.tf.build import make_step
from memtrade.tf.extract import trace

PLANNER = Path(__file__).with_name("planner.py")

STEPS = {
    "ResNet-50": ("resnet", {"layers": 50}),
    "ResNet-200": ("resnet", {"layers": 200}),
    "InceptionV4": ("inception-v4", {}),
}
BATCH_SIZE = 32
# A goal is a device and the share of the activations' memory that the plan may take; None: least.
GOALS = {
    "least memory, arena": ("arena", None),
    "activations to 1/4, arena": ("arena", 0.25),
    "least memory, gtx-1070": ("gtx-1070", None),
    "activations to 1/4, gtx-1070": ("gtx-1070", 0.25),
}
# Else what is free on this machine decides.
HOST_MEMORY = "64GB"

TARGETS = {"plan_seconds": 5.0, "planning_peak_bytes": 1e9, "simulate_seconds": 0.3}


@functools.cache
def graph_of(name: str) -> StepGraph:
    family, options = STEPS[name]
    with tf.Graph().as_default():
        return trace(make_step(make_model(family, {**options, "batch_size": BATCH_SIZE}))).graph


def options_of(graph: StepGraph, device: str, share: float | None) -> dict[str, str]:
    made = {"host_memory_limit": HOST_MEMORY}
    if share is not None:
        target = profile_target(device)
        nothing = PLANNED["original"].plan(graph, make_options("original"), target)
        predictor = Predictor(graph, target)
        original = predictor.predict(nothing, limit_bytes=ROOMY_BYTES)
        budget = int(original.persistent_bytes + share * original.memory_cost_bytes)
        made["budget"] = f"{budget}B"
    return made


def plan_apart(path: Path, device: str, options: dict[str, str]) -> dict[str, float]:
    words = [sys.executable, str(PLANNER), str(path), device, json.dumps(options)]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("name", STEPS)
def test_planning(benchmark, tmp_path, name, goal):
    graph = graph_of(name)
    path = tmp_path / "graph.msgpack"
    path.write_bytes(graph.to_bytes())
    device, share = GOALS[goal]
    options = options_of(graph, device, share)
    made = benchmark.pedantic(plan_apart, (path, device, options), rounds=1)
    benchmark.extra_info.update(made, step=name, ops=len(graph.ops), targets=TARGETS)
    assert made["step_peak_bytes"] < made["original_step_peak_bytes"]
    if "budget" in options:
        assert made["step_peak_bytes"] <= int(options["budget"].removesuffix("B"))
