"""How long an unrolled step takes to be extracted and planned: an LSTM with attention.

    pytest benchmarks/test_unrolled.py

Many ops, long sums of gradients and a peak full of holes, where the look for reservations
(`memtrade/simulate/placement.py`) is most of the work. The table counts rows that were simulated,
too: a busy machine does not change them.
"""

# pyright: reportOperatorIssue=false

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf

from memtrade.strategies import PLANNED, make_options
from memtrade.strategies.base import clock_of
from memtrade.target import profile_target
from memtrade.tf.calling import step_to_read
from memtrade.tf.extract import trace_concrete

WIDTH, PLACES, BATCH = 48, 24, 32
TARGET = profile_target("arena")


def unrolled_step(cells: int):
    """A step of (memory, inputs), of so many cells, and its batch."""
    shapes = [2 * WIDTH, 4 * WIDTH], [WIDTH, WIDTH], [2 * WIDTH, WIDTH]
    weights = [tf.Variable(0.1 * tf.random.stateless_normal(each, (0, 1))) for each in shapes]

    @tf.function
    def train_step(memory, x):
        with tf.GradientTape() as tape:
            h = c = tf.zeros([BATCH, WIDTH])
            keys, losses = memory @ weights[1], []
            for t in range(cells):
                i, f, g, o = tf.split(tf.concat([x[:, t], h], -1) @ weights[0], 4, -1)
                c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
                h = tf.sigmoid(o) * tf.tanh(c)
                seen = tf.nn.softmax(tf.einsum("bsd,bd->bs", keys, h))
                context = tf.einsum("bs,bsd->bd", seen, memory)
                losses.append(tf.nn.l2_loss(tf.tanh(tf.concat([h, context], -1) @ weights[2])))
            loss = tf.add_n(losses)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-3 * gradient)
        return loss

    return train_step, (tf.ones([BATCH, PLACES, WIDTH]), tf.ones([BATCH, cells, WIDTH]))


@pytest.mark.parametrize("cells", [20, 40, 80])
def test_extract_and_plan(benchmark, cells):
    step, concrete = step_to_read(*unrolled_step(cells), None)

    def planned():
        graph = trace_concrete(step, concrete).graph
        return graph, PLANNED["ome"].plan(graph, make_options("ome"), TARGET)

    graph, plan = benchmark.pedantic(planned, rounds=1)
    walked = clock_of(graph, TARGET).simulator.linker.walked
    benchmark.extra_info.update(ops=len(graph.ops), walked=walked)
    assert plan.actions
