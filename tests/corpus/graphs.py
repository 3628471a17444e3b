"""Networks over graphs, points and particles: gathers, segments, sparse products."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

import tensorflow as tf

from tests.corpus.parts import BATCH, Made, descend, normal, sparse_loss, weights, whole

NODES, EDGES, WIDTH = 1000, 4000, 32


def _edges() -> tuple[tf.Tensor, tf.Tensor]:
    """From where, and to where in ascending order."""
    return whole(EDGES, below=NODES), tf.sort(whole(EDGES, below=NODES, seed=6))


def _classes() -> tf.Tensor:
    return whole(NODES, below=10, seed=8)


def graph_convolution() -> Made:
    """A sparse adjacency matrix times the nodes' features."""
    source, target = _edges()
    where = tf.cast(tf.stack([target, source], 1), tf.int64)
    order = tf.argsort(where[:, 0] * NODES + where[:, 1])
    adjacency = tf.SparseTensor(tf.gather(where, order), tf.fill([EDGES], 0.25), [NODES, NODES])
    layers = weights(*[[WIDTH, WIDTH]] * 4, [WIDTH, 10])

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            for w in layers[:-1]:
                x = tf.nn.relu(tf.sparse.sparse_dense_matmul(adjacency, x @ w))
            loss = sparse_loss(y, x @ layers[-1])
        descend(tape, loss, layers)
        return loss

    return train_step, (normal(NODES, WIDTH), _classes())


def segment_mean_and_max() -> Made:
    """Messages along edges, their mean and their largest for each node."""
    layers = weights(*[[3 * WIDTH, WIDTH]] * 5, [WIDTH, 10])

    @tf.function
    def train_step(x, source, target, y):
        with tf.GradientTape() as tape:
            for w in layers[:-1]:
                messages = tf.nn.relu(tf.gather(x, source) - tf.gather(x, target))
                mean = tf.math.segment_mean(messages, target)
                most = tf.math.segment_max(messages, target)
                pad = [[0, NODES - tf.shape(mean)[0]], [0, 0]]
                both = tf.concat([x, tf.pad(mean, pad), tf.pad(most, pad)], 1)
                x = x + tf.nn.tanh(tf.ensure_shape(both, [NODES, 3 * WIDTH]) @ w)
            loss = sparse_loss(y, x @ layers[-1])
        descend(tape, loss, layers)
        return loss

    return train_step, (normal(NODES, WIDTH), *_edges(), _classes())


def graph_attention() -> Made:
    layers = [weights([WIDTH, WIDTH], [2 * WIDTH, 1], seed=i) for i in range(3)]
    (head,) = weights([WIDTH, 10], seed=9)

    @tf.function
    def train_step(x, source, target, y):
        with tf.GradientTape() as tape:
            for w, attend in layers:
                h = x @ w
                sent, received = tf.gather(h, source), tf.gather(h, target)
                score = tf.nn.leaky_relu(tf.concat([sent, received], 1) @ attend)
                score = tf.exp(tf.clip_by_value(score, -2.0, 2.0))
                total = tf.math.unsorted_segment_sum(score, target, NODES)
                weighted = sent * score / tf.gather(total, target)
                x = x + tf.math.unsorted_segment_sum(weighted, target, NODES)
            loss = sparse_loss(y, x @ head)
        descend(tape, loss, [head, *(w for each in layers for w in each)])
        return loss

    return train_step, (normal(NODES, WIDTH), *_edges(), _classes())


def message_passing() -> Made:
    """Networks on edges and on nodes, as for molecules."""
    on_edges = weights(*[[3 * WIDTH, WIDTH]] * 3, seed=1)
    on_nodes = weights(*[[2 * WIDTH, WIDTH]] * 3, seed=2)

    @tf.function
    def train_step(x, e, source, target):
        with tf.GradientTape() as tape:
            for edge, node in zip(on_edges, on_nodes, strict=True):
                e = e + tf.nn.silu(
                    tf.concat([e, tf.gather(x, source), tf.gather(x, target)], 1) @ edge
                )
                summed = tf.math.unsorted_segment_sum(e, target, NODES)
                x = x + tf.nn.silu(tf.concat([x, summed], 1) @ node)
            loss = tf.reduce_mean(x**2)
        descend(tape, loss, [*on_edges, *on_nodes])
        return loss

    return train_step, (normal(NODES, WIDTH), normal(EDGES, WIDTH, seed=3), *_edges())


def point_net() -> Made:
    """Keras's example "Point cloud classification with PointNet"."""
    layers = weights([3, 32], [32, 64], [64, 64], [64, 128], [128, 10])

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            for w in layers[:-1]:
                x = tf.einsum("bpc,cd->bpd", x, w)
                mean, variance = tf.nn.moments(x, [0, 1])
                x = tf.nn.relu((x - mean) * tf.math.rsqrt(variance + 1e-3))
            loss = sparse_loss(y, tf.reduce_max(x, 1) @ layers[-1])
        descend(tape, loss, layers)
        return loss

    return train_step, (normal(BATCH, 256, 3), whole(BATCH))


STEPS = (
    graph_convolution, segment_mean_and_max, graph_attention, message_passing, point_net,
)  # fmt: skip
