"""Rows of tables: recommenders, click-through rates, embeddings."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from tests.corpus.parts import (
    Made,
    descend,
    normal,
    seeded,
    sparse_loss,
    supervised,
    weights,
    whole,
)

ROWS, FIELDS, IDS, WIDTH = 1024, 8, 500, 16


def _clicks() -> tf.Tensor:
    return tf.cast(whole(ROWS, below=2, seed=9), tf.float32)


def _click_loss(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    cross = tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=tf.squeeze(logits, -1))
    return tf.reduce_mean(cross)


def wide_and_deep() -> Made:
    """Two towers with an optimizer each, as the paper has it."""
    seeded()
    wide = layers.Dense(1)
    deep = keras.Sequential([layers.Dense(128, activation="relu") for _ in range(3)])
    deep.add(layers.Dense(1))
    of_wide, of_deep = keras.optimizers.Ftrl(0.05), keras.optimizers.Adagrad(0.01)

    @tf.function
    def train_step(x, crossed, y):
        with tf.GradientTape() as tape:
            loss = _click_loss(y, wide(crossed) + deep(x))
        of_both = [wide.trainable_variables, deep.trainable_variables]
        gradients = tape.gradient(loss, of_both)
        of_wide.apply_gradients(zip(gradients[0], of_both[0], strict=True))
        of_deep.apply_gradients(zip(gradients[1], of_both[1], strict=True))
        return loss

    return train_step, (normal(ROWS, 64), normal(ROWS, 200, seed=3), _clicks())


def dlrm() -> Made:
    """Embeddings looked up on variables, all pairs of dot products, two networks."""
    tables = weights(*[[IDS, WIDTH]] * FIELDS)
    bottom, top = weights([13, 64], [64, WIDTH], seed=1), weights([52, 64], [64, 1], seed=2)

    @tf.function
    def train_step(dense, ids, y):
        with tf.GradientTape() as tape:
            x = dense
            for w in bottom:
                x = tf.nn.relu(x @ w)
            rows = [tf.nn.embedding_lookup(table, ids[:, i]) for i, table in enumerate(tables)]
            each = tf.stack([x, *rows], 1)
            pairs = tf.matmul(each, each, transpose_b=True)
            below = tf.linalg.band_part(tf.ones([9, 9]), -1, 0) - tf.eye(9)
            flat = tf.boolean_mask(tf.transpose(pairs, [1, 2, 0]), below > 0)
            x = tf.concat([x, tf.transpose(flat)], 1)
            x = tf.ensure_shape(x, [ROWS, 52])
            loss = _click_loss(y, tf.nn.relu(x @ top[0]) @ top[1])
        descend(tape, loss, [*tables, *bottom, *top])
        return loss

    return train_step, (normal(ROWS, 13), whole(ROWS, FIELDS, below=IDS), _clicks())


def two_tower() -> Made:
    """Retrieval: the other rows of the batch are what did not fit."""
    users, items = weights([IDS, WIDTH], [IDS, WIDTH])
    tower = [weights([WIDTH, 64], [64, WIDTH], seed=i) for i in (3, 4)]

    @tf.function
    def train_step(user, item):
        with tf.GradientTape() as tape:
            sides = []
            for table, ids, (up, down) in zip((users, items), (user, item), tower, strict=True):
                x = tf.nn.relu(tf.gather(table, ids) @ up) @ down
                sides.append(tf.math.l2_normalize(x, 1))
            logits = tf.matmul(*sides, transpose_b=True) / 0.1
            loss = sparse_loss(tf.range(ROWS), logits)
        descend(tape, loss, [users, items, *tower[0], *tower[1]])
        return loss

    return train_step, (whole(ROWS, below=IDS), whole(ROWS, below=IDS, seed=4))


def neural_collaborative_filtering() -> Made:
    seeded()
    user, item = keras.Input([], dtype="int32"), keras.Input([], dtype="int32")
    product = layers.Multiply()([layers.Embedding(IDS, 32)(each) for each in (user, item)])
    x = layers.Concatenate()([layers.Embedding(IDS, 32)(each) for each in (user, item)])
    for width in (128, 64, 32):
        x = layers.Dropout(0.2)(layers.Dense(width, activation="relu")(x))
    out = layers.Dense(1, activation="sigmoid")(layers.Concatenate()([product, x]))
    model = keras.Model([user, item], out)
    model.compile("adam", "binary_crossentropy", metrics=["auc"], jit_compile=False)

    @tf.function(autograph=False)
    def train_step(user, item, y):
        return model.train_step(((user, item), y))

    return train_step, (whole(ROWS, below=IDS), whole(ROWS, below=IDS, seed=4), _clicks())


def deep_and_cross() -> Made:
    """Cross layers: x0 * (W x + b) + x, each reading the first."""
    crossing = weights(*[[128, 128]] * 5)
    (head,) = weights([128, 1], seed=1)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            first = x
            for w in crossing:
                x = first * (x @ w + 0.1) + x
            loss = _click_loss(y, x @ head)
        descend(tape, loss, [*crossing, head])
        return loss

    return train_step, (normal(ROWS, 128), _clicks())


def factorization_machine() -> Made:
    linear, factors = weights([IDS, 1], [IDS, WIDTH])

    @tf.function
    def train_step(ids, y):
        with tf.GradientTape() as tape:
            v = tf.nn.embedding_lookup(factors, ids)
            pairs = tf.reduce_sum(tf.reduce_sum(v, 1) ** 2 - tf.reduce_sum(v**2, 1), 1) / 2
            logits = tf.reduce_sum(tf.nn.embedding_lookup(linear, ids), 1) + pairs[:, None]
            loss = _click_loss(y, logits)
        descend(tape, loss, [linear, factors])
        return loss

    return train_step, (whole(ROWS, FIELDS, below=IDS), _clicks())


def self_normalizing_mlp() -> Made:
    seeded()
    model = keras.Sequential([keras.Input([64])])
    for _ in range(8):
        model.add(layers.Dense(128, "selu", kernel_initializer="lecun_normal"))
        model.add(layers.AlphaDropout(0.05))
    model.add(layers.Dense(1))
    model.compile("nadam", "huber", jit_compile=False)

    @tf.function(autograph=False)
    def train_step(x, y):
        return model.train_step((x, y))

    return train_step, (normal(ROWS, 64), _clicks())


def attention_over_features() -> Made:
    """TabTransformer: a row's fields attend to each other."""
    seeded()
    ids = keras.Input([FIELDS], dtype="int32")
    x = layers.Embedding(IDS, WIDTH)(ids)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
        y = layers.Dense(WIDTH)(layers.Dense(64, activation="gelu")(x))
        x = layers.LayerNormalization()(x + y)
    model = keras.Model(ids, layers.Dense(1)(layers.Flatten()(x)))
    return supervised(model, _click_loss), (whole(ROWS, FIELDS, below=IDS), _clicks())


STEPS = (
    wide_and_deep, dlrm, two_tower, neural_collaborative_filtering, deep_and_cross,
    factorization_machine, self_normalizing_mlp, attention_over_features,
)  # fmt: skip
