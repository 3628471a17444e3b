"""Ways to train: distillation, contrast, adapters, averages, second derivatives, policies."""

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
    descend,
    images,
    labels,
    normal,
    seeded,
    sparse_loss,
    supervised,
    weights,
)

ROWS, WIDTH, DEPTH = 512, 128, 8


def _deep(x: tf.Tensor, layers_: list[tf.Variable]) -> tf.Tensor:
    for w in layers_:
        x = tf.nn.gelu(x @ w)
    return x


def _square(depth: int = DEPTH, seed: int = 0) -> list[tf.Variable]:
    return weights(*[[WIDTH, WIDTH]] * depth, seed=seed)


def _rows(seed: int = 1) -> tf.Tensor:
    return normal(ROWS, WIDTH, seed=seed)


def _convolutions(filters: int = 16) -> keras.Model:
    x = inputs = keras.Input([32, 32, 3])
    for _ in range(4):
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def distillation() -> Made:
    """Keras's example "Knowledge Distillation": a frozen teacher beside the student."""
    seeded()
    teacher, student = _convolutions(32), _convolutions(8)
    teacher.trainable = False
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(student.trainable_variables)

    @tf.function
    def train_step(x, y):
        soft = tf.nn.softmax(teacher(x, training=False) / 3.0)
        with tf.GradientTape() as tape:
            logits = student(x, training=True)
            student_loss = sparse_loss(y, logits)
            cross = tf.nn.softmax_cross_entropy_with_logits(labels=soft, logits=logits / 3.0)
            distillation_loss = 9.0 * tf.reduce_mean(cross)
            loss = 0.1 * student_loss + 0.9 * distillation_loss
        gradients = tape.gradient(loss, student.trainable_variables)
        optimizer.apply_gradients(zip(gradients, student.trainable_variables, strict=True))
        return {"student_loss": student_loss, "distillation_loss": distillation_loss}

    return train_step, (images(), labels())


def sim_clr() -> Made:
    """A contrastive loss over two augmented views, augmented in the step."""
    seeded()
    model = _convolutions()
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    def view(x, seed):
        x = tf.image.stateless_random_flip_left_right(x, [seed, 0])
        return tf.image.stateless_random_brightness(x, 0.4, [seed, 1])

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            both = [tf.math.l2_normalize(model(view(x, i), training=True), 1) for i in (1, 2)]
            logits = tf.matmul(*both, transpose_b=True) / 0.1
            loss = sparse_loss(tf.range(BATCH), logits)
            loss += sparse_loss(tf.range(BATCH), tf.transpose(logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"c_loss": loss}

    return train_step, (images(),)


def momentum_contrast() -> Made:
    """MoCo: a slow copy of the network, and a queue of its outputs in a variable."""
    fast, slow = _square(), _square()
    queue = tf.Variable(normal(256, WIDTH, seed=4))

    @tf.function
    def train_step(x, other):
        key = tf.math.l2_normalize(_deep(other, slow), 1)
        with tf.GradientTape() as tape:
            query = tf.math.l2_normalize(_deep(x, fast), 1)
            near = tf.reduce_sum(query * key, 1, keepdims=True)
            logits = tf.concat([near, tf.matmul(query, queue, transpose_b=True)], 1) / 0.07
            loss = sparse_loss(tf.zeros([ROWS], tf.int32), logits)
        descend(tape, loss, fast)
        for s, f in zip(slow, fast, strict=True):
            s.assign(0.99 * s + 0.01 * f)
        queue.assign(tf.concat([queue[64:], key[:64]], 0))
        return loss

    return train_step, (_rows(), _rows(2))


def lora() -> Made:
    """Frozen layers, and beside each two narrow ones that are trained."""
    frozen = _square()
    adapters = weights(*[[WIDTH, 4], [4, WIDTH]] * DEPTH, seed=3)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for w, down, up in zip(frozen, adapters[::2], adapters[1::2], strict=True):
                x = tf.nn.gelu(x @ tf.stop_gradient(w) + (x @ down) @ up)
            loss = tf.reduce_mean(x**2)
        descend(tape, loss, adapters)
        return loss

    return train_step, (_rows(),)


def frozen_backbone() -> Made:
    """Keras's guide "Transfer learning": only the head is trained."""
    seeded()
    backbone = _convolutions()
    backbone.trainable = False
    inputs = keras.Input([32, 32, 3])
    x = layers.Dense(64, activation="relu")(backbone(inputs, training=False))
    model = keras.Model(inputs, layers.Dense(10)(layers.Dropout(0.2)(x)))
    return supervised(model), (images(), labels())


def moving_average() -> Made:
    """tf.train.ExponentialMovingAverage beside an optimizer."""
    layers_ = _square()
    average = tf.train.ExponentialMovingAverage(0.99)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(layers_)
    average.apply(layers_)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_deep(x, layers_) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, layers_), layers_, strict=True))
        average.apply(layers_)
        return loss

    return train_step, (_rows(),)


def gradient_accumulation() -> Made:
    """Gradients are added up in variables; every fourth step they are applied."""
    layers_ = _square()
    sums = [tf.Variable(tf.zeros_like(w)) for w in layers_]
    count = tf.Variable(0)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_deep(x, layers_) ** 2)
        for total, gradient in zip(sums, tape.gradient(loss, layers_), strict=True):
            total.assign_add(gradient)
        if count.assign_add(1) % 4 == 0:
            for w, total in zip(layers_, sums, strict=True):
                w.assign_sub(0.01 * total)
                total.assign(tf.zeros_like(total))
        return loss

    return train_step, (_rows(),)


def micro_batches() -> Made:
    """The same in one step: a Python loop over parts of the batch."""
    layers_ = _square()

    @tf.function
    def train_step(x):
        sums, total = [tf.zeros_like(w) for w in layers_], 0.0
        for part in tf.split(x, 4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(_deep(part, layers_) ** 2)
            gradients = tape.gradient(loss, layers_)
            sums = [a + b for a, b in zip(sums, gradients, strict=True)]
            total += loss / 4.0
        for w, gradient in zip(layers_, sums, strict=True):
            w.assign_sub(0.01 * gradient)
        return total

    return train_step, (_rows(),)


def loss_scaling() -> Made:
    """TensorFlow's guide "Mixed precision": float16, a scaled loss, no update if it is inf."""
    seeded()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        x = inputs = keras.Input([WIDTH])
        for _ in range(DEPTH):
            x = layers.Dense(WIDTH, activation="relu")(x)
        model = keras.Model(inputs, layers.Dense(10, dtype="float32")(x))
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-3))
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = sparse_loss(y, model(x, training=True))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step, (_rows(), tf.tile(labels(), [ROWS // BATCH]))


def custom_gradient() -> Made:
    """A function with a gradient of its own: clipped on the way back."""
    layers_ = _square()

    @tf.custom_gradient
    def clipped(x):
        return tf.tanh(x), lambda dy: tf.clip_by_norm(dy * (1.0 - tf.tanh(x) ** 2), 1.0)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for w in layers_:
                x = clipped(x @ w)
            loss = tf.reduce_mean(x**2)
        descend(tape, loss, layers_)
        return loss

    return train_step, (_rows(),)


def recomputed() -> Made:
    """tf.recompute_grad, as people have saved memory so far."""
    layers_ = _square()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for first, second in zip(layers_[::2], layers_[1::2], strict=True):
                block = tf.recompute_grad(
                    lambda x, first=first, second=second: tf.nn.gelu(tf.nn.gelu(x @ first) @ second)
                )
                x = block(x)
            loss = tf.reduce_mean(x**2)
        descend(tape, loss, layers_)
        return loss

    return train_step, (_rows(),)


def sharpness_aware() -> Made:
    """SAM: two passes forward and back, the second from weights moved by the first."""
    layers_ = _square()

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_deep(x, layers_) ** 2)
        gradients = tape.gradient(loss, layers_)
        norm = tf.linalg.global_norm(gradients)
        moves = [0.05 * g / (norm + 1e-12) for g in gradients]
        for w, move in zip(layers_, moves, strict=True):
            w.assign_add(move)
        with tf.GradientTape() as tape:
            sharp = tf.reduce_mean(_deep(x, layers_) ** 2)
        for w, move, g in zip(layers_, moves, tape.gradient(sharp, layers_), strict=True):
            w.assign_sub(move + 0.01 * g)
        return loss

    return train_step, (_rows(),)


def meta_learning() -> Made:
    """MAML: an update within the loss, and a gradient through it."""
    layers_ = _square(4)

    @tf.function
    def train_step(support, query):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner_loss = tf.reduce_mean(_deep(support, layers_) ** 2)
            gradients = inner.gradient(inner_loss, layers_)
            adapted = [w - 0.1 * g for w, g in zip(layers_, gradients, strict=True)]
            loss = tf.reduce_mean(_deep(query, adapted) ** 2)
        descend(outer, loss, layers_)
        return loss

    return train_step, (_rows(), _rows(2))


def physics_informed() -> Made:
    """A residual of a differential equation: derivatives by the inputs within the loss."""
    layers_ = weights([2, 64], *[[64, 64]] * 4, [64, 1])

    def network(x):
        for w in layers_[:-1]:
            x = tf.tanh(x @ w)
        return x @ layers_[-1]

    @tf.function
    def train_step(points):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as second:
                second.watch(points)
                with tf.GradientTape() as first:
                    first.watch(points)
                    u = network(points)
                slope = first.gradient(u, points)
                along = slope[:, :1]
            curve = second.gradient(along, points)[:, :1]
            residual = slope[:, 1:] + u * along - 0.01 * curve
            loss = tf.reduce_mean(residual**2)
        descend(tape, loss, layers_)
        return loss

    return train_step, (normal(1024, 2),)


def ppo() -> Made:
    """Keras's example "Proximal Policy Optimization": a ratio, clipped; two networks' losses."""
    policy, value = _square(5), _square(5, seed=2)
    to_action, to_value = weights([WIDTH, 4], [WIDTH, 1], seed=5)

    @tf.function
    def train_step(states, actions, old, advantages, returns):
        with tf.GradientTape() as tape:
            log = tf.nn.log_softmax(_deep(states, policy) @ to_action)
            chosen = tf.reduce_sum(tf.one_hot(actions, 4) * log, 1)
            ratio = tf.exp(chosen - old)
            clipped = tf.where(advantages > 0, 1.2 * advantages, 0.8 * advantages)
            policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantages, clipped))
        descend(tape, policy_loss, [*policy, to_action])
        with tf.GradientTape() as tape:
            value_loss = tf.reduce_mean((returns - (_deep(states, value) @ to_value)[:, 0]) ** 2)
        descend(tape, value_loss, [*value, to_value])
        return tf.reduce_mean(old - chosen)  # how far the policy went: no loss

    flat = [normal(ROWS, seed=i) for i in (4, 5, 6)]
    return train_step, (_rows(), tf.tile(labels(4), [ROWS // BATCH]), *flat)


def deep_q_learning() -> Made:
    """A frozen target network gives what the other one should say."""
    online, target = _square(), _square()
    (head,) = weights([WIDTH, 4], seed=7)

    @tf.function
    def train_step(state, action, reward, following):
        future = tf.reduce_max(_deep(following, target) @ head, 1)
        wanted = tf.stop_gradient(reward + 0.99 * future)
        with tf.GradientTape() as tape:
            found = tf.reduce_sum(_deep(state, online) @ head * tf.one_hot(action, 4), 1)
            loss = tf.reduce_mean(keras.losses.huber(wanted[:, None], found[:, None]))
        descend(tape, loss, [*online, head])
        return loss, tf.reduce_mean(found)

    return train_step, (_rows(), tf.tile(labels(4), [ROWS // BATCH]), normal(ROWS), _rows(2))


STEPS = (
    distillation, sim_clr, momentum_contrast, lora, frozen_backbone, moving_average,
    gradient_accumulation, micro_batches, loss_scaling, custom_gradient, recomputed,
    sharpness_aware, meta_learning, physics_informed, ppo, deep_q_learning,
)  # fmt: skip
