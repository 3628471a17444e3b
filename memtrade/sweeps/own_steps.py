"""Training steps as people write them, for `--target memtrade.sweeps.own_steps:NAME`.

Layers and loops that none of the built-in models has: transposed, grouped, depthwise, 1-D and 3-D
convolutions, attention, embeddings, resizing, a loop over time, a scan.
"""

# TensorFlow's own annotations say less than its functions take.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Step = tuple[Any, tuple[tf.Tensor, ...]]
layers = tf.keras.layers


def _step(model: tf.keras.Model, x: tf.Tensor, y: tf.Tensor, loss: Callable[..., Any]) -> Step:
    """One step of momentum on a Keras model."""
    model(x[:1])
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(y, model(x, training=True)))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    return train_step, (x, y)


def _classifier(blocks: list[Any], x: tf.Tensor) -> Step:
    model = tf.keras.Sequential([*blocks, layers.Dense(10)])
    y = tf.random.uniform([x.shape[0]], maxval=10, dtype=tf.int32)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return _step(model, x, y, loss)


def transposed(batch_size: int = 16) -> Step:
    """An autoencoder of images, its decoder of transposed convolutions."""
    down = [layers.Conv2D(w, 4, 2, "same", activation="relu") for w in (48, 96, 192)]
    up = [layers.Conv2DTranspose(w, 4, 2, "same", activation="relu") for w in (96, 48)]
    model = tf.keras.Sequential([*down, *up, layers.Conv2DTranspose(3, 4, 2, "same")])
    x = tf.random.uniform([batch_size, 128, 128, 3])
    return _step(model, x, x, tf.keras.losses.MeanSquaredError())


def grouped(batch_size: int = 16) -> Step:
    """Grouped convolutions as in ResNeXt."""
    blocks: list[Any] = [layers.Conv2D(64, 3, padding="same")]
    for width in (64, 96, 96):
        blocks += [layers.Conv2D(width, 3, padding="same", groups=4, use_bias=False),
                   layers.BatchNormalization(), layers.ReLU(),
                   layers.Conv2D(width, 1), layers.ReLU()]  # fmt: skip
    return _classifier(
        [*blocks, layers.GlobalAveragePooling2D()], tf.random.uniform([batch_size, 32, 32, 3])
    )


def depthwise(batch_size: int = 16) -> Step:
    """Depthwise and separable convolutions."""
    blocks: list[Any] = [layers.Conv2D(32, 3, 2, "same")]
    for width in (64, 128, 128, 256):
        blocks += [layers.DepthwiseConv2D(3, padding="same"), layers.BatchNormalization(),
                   layers.Activation("swish"), layers.SeparableConv2D(width, 3, padding="same"),
                   layers.ReLU(6.0)]  # fmt: skip
    return _classifier(
        [*blocks, layers.GlobalAveragePooling2D()], tf.random.uniform([batch_size, 96, 96, 3])
    )


def sound(batch_size: int = 16) -> Step:
    """1-D convolutions, some dilated, on a wave."""
    blocks: list[Any] = [layers.Conv1D(64, 9, 4, "same")]
    for dilation in (1, 2, 4, 8):
        blocks += [layers.Conv1D(96, 3, padding="causal", dilation_rate=dilation),
                   layers.LayerNormalization(), layers.Activation("gelu")]  # fmt: skip
    return _classifier(
        [*blocks, layers.GlobalMaxPooling1D()], tf.random.uniform([batch_size, 8000, 1])
    )


def volume(batch_size: int = 4) -> Step:
    """3-D convolutions and pooling."""
    blocks: list[Any] = []
    for width in (16, 32, 64):
        blocks += [layers.Conv3D(width, 3, padding="same", activation="relu"),
                   layers.BatchNormalization(), layers.MaxPooling3D(2)]  # fmt: skip
    return _classifier([*blocks, layers.Flatten()], tf.random.uniform([batch_size, 32, 32, 32, 1]))


def attention(batch_size: int = 16) -> Step:
    """Three blocks of a transformer's encoder, by Keras's own attention layer."""
    inputs = tf.keras.Input([128, 128])
    x = inputs
    for _ in range(3):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32, dropout=0.1)(y, y)
        y = layers.Dense(512, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(128)(y))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    y = tf.random.uniform([batch_size], maxval=10, dtype=tf.int32)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = tf.keras.Model(inputs, outputs)
    return _step(model, tf.random.uniform([batch_size, 128, 128]), y, loss)


def embeddings(batch_size: int = 128) -> Step:
    """Words, embedded and summed up by two dense layers."""
    blocks = [layers.Embedding(20_000, 128), layers.Dense(256, "tanh"), layers.Dense(256, "relu"),
              layers.GlobalAveragePooling1D()]  # fmt: skip
    words = tf.random.uniform([batch_size, 100], maxval=20_000, dtype=tf.int32)
    return _classifier(blocks, words)


def resized(batch_size: int = 8) -> Step:
    """Super-resolution: bilinear resizing, PReLU, depth to space."""
    inputs = tf.keras.Input([48, 48, 3])
    x = layers.Conv2D(48, 5, padding="same")(inputs)
    for _ in range(4):
        x = x + layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(48, 3, padding="same")(x))
    up = layers.UpSampling2D(4, interpolation="bilinear")(inputs)
    fine = layers.Lambda(lambda t: tf.nn.depth_to_space(t, 4))(
        layers.Conv2D(48, 3, padding="same")(x)
    )
    model = tf.keras.Model(inputs, up + fine)
    x = tf.random.uniform([batch_size, 48, 48, 3])
    return _step(model, x, tf.random.uniform([batch_size, 192, 192, 3]), tf.keras.losses.Huber())


def over_time(batch_size: int = 64) -> Step:
    """An LSTM over 50 steps of time."""
    blocks = [layers.Dense(128), layers.LSTM(128, return_sequences=True),
              layers.Dense(256, "relu"), layers.GlobalAveragePooling1D()]  # fmt: skip
    return _classifier(blocks, tf.random.uniform([batch_size, 50, 64]))


def lstm(batch_size: int = 64) -> Step:
    """An LSTM over 100 steps of time."""
    blocks = [layers.LSTM(256), layers.Dense(128, "relu")]
    return _classifier(blocks, tf.random.uniform([batch_size, 100, 128]))


def masked_gru(batch_size: int = 64) -> Step:
    """A GRU over texts of 10 to 100 words, padded and masked."""
    blocks = [layers.Embedding(1000, 128, mask_zero=True), layers.GRU(256)]
    lengths = tf.random.uniform([batch_size, 1], 10, 101, tf.int32)
    words = tf.random.uniform([batch_size, 100], 1, 1000, tf.int32)
    return _classifier(blocks, tf.where(tf.range(100) < lengths, words, 0))


def texts(batch_size: int = 64) -> Step:
    """Texts of 120 words, read both ways and then once more: three LSTMs, masked."""
    both_ways = layers.Bidirectional(layers.LSTM(128, return_sequences=True))
    blocks = [layers.Embedding(5000, 128, mask_zero=True), both_ways, layers.LSTM(128)]
    return _classifier(blocks, tf.random.uniform([batch_size, 120], maxval=5000, dtype=tf.int32))


def speech(batch_size: int = 12) -> Step:
    """400 frames of sound, halved by a convolution and read both ways by a GRU."""
    both_ways = layers.Bidirectional(layers.GRU(96, return_sequences=True))
    blocks = [layers.Conv1D(96, 5, strides=2, padding="causal", activation="relu"), both_ways,
              layers.Dense(64, "relu"), layers.GlobalAveragePooling1D()]  # fmt: skip
    return _classifier(blocks, tf.random.uniform([batch_size, 400, 40]))


def moving_images(batch_size: int = 8) -> Step:
    """A ConvLSTM2D over 20 images."""
    blocks = [layers.ConvLSTM2D(32, 3, padding="same"), layers.GlobalAveragePooling2D()]
    return _classifier(blocks, tf.random.uniform([batch_size, 20, 32, 32, 3]))


def scanned(batch_size: int = 64) -> Step:
    """A recurrence of one's own by `tf.scan`, over 40 steps."""
    w = tf.Variable(tf.random.normal([128, 128], stddev=0.05))
    out = tf.Variable(tf.random.normal([128, 10], stddev=0.05))

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            states = tf.scan(lambda s, each: tf.tanh(s @ w + each), x, tf.zeros([batch_size, 128]))
            logits = tf.reduce_mean(states, 0) @ out
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            value = tf.reduce_mean(losses)
        for variable, gradient in zip((w, out), tape.gradient(value, (w, out)), strict=True):
            variable.assign_sub(0.01 * gradient)
        return value

    x = tf.random.normal([40, batch_size, 128])
    return train_step, (x, tf.random.uniform([batch_size], maxval=10, dtype=tf.int32))
