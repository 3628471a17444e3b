"""Text and speech: attention, recurrent networks as loops and written out, alignments."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from tests.corpus.parts import (
    BATCH,
    Made,
    compiled_step,
    descend,
    labels,
    normal,
    seeded,
    sparse_loss,
    supervised,
    weights,
    whole,
)

LENGTH, WIDTH, WORDS = 48, 32, 200


def _block(x, heads: int = 2, causal: bool = False, memory=None, dropout: float = 0.1):
    y = layers.MultiHeadAttention(heads, WIDTH // heads, dropout=dropout)(
        x, x, use_causal_mask=causal
    )
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    if memory is not None:
        y = layers.MultiHeadAttention(heads, WIDTH // heads, dropout=dropout)(x, memory)
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    y = layers.Dropout(dropout)(layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="relu")(x)))
    return layers.LayerNormalization()(layers.Add()([x, y]))


def _embedded(tokens):
    places = layers.Embedding(LENGTH, WIDTH)(tf.range(LENGTH)[None])
    return layers.Embedding(WORDS, WIDTH)(tokens) + places


def _masked_loss(y, logits):
    """TensorFlow's tutorial: padding (token 0) does not count."""
    mask = tf.cast(y != 0, logits.dtype)
    cross = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_sum(cross * mask) / tf.reduce_sum(mask)


def transformer() -> Made:
    """TensorFlow's tutorial "Neural machine translation with a Transformer and Keras"."""
    seeded()
    source, target = keras.Input([LENGTH], dtype="int32"), keras.Input([LENGTH], dtype="int32")
    memory = _block(_block(_embedded(source)))
    x = _embedded(target)
    for _ in range(2):
        x = _block(x, causal=True, memory=memory)
    model = keras.Model([source, target], layers.Dense(WORDS)(x))
    step = supervised(model, _masked_loss)
    both = (whole(BATCH, LENGTH, below=WORDS), whole(BATCH, LENGTH, below=WORDS, seed=3))
    return tf.function(lambda x, t, y: step([x, t], y)), (
        *both, whole(BATCH, LENGTH, below=WORDS, seed=4)
    )  # fmt: skip


def bert_like() -> Made:
    """Masked words: gathered at their places, and guessed with the embedding's own weights."""
    seeded()
    tokens = keras.Input([LENGTH], dtype="int32")
    x = _embedded(tokens)
    for _ in range(3):
        x = _block(x)
    encoder = keras.Model(tokens, x)
    (table,) = weights([WORDS, WIDTH])
    variables = [*encoder.trainable_variables, table]
    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=0.01, clipnorm=1.0)
    optimizer.build(variables)

    @tf.function
    def train_step(tokens, places, words):
        with tf.GradientTape() as tape:
            hidden = tf.gather(encoder(tokens, training=True), places, batch_dims=1)
            logits = tf.matmul(hidden, table, transpose_b=True)
            loss = sparse_loss(words, logits)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    places, words = whole(BATCH, 8, below=LENGTH), whole(BATCH, 8, below=WORDS, seed=8)
    return train_step, (whole(BATCH, LENGTH, below=WORDS), places, words)


def gpt_like() -> Made:
    """Causal blocks, weights tied between the embedding and the output; as `fit` trains it."""
    seeded()
    tokens = keras.Input([LENGTH], dtype="int32")
    embedding = layers.Embedding(WORDS, WIDTH)
    x = embedding(tokens) + layers.Embedding(LENGTH, WIDTH)(tf.range(LENGTH)[None])
    for _ in range(3):
        x = _block(x, causal=True)
    model = keras.Model(tokens, x @ keras.ops.transpose(embedding.embeddings))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adamw", loss, metrics=["accuracy"], jit_compile=False)
    words = whole(BATCH, LENGTH, below=WORDS)
    return compiled_step(model), (words, tf.roll(words, -1, 1))


def nmt_with_attention() -> Made:
    """TensorFlow's tutorial "Neural machine translation with attention": a decoder over time."""
    seeded()
    embed, out = layers.Embedding(WORDS, WIDTH), layers.Dense(WORDS)
    encoder = layers.Bidirectional(layers.GRU(WIDTH, return_sequences=True), merge_mode="sum")
    cell = layers.GRUCell(WIDTH)
    query, key, score = layers.Dense(WIDTH), layers.Dense(WIDTH), layers.Dense(1)
    owners = [embed, out, encoder, cell, query, key, score]
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def train_step(source, target):
        with tf.GradientTape() as tape:
            memory = encoder(embed(source), training=True)
            state, loss = tf.zeros([BATCH, WIDTH]), 0.0
            for t in range(7):
                weight = tf.nn.softmax(score(tf.tanh(query(state)[:, None] + key(memory))), 1)
                context = tf.reduce_sum(weight * memory, 1)
                x = tf.concat([embed(target[:, t]), context], 1)
                x, state = cell(x, [state])
                state = state[0] if isinstance(state, list) else state
                loss += _masked_loss(target[:, t + 1], out(x))
            loss /= 7.0
        variables = [v for owner in owners for v in owner.trainable_variables]
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"batch_loss": loss}

    return train_step, (whole(BATCH, 16, below=WORDS), whole(BATCH, 8, below=WORDS, seed=4))


def lstm_classifier() -> Made:
    seeded()
    tokens = keras.Input([LENGTH], dtype="int32")
    x = layers.LSTM(WIDTH)(layers.Embedding(WORDS, WIDTH)(tokens))
    model = keras.Model(tokens, layers.Dense(10)(x))
    return supervised(model), (whole(BATCH, LENGTH, below=WORDS), labels())


def bidirectional_gru() -> Made:
    """A mask from the embedding goes along with the sequence."""
    seeded()
    tokens = keras.Input([LENGTH], dtype="int32")
    x = layers.Embedding(WORDS, WIDTH, mask_zero=True)(tokens)
    x = layers.Bidirectional(layers.GRU(WIDTH))(x)
    model = keras.Model(tokens, layers.Dense(10)(x))
    return supervised(model), (whole(BATCH, LENGTH, below=WORDS), labels())


def written_out_lstm() -> Made:
    """A Python loop over time: the steps stand one after the other in the graph."""
    (kernel, head) = weights([2 * WIDTH, 4 * WIDTH], [WIDTH, 10])

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            h = c = tf.zeros([BATCH, WIDTH])
            for t in range(LENGTH):
                gates = tf.concat([x[:, t], h], 1) @ kernel
                i, f, g, o = tf.split(gates, 4, axis=1)
                c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(g)
                h = tf.sigmoid(o) * tf.tanh(c)
            loss = sparse_loss(y, h @ head)
        descend(tape, loss, [kernel, head])
        return loss

    return train_step, (normal(BATCH, LENGTH, WIDTH), labels())


def sliced_gru() -> Made:
    """A GRU written out over slices, its gradients clipped by their norm: each weight's gradient is
    the sum of as many as there are steps."""
    update, reset, new = weights(*[[3 * WIDTH + WIDTH, 3 * WIDTH]] * 3)
    (head,) = weights([3 * WIDTH, 10])
    variables = [update, reset, new, head]

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            h = tf.zeros([BATCH, 3 * WIDTH])
            for t in range(LENGTH):
                both = tf.concat([h, x[:, t]], 1)
                z, r = tf.sigmoid(both @ update), tf.sigmoid(both @ reset)
                h = (1.0 - z) * h + z * tf.tanh(tf.concat([r * h, x[:, t]], 1) @ new)
            loss = sparse_loss(y, h @ head)
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, variables), 1.0)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss, norm

    return train_step, (normal(BATCH, LENGTH, WIDTH), labels())


class _Cell(layers.Layer):
    """A recurrent cell with layer norm."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = self.state_size = units
        self.norm = layers.LayerNormalization()

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units))
        self.recurrent = self.add_weight(shape=(self.units, self.units))
        self.norm.build((None, self.units))

    def call(self, x, states):
        h = self.norm(tf.tanh(x @ self.kernel + states[0] @ self.recurrent))
        return h, [h]


def own_cell() -> Made:
    """keras.layers.RNN with a cell of one's own, and a layer for each time behind it, which reads
    slices of what the loop made."""
    seeded()
    x = inputs = keras.Input([LENGTH, WIDTH])
    x = layers.RNN(_Cell(4 * WIDTH), return_sequences=True)(x)
    model = keras.Model(inputs, layers.TimeDistributed(layers.Dense(10))(x))
    return supervised(model), (normal(BATCH, LENGTH, WIDTH), whole(BATCH, LENGTH))


def text_cnn() -> Made:
    seeded()
    tokens = keras.Input([LENGTH], dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(tokens)
    found = [
        layers.GlobalMaxPooling1D()(layers.Conv1D(32, size, activation="relu", padding="same")(x))
        for size in (3, 4, 5)
    ]
    x = layers.Dropout(0.5)(layers.Concatenate()(found))
    model = keras.Model(tokens, layers.Dense(10)(x))
    return supervised(model), (whole(BATCH, LENGTH, below=WORDS), labels())


def rnn_transducer() -> Made:
    """RNN-T: audio and text meet on a grid, and the loss is a sum over paths through it."""
    frames, words = 16, 8
    up, down, join = weights([40, WIDTH], [WORDS, WIDTH], [WIDTH, WORDS])

    @tf.function
    def train_step(audio, text):
        with tf.GradientTape() as tape:
            heard = tf.tanh(tf.einsum("btf,fw->btw", audio, up))
            said = tf.tanh(tf.nn.embedding_lookup(down, text))
            grid = tf.tanh(heard[:, :, None] + said[:, None])
            logits = tf.nn.log_softmax(tf.einsum("btuw,wv->btuv", grid, join))
            blank = logits[..., 0]
            emit = tf.reduce_sum(logits * tf.one_hot(text, WORDS)[:, None], -1)
            row = tf.cumsum(emit[:, 0], axis=1)
            for t in tf.range(1, frames):
                above = row + blank[:, t - 1]
                row = tf.math.cumulative_logsumexp(above - tf.cumsum(emit[:, t], 1), 1)
                row += tf.cumsum(emit[:, t], 1)
            loss = -tf.reduce_mean(row[:, -1])
        descend(tape, loss, [up, down, join])
        return loss

    return train_step, (normal(BATCH, frames, 40), whole(BATCH, words, below=WORDS))


def ctc_speech() -> Made:
    """Keras's example "Automatic Speech Recognition using CTC"."""
    seeded()
    inputs = keras.Input([LENGTH, 40])
    x = inputs
    for _ in range(3):
        x = layers.Conv1D(64, 5, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    model = keras.Model(inputs, layers.Dense(30)(x))

    def ctc(y, logits):
        lengths = tf.fill([BATCH], LENGTH)
        each = tf.nn.ctc_loss(y, tf.transpose(logits, [1, 0, 2]), tf.fill([BATCH], 8), lengths)
        return tf.reduce_mean(each)

    return supervised(model, ctc), (normal(BATCH, LENGTH, 40), 1 + whole(BATCH, 8, below=28))


def wavenet() -> Made:
    """Dilated causal convolutions with gates; every layer also leads to the output."""
    seeded()
    inputs = keras.Input([256, 16])
    x, skips = inputs, []
    for i in range(5):
        y = layers.Conv1D(32, 2, dilation_rate=2**i, padding="causal")(x)
        gated = keras.ops.tanh(y[..., :16]) * keras.ops.sigmoid(y[..., 16:])
        skips.append(layers.Conv1D(16, 1)(gated))
        x = layers.Add()([x, layers.Conv1D(16, 1)(gated)])
    model = keras.Model(inputs, layers.Conv1D(32, 1)(layers.ReLU()(layers.Add()(skips))))
    return supervised(model), (normal(BATCH, 256, 16), whole(BATCH, 256, below=32))


STEPS = (
    transformer, bert_like, gpt_like, nmt_with_attention, lstm_classifier, bidirectional_gru,
    written_out_lstm, sliced_gru, own_cell, text_cnn, rnn_transducer, ctc_speech, wavenet,
)  # fmt: skip
