"""What the runtime computes once: TensorFlow's log says which kernels run in a later step, and in
which order constants are made before the first."""

from __future__ import annotations

import json
import os
import re
from functools import cache

import pytest
import tensorflow as tf

from memtrade.simulate.memory import Simulator
from memtrade.target import profile_target
from memtrade.tf.extract import trace
from tests import forks
from tests.tf.test_extract import step_of

SCRIPT = """
import json, sys
import tensorflow as tf
from memtrade.graph import StepGraph
from memtrade.simulate.memory import Simulator
from memtrade.target import profile_target
from memtrade.tf.extract import read_graph

tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

@tf.function(autograph=False)
def step(x):
    ones = tf.constant([[0.5, 0.25]] * 8)
    made = tf.sin(ones) + tf.gather(ones, tf.range(8)[::-1])
    noise = tf.random.stateless_normal([8, 2], [3, 1])
    sums = tf.raw_ops.BroadcastGradientArgs(s0=[8, 2], s1=[8, 2])
    seen = tf.cast(tf.size(sums[0]) + tf.size(sums[1]), tf.float32)
    small = tf.sin(tf.reshape(tf.range(1 << 18, dtype=tf.float32), [1, 1 << 18]))
    large = tf.tile(small, [12, 1])  # of 12 MB: not kept, and so nor is what it is made of
    seen += tf.reduce_sum(tf.cos(tf.tile(small + 1, [12, 1])))  # of which only the sum is read
    first = x[0, 0]
    for size, name in ((96, "second"), (160, "first")):
        seen += tf.reduce_sum(tf.fill([size], 0.5, name=name) * first)
    seen += tf.reduce_max(large * first)
    return tf.reduce_sum(x * made + noise * 2.0) + seen

x = tf.ones([8, 2])
graph = StepGraph(read_graph("step", step.get_concrete_function(x)))
ops = [op for op in graph.ops if op.type not in ("Const", "NoOp", "Placeholder")]
step(x)
print("LATER", file=sys.stderr, flush=True)
step(x)
folded = {op.name: graph.folded[op.id] for op in ops}
made = Simulator(graph, profile_target("arena")).linker.constants.folded
print(json.dumps([folded, [graph.label(t) for t in made]]))
"""


@cache
def _ran() -> tuple[dict[str, bool], list[str], str]:
    """Of each op whether it is folded, the folded constants' labels in order, and the log."""
    logged = {"TF_CPP_VMODULE": "log_memory=2", "TF_CPP_MIN_LOG_LEVEL": "0"}
    done = forks.ran(["-c", SCRIPT], env=os.environ | logged)
    assert done.returncode == 0, done.stderr[-2000:]
    return *json.loads(done.stdout), done.stderr


def test_what_is_called_constant_is_what_does_not_run_again() -> None:
    folded, _, log = _ran()
    later = log.rpartition("LATER")[2]
    ran = set(re.findall(r'MemoryLogTensorOutput \{.*?kernel_name: "([^"]*)"', later))
    assert {name for name in folded if name in ran} == {name for name in folded if not folded[name]}
    assert len(ran & folded.keys()) > 3
    assert any(folded.values())


def test_constants_are_made_in_the_order_of_their_names() -> None:
    _, labels, log = _ran()
    assert [each for each in labels if each in ("first:0", "second:0")] == ["first:0", "second:0"]
    lies = re.findall(r'"Unknown \(from Proto\)".*?shape \{ dim \{ size: (96|160) \} \}', log)
    assert lies[-2:] == ["160", "96"]


@pytest.mark.parametrize(("length", "differing"), [(4, 1), (2, 2)])
def test_what_is_made_of_constants_and_holds_the_same_is_there_once(
    length: int, differing: int
) -> None:
    """Rows of a mask in the iterations of a loop: the values alone tell."""

    def step(x: tf.Tensor) -> tf.Tensor:
        mask = tf.repeat(tf.sequence_mask([length], 4, tf.float32), 300, 0)
        for i in range(4):
            x *= mask[:, i] * 2.0
        return tf.reduce_sum(x)

    graph = trace(step_of(step, tf.TensorSpec([300]))).graph
    folded = Simulator(graph, profile_target("arena")).linker.constants.folded
    rows = {made for t, made in folded.items() if graph.tensors[t].size_bytes == 1200}
    assert len(rows) == differing
