"""The graphs of the thesis' training steps, by TensorFlow."""

from functools import cache

import msgspec
import tensorflow as tf

from memtrade.graph import StepGraph
from memtrade.options import Value
from memtrade.papers.thesis_nets import OPTIMIZER, make_net
from memtrade.rebatch import Rebatcher
from memtrade.tf.build import make_step
from memtrade.tf.extract import trace

# Batch sizes of the tables.
TRACED = (32, 128)


def trace_step(layers: int | None, batch_size: int, **given: Value) -> StepGraph:
    """The graph of one training step of `make_net`, without the gates of its gradients."""
    with tf.Graph().as_default():
        graph = trace(make_step(make_net(layers, batch_size, **given), optimizer=OPTIMIZER)).graph
    return ungated(graph)


@cache
def step_at(layers: int | None, batch_size: int) -> StepGraph:
    """The same, traced at the batch sizes of the tables, and from there taken to others."""
    if batch_size in TRACED:
        return trace_step(layers, batch_size)
    first, second = (step_at(layers, traced) for traced in TRACED)
    return Rebatcher(first, TRACED[0], second, TRACED[1]).at(batch_size)


def ungated(graph: StepGraph) -> StepGraph:
    """Without what memtrade's gradients wait for: `tf.gradients`, which OpenAI's benchmark calls,
    makes no gates."""
    gates = {op.id for op in graph.ops if op.type == "NoOp"}
    ops = tuple(
        msgspec.structs.replace(op, controls=tuple(c for c in op.controls if c not in gates))
        for op in graph.ops
    )
    return StepGraph(msgspec.structs.replace(graph.data, ops=ops))
