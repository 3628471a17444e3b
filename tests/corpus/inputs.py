"""What steps are given: ragged and sparse tensors, text, tables, variables, structures."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from tests.corpus.parts import (
    BATCH,
    Made,
    descend,
    labels,
    normal,
    seeded,
    sparse_loss,
    weights,
    whole,
)

ROWS, WIDTH, WORDS = 512, 64, 300


def _head(x: tf.Tensor, layers: list[tf.Variable]) -> tf.Tensor:
    for w in layers:
        x = tf.nn.relu(x @ w)
    return x


def _layers() -> list[tf.Variable]:
    return weights(*[[WIDTH, WIDTH]] * 6, seed=3)


def ragged() -> Made:
    """Texts of different lengths, as a RaggedTensor of tokens."""
    (table,), layers = weights([WORDS, WIDTH]), _layers()
    lengths = 1 + whole(ROWS, below=7)
    tokens = tf.RaggedTensor.from_row_lengths(
        whole(int(tf.reduce_sum(lengths)), below=WORDS), lengths
    )

    @tf.function
    def train_step(tokens, y):
        with tf.GradientTape() as tape:
            x = tf.reduce_mean(tf.ragged.map_flat_values(tf.nn.embedding_lookup, table, tokens), 1)
            loss = sparse_loss(y, _head(tf.ensure_shape(x, [ROWS, WIDTH]), layers))
        descend(tape, loss, [table, *layers])
        return loss

    return train_step, (tokens, whole(ROWS, below=WIDTH))


def ragged_inside() -> Made:
    """Flat tokens and the lengths of rows come in; what is ragged is made in the step."""
    (table,), layers = weights([WORDS, WIDTH]), _layers()

    @tf.function
    def train_step(flat, lengths, y):
        with tf.GradientTape() as tape:
            rows = tf.RaggedTensor.from_row_lengths(tf.gather(table, flat), lengths)
            x = _head(tf.ensure_shape(tf.reduce_sum(rows, 1), [ROWS, WIDTH]), layers)
            loss = sparse_loss(y, x)
        descend(tape, loss, [table, *layers])
        return loss

    return train_step, (whole(4 * ROWS, below=WORDS), tf.fill([ROWS], 4), whole(ROWS, below=WIDTH))


def ragged_mean() -> Made:
    """Rows of different lengths are averaged: nothing tells the size of what comes between."""
    (table,), layers = weights([WORDS, WIDTH]), _layers()
    lengths = 3 + tf.range(ROWS) % 9

    @tf.function
    def train_step(flat, splits, y):
        with tf.GradientTape() as tape:
            rows = tf.RaggedTensor.from_row_splits(flat, splits, validate=False)
            found = tf.ragged.map_flat_values(tf.nn.embedding_lookup, table, rows)
            x = tf.ensure_shape(tf.reduce_mean(found, 1), [ROWS, WIDTH])
            loss = sparse_loss(y, _head(x, layers))
        descend(tape, loss, [table, *layers])
        return loss

    splits = tf.concat([[0], tf.cumsum(lengths)], 0)
    return train_step, (whole(int(splits[-1]), below=WORDS), splits, whole(ROWS, below=WIDTH))


def sparse() -> Made:
    """Bags of words as a SparseTensor."""
    (table,), layers = weights([WORDS, WIDTH]), _layers()
    places = tf.stack([tf.repeat(tf.range(ROWS), 4), tf.tile(tf.range(4), [ROWS])], 1)
    bags = tf.SparseTensor(tf.cast(places, tf.int64), whole(4 * ROWS, below=WORDS), [ROWS, 4])

    @tf.function
    def train_step(bags, y):
        with tf.GradientTape() as tape:
            x = tf.nn.embedding_lookup_sparse(table, bags, None, combiner="mean")
            loss = sparse_loss(y, _head(tf.ensure_shape(x, [ROWS, WIDTH]), layers))
        descend(tape, loss, [table, *layers])
        return loss

    return train_step, (bags, whole(ROWS, below=WIDTH))


def hash_table() -> Made:
    """Words are looked up in a table, in the step."""
    (embedding,), layers = weights([WORDS, WIDTH]), _layers()
    keys = tf.constant([f"word{i}" for i in range(WORDS - 1)])
    known = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, tf.range(WORDS - 1, dtype=tf.int64)), WORDS - 1
    )

    @tf.function
    def train_step(words, y):
        with tf.GradientTape() as tape:
            x = tf.reduce_mean(tf.nn.embedding_lookup(embedding, known.lookup(words)), 1)
            loss = sparse_loss(y, _head(x, layers))
        descend(tape, loss, [embedding, *layers])
        return loss

    words = tf.strings.join(["word", tf.strings.as_string(whole(ROWS, 4, below=WORDS))])
    return train_step, (words, whole(ROWS, below=WIDTH))


def mutable_table() -> Made:
    """Counts of what was seen, in a table that the step changes."""
    (embedding,), layers = weights([WORDS, WIDTH]), _layers()
    counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    ids = tf.cast(tf.range(ROWS) % WORDS, tf.int64)
    counts.insert(ids, tf.ones([ROWS]))

    @tf.function
    def train_step(ids, y):
        counts.insert(ids, tf.maximum(counts.lookup(ids), 1.0))
        with tf.GradientTape() as tape:
            x = tf.nn.embedding_lookup(embedding, ids) / (1.0 + counts.lookup(ids))[:, None]
            loss = sparse_loss(y, _head(x, layers))
        descend(tape, loss, [embedding, *layers])
        return loss

    return train_step, (ids, whole(ROWS, below=WIDTH))


def tokenizer() -> Made:
    """Keras's TextVectorization and preprocessing layers as part of the step."""
    seeded()
    words = [f"w{i}" for i in range(50)]
    split = keras.layers.TextVectorization(output_sequence_length=16, vocabulary=words)
    model = keras.Sequential([keras.Input([16], dtype="int64"), keras.layers.Embedding(60, 64)])
    for _ in range(3):
        model.add(keras.layers.Conv1D(64, 3, padding="same", activation="relu"))
    model.add(keras.layers.GlobalAveragePooling1D())
    model.add(keras.layers.Dense(10))
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(texts, y):
        with tf.GradientTape() as tape:
            loss = sparse_loss(y, model(split(texts), training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    texts = tf.constant([" ".join(f"w{(i * j) % 70}" for j in range(20)) for i in range(256)])
    return train_step, (texts, tf.tile(labels(), [256 // BATCH]))


def augmentation() -> Made:
    """Keras's augmenting layers in the model; images arrive as bytes."""
    seeded()
    layers = keras.layers
    x = inputs = keras.Input([32, 32, 3], dtype="uint8")
    x = layers.Rescaling(1.0 / 255)(x)
    x = layers.RandomRotation(0.1)(layers.RandomFlip()(x))
    for filters in (16, 16, 16):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    pixels = tf.cast(whole(BATCH, 32, 32, 3, below=256), tf.uint8)
    return tf.function(lambda x, y: model.train_step((x, y)), autograph=False), (pixels, labels())


def variable_as_argument() -> Made:
    """The weights come in as arguments, as libraries of layers do it."""
    layers = _layers()

    @tf.function
    def train_step(layers, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_head(x, layers) ** 2)
        descend(tape, loss, layers)
        return loss

    return train_step, (layers, normal(ROWS, WIDTH))


class Batch(NamedTuple):
    """As data sets hand them out."""

    features: dict[str, tf.Tensor]
    weight: tf.Tensor


def structured() -> Made:
    """A named tuple with a dictionary in it, a Python number, and two outputs."""
    layers = _layers()
    left, right = weights([WIDTH, 8], [WIDTH, 1], seed=5)

    @tf.function
    def train_step(batch, training=True):
        with tf.GradientTape() as tape:
            x = _head(batch.features["a"] + batch.features["b"], layers)
            first = tf.reduce_mean(tf.nn.softplus(x @ left) * batch.weight[:, None])
            second = tf.reduce_mean((x @ right)[:, 0] ** 2 * batch.weight)
            total = first + (second if training else 0.0)
        descend(tape, total, [*layers, left, right])
        return {"outputs": {"left": first, "right": second}, "total_loss": total}

    features = {"a": normal(ROWS, WIDTH), "b": normal(ROWS, WIDTH, seed=2)}
    return train_step, (Batch(features, tf.ones([ROWS])), True)


def tiny_batch() -> Made:
    """The last batch of an epoch: two rows. There is nothing to save."""
    seeded()
    model = keras.Sequential([keras.Input([WIDTH])])
    for _ in range(4):
        model.add(keras.layers.Dense(WIDTH, activation="relu"))
    model.add(keras.layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    return step, (normal(2, WIDTH), whole(2))


def next_of_a_data_set() -> Made:
    """The step takes its batch itself, in a loop around `next`: shuffled rows, ahead of time."""
    layers, normals = _layers(), normal(8 * ROWS, WIDTH).numpy()
    rows = tf.data.Dataset.from_tensor_slices(normals).shuffle(8 * ROWS, seed=1).repeat()
    batches = rows.batch(ROWS, drop_remainder=True).map(tf.math.square).prefetch(1)
    iterator = iter(batches)

    @tf.function
    def train_step(rate):
        with tf.GradientTape() as tape:
            loss = rate * tf.reduce_mean(_head(next(iterator), layers))
        descend(tape, loss, layers)
        return loss

    return train_step, (tf.constant(0.1),)


STEPS = (
    ragged, ragged_inside, ragged_mean, sparse, hash_table, mutable_table, tokenizer,
    augmentation, variable_as_argument, structured, tiny_batch, next_of_a_data_set,
)  # fmt: skip
