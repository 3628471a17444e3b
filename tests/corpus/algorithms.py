"""Steps with an algorithm inside: searches, solvers, dynamic programmes, renderers."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf
from keras import layers

from tests.corpus.parts import Made, descend, normal, seeded, sparse_loss, weights, whole


def _built(optimizer: keras.optimizers.Optimizer, variables: Sequence[tf.Variable]):
    optimizer.build(variables)
    return optimizer


def scheduled_sampling() -> Made:
    """A decoder whose next word is the teacher's or its own, by a coin for each."""
    seeded()
    rows, steps, words = 48, 20, 300
    embedding, encoder = layers.Embedding(words, 64), layers.GRU(96, return_state=True)
    cell, head = layers.GRUCell(96), layers.Dense(words)
    x, y = whole(rows, steps, below=words), whole(rows, steps, below=words, seed=3)
    _, state = encoder(embedding(x))
    cell(embedding(x[:, 0]), [state])
    head(state)
    variables = [v for part in (embedding, encoder, cell, head) for v in part.trainable_variables]
    optimizer = _built(keras.optimizers.Adam(1e-3), variables)
    coins = tf.random.Generator.from_seed(7)

    @tf.function
    def train_step(x, y, teaching):
        with tf.GradientTape() as tape:
            _, state = encoder(embedding(x))
            word, loss = tf.zeros_like(y[:, 0]), 0.0
            for t in range(steps):
                found, (state,) = cell(embedding(word), [state])
                logits = head(found)
                loss += sparse_loss(y[:, t], logits) / steps
                own = tf.argmax(logits, -1, output_type=tf.int32)
                word = tf.where(coins.uniform([rows]) < teaching, y[:, t], own)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return train_step, (x, y, tf.constant(0.7))


def as_long_as_the_longest() -> Made:
    """A decoder with attention in a loop that ends with the longest sentence of the batch."""
    rows, steps, words, width = 64, 16, 300, 64
    shapes = [words, width], [2 * width, width], [width, width], [2 * width, words]
    embedding, into, over, out = variables = weights(*shapes)
    optimizer = _built(keras.optimizers.Adam(1e-3), variables)

    @tf.function
    def train_step(source, target, lengths):
        mask = tf.sequence_mask(lengths, steps, tf.float32)
        with tf.GradientTape() as tape:
            memory = tf.nn.embedding_lookup(embedding, source)
            state, loss, t = tf.zeros([rows, width]), 0.0, 0
            while t < tf.reduce_max(lengths) - 1:
                scores = tf.linalg.matvec(memory, state @ over)
                context = tf.linalg.matvec(memory, tf.nn.softmax(scores), transpose_a=True)
                word = tf.nn.embedding_lookup(embedding, target[:, t])
                state = tf.nn.tanh(tf.concat([word, context], 1) @ into + state)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels=target[:, t + 1], logits=tf.concat([state, context], 1) @ out
                )
                loss += tf.reduce_sum(each * mask[:, t + 1])
                t += 1
            loss /= tf.reduce_sum(mask)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 5.0)
        optimizer.apply(gradients, variables)
        return loss

    source, target = whole(rows, steps, below=words), whole(rows, steps, below=words, seed=3)
    return train_step, (source, target, 6 + whole(rows, below=8, seed=4))


def beam_search() -> Made:
    """The risk over a beam: the best words of all beams at each step, in a loop."""
    seeded()
    rows, beams, steps, words, width = 24, 4, 12, 200, 128
    embedding, cell, head = (
        layers.Embedding(words, width),
        layers.LSTMCell(width),
        layers.Dense(words),
    )
    x = normal(rows, width)
    cell(embedding(whole(rows, below=words)), [x, x])
    head(x)
    variables = [v for part in (embedding, cell, head) for v in part.trainable_variables]
    optimizer = _built(keras.optimizers.RMSprop(1e-3), variables)

    @tf.function
    def train_step(x, costs):
        with tf.GradientTape() as tape:
            h = tf.repeat(x, beams, 0)
            c, scores = tf.zeros_like(h), tf.zeros([rows, beams])
            word, risks = tf.zeros([rows * beams], tf.int32), tf.TensorArray(tf.float32, steps)
            for t in tf.range(steps):
                out, [h, c] = cell(embedding(word), [h, c])
                each = tf.reshape(tf.nn.log_softmax(head(out)), [rows, beams, words])
                total = tf.reshape(scores[:, :, None] + each, [rows, beams * words])
                scores, best = tf.math.top_k(total, beams)
                word = tf.reshape(best % words, [-1])
                place = tf.reshape(tf.range(rows)[:, None] * beams + best // words, [-1])
                h, c = tf.gather(h, place), tf.gather(c, place)
                risk = tf.nn.softmax(scores) * tf.gather(costs, best % words)
                risks = risks.write(t, tf.reduce_sum(risk))
            loss = tf.reduce_mean(risks.stack())
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return train_step, (x, normal(words, seed=9))


def crf_tagger() -> Made:
    """A bidirectional LSTM and a conditional random field: its forward algorithm is a scan."""
    seeded()
    rows, steps, words, tags = 32, 30, 500, 9
    model = keras.Sequential([
        keras.Input([steps]), layers.Embedding(words, 48, mask_zero=True),
        layers.Bidirectional(layers.LSTM(48, return_sequences=True)), layers.Dense(tags),
    ])  # fmt: skip
    (moves,) = weights([tags, tags])
    variables = [*model.trainable_variables, moves]
    optimizer = _built(keras.optimizers.Adam(1e-3), variables)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            unary, mask = model(x, training=True), tf.cast(x > 0, tf.float32)

            def forward(alpha, each):
                logits, there = each
                new = tf.reduce_logsumexp(alpha[:, :, None] + moves[None], 1) + logits
                return there[:, None] * new + (1 - there[:, None]) * alpha

            over_time = tf.transpose(unary, [1, 0, 2]), tf.transpose(mask)
            alphas = tf.scan(forward, tuple(each[1:] for each in over_time), over_time[0][0])
            tagged = tf.reduce_sum(tf.gather(unary, y, batch_dims=2) * mask, 1)
            pairs = tf.gather_nd(moves, tf.stack([y[:, :-1], y[:, 1:]], -1)) * mask[:, 1:]
            partition = tf.reduce_logsumexp(alphas[-1], -1)
            loss = tf.reduce_mean(partition - tagged - tf.reduce_sum(pairs, 1))
        gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, variables)]
        optimizer.apply(gradients, variables)
        return loss

    x = 1 + whole(rows, steps, below=words - 1)
    x = tf.where(tf.sequence_mask(11 + whole(rows, below=20, seed=8), steps), x, 0)
    return train_step, (x, whole(rows, steps, below=tags, seed=4))


def adaptive_computation() -> Made:
    """Thinks until every row has halted, twelve times at most: data ends the loop."""
    cell, again, halting = weights([96, 96], [96, 96], [96, 1])

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            state, answer, halted, n = tf.zeros_like(x), tf.zeros_like(x), tf.zeros([256, 1]), 0
            while n < 12 and tf.reduce_any(halted < 0.99):
                state = tf.nn.tanh(x @ cell + state @ again)
                now = tf.nn.sigmoid(state @ halting) * (1 - halted)
                answer += now * state
                halted += now
                n += 1
            loss = tf.reduce_mean((answer - y) ** 2) + 0.01 * tf.reduce_mean(halted)
        descend(tape, loss, [cell, again, halting])
        return loss, n

    return train_step, (normal(256, 96), normal(256, 96, seed=8))


def gauss_newton() -> Made:
    """Levenberg-Marquardt: all residuals' Jacobian, and a Cholesky solve for the update."""
    layers_ = weights([8, 24], [24, 24], [24, 4])

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            z = tf.nn.tanh(tf.nn.tanh(x @ layers_[0]) @ layers_[1]) @ layers_[2]
            residuals = tf.reshape(z - y, [-1])
        parts = tape.jacobian(residuals, layers_)
        jacobian = tf.concat([tf.reshape(each, [residuals.shape[0], -1]) for each in parts], 1)
        normal_ = tf.matmul(jacobian, jacobian, transpose_a=True)
        lower = tf.linalg.cholesky(normal_ + 0.1 * tf.eye(jacobian.shape[1]))
        right = tf.matmul(jacobian, residuals[:, None], transpose_a=True)
        update = tf.linalg.cholesky_solve(lower, right)[:, 0]
        sizes = [w.shape.num_elements() for w in layers_]
        for w, each in zip(layers_, tf.split(update, sizes), strict=True):
            w.assign_sub(tf.reshape(each, w.shape))
        return tf.reduce_mean(residuals**2)

    return train_step, (normal(128, 8), normal(128, 4, seed=3))


def sinkhorn() -> Made:
    """Optimal transport between two clouds: 25 rounds of Sinkhorn's, differentiated."""
    first, second = weights([32, 64], [64, 32])

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            z = tf.nn.relu(x @ first) @ second
            costs = tf.reduce_sum((z[:, None] - y[None]) ** 2, -1) / 10
            f, g = tf.zeros([200]), tf.zeros([200])
            for _ in tf.range(25):
                f = -tf.reduce_logsumexp(g[None] - costs, 1)
                g = -tf.reduce_logsumexp(f[:, None] - costs, 0)
            loss = tf.reduce_sum(tf.exp(f[:, None] + g[None] - costs) * costs) / 200
        descend(tape, loss, [first, second])
        return loss

    return train_step, (normal(200, 32), normal(200, 32, seed=3))


def fourier_operator() -> Made:
    """A Fourier neural operator: complex weights of the lowest modes."""
    seeded()
    width, modes = 24, 12
    lift, head = layers.Dense(width), layers.Dense(1)
    locally = [layers.Dense(width) for _ in range(4)]
    real, imaginary = (weights(*[[width, width, modes]] * 4, seed=seed) for seed in (1, 2))

    def solved(x):
        x = lift(x)
        for dense, re, im in zip(locally, real, imaginary, strict=True):
            waves = tf.signal.rfft(tf.transpose(x, [0, 2, 1]))[..., :modes]
            waves = tf.einsum("bim,iom->bom", waves, tf.complex(re, im))
            waves = tf.pad(waves, [[0, 0], [0, 0], [0, 65 - modes]])
            x = tf.nn.gelu(tf.transpose(tf.signal.irfft(waves, [128]), [0, 2, 1]) + dense(x))
        return head(x)

    x = normal(64, 128, 2)
    solved(x)
    variables = [v for part in (lift, head, *locally) for v in part.trainable_variables]
    variables += [*real, *imaginary]
    optimizer = _built(keras.optimizers.Adam(1e-3), variables)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            apart = tf.norm(solved(x) - y, axis=1) / (tf.norm(y, axis=1) + 1e-6)
            loss = tf.reduce_mean(apart)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return train_step, (x, normal(64, 128, 1, seed=3))


STEPS = (
    scheduled_sampling, as_long_as_the_longest, beam_search, crf_tagger, adaptive_computation,
    gauss_newton, sinkhorn, fourier_operator,
)  # fmt: skip
