"""What tracing does not size has the size that it has for the example batch."""

# pyright: reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import memtrade
from memtrade.bounds import bound_of
from memtrade.errors import UnsupportedGraphError
from memtrade.graph import BOUND, WATCHED
from memtrade.op_types import LOOP_TYPES
from memtrade.tf import unroll, watched
from memtrade.tf.calling import step_to_read
from memtrade.tf.extract import trace_concrete
from tests.graphs import PINNED

WIDTH, LAYERS = 32, 6


def ragged_step():
    """A step of a ragged batch, and its variables."""
    table = tf.Variable(tf.random.stateless_normal([50, WIDTH], (0, 1)))
    weights = [
        tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], (1, i)) / 6) for i in range(LAYERS)
    ]

    @tf.function
    def train_step(words):
        with tf.GradientTape() as tape:
            x = tf.gather(table, words.values)
            for w in weights:
                x = tf.nn.tanh(x @ w)
            loss = tf.reduce_sum(tf.math.segment_sum(x, words.value_rowids()) ** 2)
        for w, g in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(1e-4 * g)
        return loss

    return train_step, [table, *weights]


def batch_of(*lengths):
    return tf.RaggedTensor.from_row_lengths(tf.range(sum(lengths)) % 50, lengths)


def traced(step, *example):
    return trace_concrete(*step_to_read(step, example)).graph


def test_shapes_of_a_ragged_batch_are_those_of_the_example():
    step, _ = ragged_step()
    graph = traced(step, batch_of(100, 7, 21))
    assert not graph.data.unsized
    assert bound_of(graph, PINNED) == "≈"
    shapes = {graph.tensors[t].shape for t, how in graph.data.sized.items() if how == WATCHED}
    assert (128, WIDTH) in shapes  # the rows of all three


def masked_recurrent_step():
    """A masked LSTM behind an embedding, whose optimizer has a cond for the rows that were read."""
    tokens = keras.Input([12], dtype="int32")
    x = keras.layers.Embedding(50, WIDTH, mask_zero=True)(tokens)
    model = keras.Model(tokens, keras.layers.Dense(3)(keras.layers.LSTM(WIDTH)(x)))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.RMSprop(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step, (tf.reshape(tf.range(96), [8, 12]) % 50, tf.range(8) % 3)


@pytest.mark.parametrize("most_ops", [0, unroll.MOST_OPS])
def test_a_masked_loop_and_a_branch_behind_an_embedding_have_sizes(most_ops, monkeypatch):
    monkeypatch.setattr(unroll, "MOST_OPS", most_ops)
    step, batch = masked_recurrent_step()
    graph = traced(step, *batch)
    assert not graph.data.unsized
    loops = {"While", "StatelessWhile"} & {op.type for op in graph.ops}
    assert bool(loops) == (not most_ops)


def test_specs_tell_no_shapes():
    step, _ = ragged_step()
    graph = traced(step, tf.RaggedTensorSpec([3, None], tf.int32, 1))
    assert graph.data.unsized
    assert bound_of(graph, PINNED) == "≥"


def test_a_ragged_step_is_planned_for_a_budget_and_other_batches_get_the_same():
    step, variables = ragged_step()
    before = [v.numpy() for v in variables]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # it would run as it is
        lean = memtrade.apply(step, (batch_of(900, 70, 30),), "optimal", budget="700KB")
    assert all(np.array_equal(v.numpy(), b) for v, b in zip(variables, before, strict=True))
    for batch in (batch_of(900, 70, 30), batch_of(1900, 700, 3), batch_of(0, 1, 0)):
        ran = []
        for each in (step, lean):
            for v, b in zip(variables, before, strict=True):
                v.assign(b)
            ran.append([each(batch).numpy(), *(v.numpy() for v in variables)])
        assert all(np.array_equal(*pair) for pair in zip(*ran, strict=True))


def test_watching_takes_nothing_from_an_iterator():
    """So what comes of one is not sized."""
    weight = tf.Variable(tf.ones([4, 4]))
    rows = iter(tf.data.Dataset.range(8).map(lambda i: tf.ones([i, 4])))

    @tf.function
    def train_step():
        with tf.GradientTape() as tape:
            x = next(rows)
            for _ in range(4):
                x = tf.nn.tanh(x @ weight)
            loss = tf.reduce_sum(x)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    with pytest.raises(
        UnsupportedGraphError, match=r"IteratorGetNext:0 .*: hand what it comes of to"
    ):
        memtrade.apply(train_step, (), "optimal", budget="1MB")
    assert next(rows).shape[0] == 0


def test_averages_that_begin_with_zeros_do_not_keep_an_embeddings_step_from_having_sizes():
    """Adafactor divides by them, and where any is 0, Keras widens the gradient's rows."""
    table = keras.Variable(tf.ones([6, 4]))
    optimizer = keras.optimizers.Adafactor(0.01)
    optimizer.build([table])

    @tf.function
    def step(words):
        with tf.GradientTape() as tape:
            near = tf.range(tf.shape(words)[0]) // 4
            loss = tf.reduce_sum(tf.gather(table.value, near) ** 2)
        optimizer.apply(tape.gradient(loss, [table.value]), [table])
        return loss

    assert not traced(step, tf.zeros([16])).data.unsized


def test_what_runs_to_be_watched_may_read_a_table():
    keys = tf.lookup.KeyValueTensorInitializer(tf.range(4), tf.range(4) * 2)
    table = tf.lookup.StaticHashTable(keys, -1)
    weight = tf.Variable(tf.ones([8, 8]))

    def train_step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(weight, table.lookup(tf.unique(ids)[0])))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    graph = traced(train_step, tf.constant([0, 1, 1, 3]))
    assert not graph.data.unsized
    found = graph.tensors[
        graph.ops[[op.type for op in graph.ops].index("LookupTableFindV2")].outputs[0]
    ]
    assert found.shape == (3,)


def test_how_often_a_loop_runs_is_watched():
    """It reads rows of a table, whose shape its body is told, and a weight, which its list holds
    for the gradient without a copy."""
    table, weight = tf.Variable(tf.ones([8, WIDTH])), tf.Variable(tf.ones([WIDTH, WIDTH]))

    def train_step(words, longest):
        with tf.GradientTape() as tape:
            x = tf.zeros([100, WIDTH])
            word = tf.constant(0)
            while word < tf.reduce_max(longest):
                x = tf.nn.tanh((x + tf.gather(table, words)) @ weight)
                word += 1
            loss = tf.reduce_sum(x)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    graph = traced(train_step, tf.range(100) % 8, tf.constant([3, 5, 2]))
    assert not graph.data.unsized
    assert bound_of(graph, PINNED) == "≈"
    (loop,) = (op for op in graph.ops if op.type in LOOP_TYPES and "gradient" not in op.name)
    lists = [
        graph.tensors[t].size_bytes for t in loop.outputs if graph.tensors[t].dtype == "variant"
    ]
    rows_bytes = 4 * 100 * WIDTH
    assert 2 * 5 * rows_bytes <= sum(lists) < 3 * 5 * rows_bytes  # before and behind the matrix
    assert all(graph.data.sized[t] == WATCHED for t in loop.outputs if t in graph.data.sized)


def count_of(x):
    return tf.reduce_sum(tf.cast(x > 0, tf.int32))


def range_to_count(x):
    return tf.range(count_of(x))


def range_to_rows(x):
    return tf.range(tf.shape(tf.boolean_mask(x, x > 0))[0])


def random_to_count(x):
    return tf.random.uniform([count_of(x)], maxval=300, dtype=tf.int32)


@pytest.mark.parametrize(
    ("indices", "known"),
    [
        (range_to_count, (200, WATCHED)),
        (range_to_rows, (250, BOUND)),  # a dimension is no longer than it can be
        (random_to_count, (200, WATCHED)),
    ],
)
def test_as_many_elements_as_a_number_says(indices, known):
    weight = tf.Variable(tf.ones([300]))

    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(weight, indices(x)))
        weight.assign_sub(tf.convert_to_tensor(tape.gradient(loss, weight)))
        return loss

    graph = traced(train_step, tf.constant([1.0] * 200 + [-1.0] * 50))
    [made] = [op.outputs[0] for op in graph.ops if op.type in ("RandomUniformInt", "Range")]
    assert (graph.tensors[made].size_bytes // 4, graph.data.sized[made]) == known


def masked_pairs_step():
    """As a DLRM: of all pairs of features, those below the diagonal."""
    w = tf.Variable(tf.random.stateless_normal([28, 4], (1, 0)))

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            pairs = tf.matmul(x, x, transpose_b=True)  # [64, 8, 8]
            below = tf.linalg.band_part(tf.ones([8, 8]), -1, 0) - tf.eye(8)
            kept = tf.boolean_mask(tf.transpose(pairs, [1, 2, 0]), below > 0)  # 28 of 64 rows
            loss = tf.reduce_sum(tf.matmul(tf.ensure_shape(kept, [28, 64]), w, transpose_a=True))
        w.assign_sub(1e-3 * tape.gradient(loss, w))
        return loss

    return train_step


def test_shapes_are_inferred_of_what_leads_to_them_alone(monkeypatch):
    nodes, infer = [], watched._static_shapes

    def counted(graph_def, names):
        nodes.append(len(graph_def.node))
        return infer(graph_def, names)

    monkeypatch.setattr(watched, "_static_shapes", counted)
    graph = traced(masked_pairs_step(), tf.ones([64, 8, 3]))
    assert nodes
    assert max(nodes) < 0.75 * len(graph.ops), (nodes, len(graph.ops))


def test_what_a_mask_of_constants_lets_through_is_known_exactly():
    graph = traced(masked_pairs_step(), tf.ones([64, 8, 3]))
    [gathered] = [op for op in graph.ops if op.type == "GatherV2"]
    assert graph.tensors[gathered.outputs[0]].size_bytes == 28 * 64 * 4  # not 64 x 64 x 4
    [where] = [op for op in graph.ops if op.type == "Where"]
    assert where.outputs[0] not in graph.data.sized


def test_what_is_as_large_as_what_a_mask_of_constants_lets_through_is_known_exactly():
    """Beside other features, and in the gradient, which is cut in two."""
    w = tf.Variable(tf.ones([31, 1]))

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            pairs = tf.reshape(tf.matmul(x, x, transpose_b=True), [64, 64])
            below = tf.linalg.band_part(tf.ones([8, 8]), -1, 0) - tf.eye(8)
            kept = tf.boolean_mask(tf.transpose(pairs), tf.reshape(below, [-1]) > 0)  # 28 of 64
            joined = tf.concat([x[:, 0], tf.transpose(kept)], 1)
            loss = tf.reduce_sum(tf.matmul(tf.ensure_shape(joined, [64, 31]), w))
        of_w, of_x = tape.gradient(loss, [w, x])
        w.assign_sub(of_w)
        return loss, of_x

    graph = traced(train_step, tf.ones([64, 8, 3]))
    slices = [op.outputs[0] for op in graph.ops if op.type == "Slice"]
    assert 28 * 64 * 4 in {graph.tensors[t].size_bytes for t in slices}
    assert not graph.data.sized
    assert not graph.data.unsized


def test_which_dimensions_a_gradient_is_summed_over_is_known_exactly_behind_an_unrolled_loop():
    """There shapes become known that were not when the gradients were written down."""
    w = tf.Variable(tf.ones([4]))

    @tf.function
    def train_step(x):
        total = tf.zeros([4])
        for i in tf.range(2):
            with tf.GradientTape() as tape:
                made = tf.exp(x[i * 8 : (i + 1) * 8] * w)
                loss = tf.reduce_sum(made * tf.reduce_max(made, 1, keepdims=True))
            total += tape.gradient(loss, w)
        w.assign_sub(total)
        return total

    graph = traced(train_step, tf.ones([16, 3, 4]))
    summed = [op.outputs for op in graph.ops if op.type == "BroadcastGradientArgs"]
    sizes = {tuple(graph.tensors[t].size_bytes for t in each) for each in summed}
    assert sizes == {(0, 4)}  # of one dimension, for the second of the two
    assert not graph.data.sized
