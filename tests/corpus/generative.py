"""Models that generate: variational ones, diffusion, flows, codes."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from tests.corpus.adversarial import translator
from tests.corpus.parts import (
    BATCH,
    Made,
    compiled_step,
    descend,
    images,
    normal,
    seeded,
    weights,
)


def cvae() -> Made:
    """TensorFlow's tutorial "Convolutional Variational Autoencoder"."""
    seeded()
    x = inputs = keras.Input([28, 28, 1])
    for filters in (16, 32):
        x = layers.Conv2D(filters, 3, 2, padding="same", activation="relu")(x)
    encoder = keras.Model(inputs, layers.Dense(4)(layers.Flatten()(x)))
    inputs = keras.Input([2])
    x = layers.Reshape([7, 7, 16])(layers.Dense(7 * 7 * 16, activation="relu")(inputs))
    for filters in (32, 16):
        x = layers.Conv2DTranspose(filters, 3, 2, padding="same", activation="relu")(x)
    decoder = keras.Model(inputs, layers.Conv2DTranspose(1, 3, padding="same")(x))
    variables = encoder.trainable_variables + decoder.trainable_variables
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(variables)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(encoder(x), 2, axis=1)
            z = mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean))
            logits = decoder(z)
            cross = tf.nn.sigmoid_cross_entropy_with_logits(logits=logits, labels=x)
            divergence = 1.0 + log_variance - mean**2 - tf.exp(log_variance)
            loss = tf.reduce_mean(tf.reduce_sum(cross, [1, 2, 3]))
            loss -= 0.5 * tf.reduce_mean(tf.reduce_sum(divergence, 1))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return train_step, (images(28, 1),)


class _Vae(keras.Model):
    """Keras's example "Variational AutoEncoder": a train_step of one's own, with metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [layers.Dense(128, activation="relu") for _ in range(4)]
        self.heads, self.out = layers.Dense(16), layers.Dense(784)
        self.seeds = keras.random.SeedGenerator(1)
        self.total = keras.metrics.Mean(name="total_loss")
        self.divergence = keras.metrics.Mean(name="kl_loss")

    def train_step(self, data):
        with tf.GradientTape() as tape:
            x = self.hidden[1](self.hidden[0](data))
            mean, log_variance = tf.split(self.heads(x), 2, axis=1)
            noise = keras.random.normal(tf.shape(mean), seed=self.seeds)
            x = self.hidden[3](self.hidden[2](mean + tf.exp(0.5 * log_variance) * noise))
            error = tf.reduce_mean(tf.reduce_sum((self.out(x) - data) ** 2, 1))
            kl = -0.5 * tf.reduce_mean(1 + log_variance - mean**2 - tf.exp(log_variance))
            total = error + kl
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(total)
        self.divergence.update_state(kl)
        return {"total_loss": self.total.result(), "kl_loss": self.divergence.result()}


def vae_fit() -> Made:
    seeded()
    model = _Vae()
    model.compile("adam", jit_compile=False)
    return tf.function(model.train_step, autograph=False), (normal(BATCH, 784),)


def ddim() -> Made:
    """Keras's example "Denoising Diffusion Implicit Models": noise, a U-Net, an average of it."""
    seeded()
    noisy, level = keras.Input([32, 32, 3]), keras.Input([1, 1, 1])
    waves = layers.UpSampling2D(32)(layers.Dense(8, activation="tanh")(level))
    x = layers.Concatenate()([layers.Conv2D(8, 1)(noisy), waves])
    skips = []
    for width in (16, 24):
        y = layers.Conv2D(width, 1)(x)
        x = layers.Conv2D(width, 3, padding="same", activation="swish")(
            layers.BatchNormalization(center=False, scale=False)(x)
        )
        x = layers.Add()([layers.Conv2D(width, 3, padding="same")(x), y])
        skips.append(x)
        x = layers.AveragePooling2D(2)(x)
    for width in (24, 16):
        x = layers.Concatenate()([layers.UpSampling2D(interpolation="bilinear")(x), skips.pop()])
        x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
    network = keras.Model([noisy, level], layers.Conv2D(3, 1, kernel_initializer="zeros")(x))
    average = keras.models.clone_model(network)
    average.set_weights(network.get_weights())
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.build(network.trainable_variables)

    @tf.function
    def train_step(x):
        noise = tf.random.normal([BATCH, 32, 32, 3])
        angle = tf.random.uniform([BATCH, 1, 1, 1]) * 1.5
        mixed = tf.cos(angle) * x + tf.sin(angle) * noise
        with tf.GradientTape() as tape:
            found = network([mixed, tf.sin(angle) ** 2], training=True)
            noise_loss = tf.reduce_mean(tf.abs(noise - found))
            image_loss = tf.reduce_mean(tf.abs(x - (mixed - tf.sin(angle) * found)))
        gradients = tape.gradient(noise_loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        for slow, fast in zip(average.weights, network.weights, strict=True):
            slow.assign(0.999 * slow + 0.001 * fast)
        return {"n_loss": noise_loss, "i_loss": image_loss}

    return train_step, (images(),)


def vq_vae() -> Made:
    """Keras's example: a code book, the nearest code, a gradient straight through."""
    seeded()
    encode = keras.Sequential(
        [keras.Input([32, 32, 3])]
        + [layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(2)]
    )
    decode = keras.Sequential(
        [keras.Input([32, 32, 16]), layers.Conv2DTranspose(16, 3, padding="same"), layers.ReLU(),
         layers.Conv2DTranspose(3, 3, padding="same")]
    )  # fmt: skip
    (codes,) = weights([16, 32])
    optimizer = keras.optimizers.Adam(1e-3)
    variables = [*encode.trainable_variables, *decode.trainable_variables, codes]
    optimizer.build(variables)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            z = encode(x, training=True)
            flat = tf.reshape(z, [-1, 16])
            distance = tf.reduce_sum(flat**2, 1, keepdims=True) - 2.0 * flat @ codes
            nearest = tf.argmin(distance + tf.reduce_sum(codes**2, 0), 1)
            quantized = tf.reshape(
                tf.matmul(tf.one_hot(nearest, 32), codes, transpose_b=True), tf.shape(z)
            )
            commitment = tf.reduce_mean((tf.stop_gradient(quantized) - z) ** 2)
            codebook = tf.reduce_mean((quantized - tf.stop_gradient(z)) ** 2)
            straight = z + tf.stop_gradient(quantized - z)
            error = tf.reduce_mean((decode(straight, training=True) - x) ** 2)
            loss = error + codebook + 0.25 * commitment
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return train_step, (images(),)


def real_nvp() -> Made:
    """Keras's example "Density estimation using Real NVP": coupling layers, an exact likelihood."""
    seeded()
    hidden = [weights([32, 64], [64, 64], [64, 64], seed=i) for i in range(6)]

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            likelihood = tf.zeros([1024])
            for first, second, third in hidden:
                left, right = tf.split(x, 2, axis=1)
                y = tf.nn.relu(tf.nn.relu(left @ first) @ second) @ third
                scale, shift = tf.split(y, 2, axis=1)
                scale = tf.tanh(scale)
                x = tf.concat([right * tf.exp(scale) + shift, left], 1)
                likelihood += tf.reduce_sum(scale, 1)
            loss = tf.reduce_mean(0.5 * tf.reduce_sum(x**2, 1) - likelihood)
        descend(tape, loss, [w for each in hidden for w in each])
        return loss

    return train_step, (normal(1024, 64),)


def pixel_cnn() -> Made:
    """Keras's example "PixelCNN": masked convolutions in residual blocks."""
    seeded()
    kernels = weights([3, 3, 3, 16], *[[3, 3, 16, 16]] * 5, [1, 1, 16, 3])
    mask = tf.reshape(tf.constant([1.0] * 4 + [0.0] * 5), [3, 3, 1, 1])

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            y = tf.nn.conv2d(x, kernels[0] * mask, 1, "SAME")
            for kernel in kernels[1:-1]:
                y = y + tf.nn.relu(tf.nn.conv2d(tf.nn.relu(y), kernel * mask, 1, "SAME"))
            logits = tf.nn.conv2d(y, kernels[-1], 1, "SAME")
            target = tf.cast(x > 0, tf.float32)
            cross = tf.nn.sigmoid_cross_entropy_with_logits(labels=target, logits=logits)
            loss = tf.reduce_mean(cross)
        descend(tape, loss, kernels)
        return loss

    return train_step, (images(),)


def denoising_autoencoder() -> Made:
    seeded()
    model = keras.Sequential([keras.Input([28, 28, 1])])
    for filters, stride in ((16, 2), (8, 2)):
        model.add(layers.Conv2D(filters, 3, stride, padding="same", activation="relu"))
    for filters in (8, 16):
        model.add(layers.Conv2DTranspose(filters, 3, 2, padding="same", activation="relu"))
    model.add(layers.Conv2D(1, 3, padding="same", activation="sigmoid"))
    model.compile("adam", "mse", jit_compile=False)
    return compiled_step(model), (images(28, 1), images(28, 1, seed=4))


def text_to_image_embedding() -> Made:
    """Textual inversion: a frozen network, and one trained vector that leads into it."""
    seeded()
    frozen = translator()
    frozen.trainable = False
    token = tf.Variable(tf.zeros([3]))

    def towards(y, x):
        return tf.reduce_mean((y - frozen(x + token)) ** 2)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = towards(y, x)
        token.assign_sub(0.1 * tape.gradient(loss, token))
        return loss

    return train_step, (images(), images(seed=6))


STEPS = (
    cvae, vae_fit, ddim, vq_vae, real_nvp, pixel_cnn, denoising_autoencoder,
    text_to_image_embedding,
)  # fmt: skip
