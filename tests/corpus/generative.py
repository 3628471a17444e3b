"""Models that generate: adversarial ones with two tapes, variational ones, diffusion, flows."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from tests.corpus.parts import (
    BATCH,
    Made,
    compiled_step,
    descend,
    images,
    labels,
    normal,
    seeded,
    weights,
)

_cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


def _generator(noise: int = 32, channels: int = 1) -> keras.Model:
    """TensorFlow's tutorial "DCGAN", a quarter as wide."""
    inputs = keras.Input([noise])
    x = layers.Reshape([7, 7, 32])(layers.Dense(7 * 7 * 32, use_bias=False)(inputs))
    for filters, stride in ((32, 1), (16, 2)):
        x = layers.LeakyReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2DTranspose(filters, 5, stride, padding="same", use_bias=False)(x)
    x = layers.LeakyReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2DTranspose(channels, 5, 2, padding="same", activation="tanh")(x)
    return keras.Model(inputs, x)


def _discriminator(size: int = 28, channels: int = 1, norm: bool = False) -> keras.Model:
    x = inputs = keras.Input([size, size, channels])
    for filters in (16, 32):
        x = layers.LeakyReLU()(layers.Conv2D(filters, 5, 2, padding="same")(x))
        x = layers.LayerNormalization()(x) if norm else layers.Dropout(0.3)(x)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))


def _adam(model: keras.Model) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)
    return optimizer


def _apply(optimizer: Any, tape: tf.GradientTape, loss: tf.Tensor, model: keras.Model) -> None:
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def dcgan() -> Made:
    """Two tapes, random numbers drawn in the step, and nothing returned."""
    seeded()
    generator, discriminator = _generator(), _discriminator()
    of_generator, of_discriminator = _adam(generator), _adam(discriminator)

    @tf.function
    def train_step(x):
        noise = tf.random.normal([BATCH, 32])
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            made = generator(noise, training=True)
            real, fake = discriminator(x, training=True), discriminator(made, training=True)
            gen_loss = _cross_entropy(tf.ones_like(fake), fake)
            disc_loss = _cross_entropy(tf.ones_like(real), real)
            disc_loss += _cross_entropy(tf.zeros_like(fake), fake)
        _apply(of_generator, gen_tape, gen_loss, generator)
        _apply(of_discriminator, disc_tape, disc_loss, discriminator)

    return train_step, (images(28, 1),)


def conditional_gan() -> Made:
    """Keras's example: two updates after each other in one step, each with its own forward pass."""
    seeded()
    generator, discriminator = _generator(32 + 10), _discriminator(channels=1 + 10)
    of_generator, of_discriminator = _adam(generator), _adam(discriminator)

    @tf.function
    def train_step(x, y):
        one_hot = tf.one_hot(y, 10)
        planes = tf.tile(one_hot[:, None, None], [1, 28, 28, 1])
        noise = tf.concat([tf.random.normal([BATCH, 32]), one_hot], 1)
        made = generator(noise)
        both = tf.concat([tf.concat([made, planes], -1), tf.concat([x, planes], -1)], 0)
        truth = tf.concat([tf.ones([BATCH, 1]), tf.zeros([BATCH, 1])], 0)
        with tf.GradientTape() as tape:
            d_loss = _cross_entropy(truth, discriminator(both, training=True))
        _apply(of_discriminator, tape, d_loss, discriminator)
        with tf.GradientTape() as tape:
            fake = discriminator(tf.concat([generator(noise, training=True), planes], -1))
            g_loss = _cross_entropy(tf.zeros([BATCH, 1]), fake)
        _apply(of_generator, tape, g_loss, generator)
        return {"g_loss": g_loss, "d_loss": d_loss}

    return train_step, (images(28, 1), labels())


def wgan_gp() -> Made:
    """Keras's example: a penalty on the gradient, so gradients of gradients."""
    seeded()
    generator, critic = _generator(), _discriminator(norm=True)
    of_generator, of_critic = _adam(generator), _adam(critic)

    @tf.function
    def train_step(x):
        d_loss = tf.zeros([])
        for _ in range(2):
            noise = tf.random.normal([BATCH, 32])
            with tf.GradientTape() as tape:
                made = generator(noise, training=True)
                mixed = x + tf.random.uniform([BATCH, 1, 1, 1]) * (made - x)
                with tf.GradientTape() as inner:
                    inner.watch(mixed)
                    score = critic(mixed, training=True)
                slope = tf.sqrt(tf.reduce_sum(inner.gradient(score, mixed) ** 2, [1, 2, 3]))
                wasserstein = tf.reduce_mean(critic(made, training=True)) - tf.reduce_mean(
                    critic(x, training=True)
                )
                d_loss = wasserstein + 10.0 * tf.reduce_mean((slope - 1.0) ** 2)
            _apply(of_critic, tape, d_loss, critic)
        with tf.GradientTape() as tape:
            made = generator(tf.random.normal([BATCH, 32]), training=True)
            g_loss = -tf.reduce_mean(critic(made, training=True))
        _apply(of_generator, tape, g_loss, generator)
        return {"d_loss": d_loss, "g_loss": g_loss}

    return train_step, (images(28, 1),)


def _translator() -> keras.Model:
    """pix2pix' U-Net: down, up, and skips between them."""
    x = inputs = keras.Input([32, 32, 3])
    skips = []
    for filters in (16, 32, 32):
        x = layers.Conv2D(filters, 4, 2, padding="same", use_bias=False)(x)
        x = layers.LeakyReLU()(layers.GroupNormalization(groups=4)(x))
        skips.append(x)
    for filters, skip in ((32, skips[1]), (16, skips[0])):
        x = layers.Conv2DTranspose(filters, 4, 2, padding="same", use_bias=False)(x)
        x = layers.Concatenate()([layers.ReLU()(layers.GroupNormalization(groups=4)(x)), skip])
    x = layers.Conv2DTranspose(3, 4, 2, padding="same", activation="tanh")(x)
    return keras.Model(inputs, x)


def pix2pix() -> Made:
    """TensorFlow's tutorial: an adversarial loss and the distance to the target."""
    seeded()
    generator, discriminator = _translator(), _discriminator(32, 6, norm=True)
    of_generator, of_discriminator = _adam(generator), _adam(discriminator)

    @tf.function
    def train_step(x, target):
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            made = generator(x, training=True)
            real = discriminator(tf.concat([x, target], -1), training=True)
            fake = discriminator(tf.concat([x, made], -1), training=True)
            gen_gan_loss = _cross_entropy(tf.ones_like(fake), fake)
            gen_l1_loss = tf.reduce_mean(tf.abs(target - made))
            gen_total_loss = gen_gan_loss + 100.0 * gen_l1_loss
            disc_loss = _cross_entropy(tf.ones_like(real), real)
            disc_loss += _cross_entropy(tf.zeros_like(fake), fake)
        _apply(of_generator, gen_tape, gen_total_loss, generator)
        _apply(of_discriminator, disc_tape, disc_loss, discriminator)
        return gen_total_loss, gen_gan_loss, gen_l1_loss, disc_loss

    return train_step, (images(), images(seed=5))


def cyclegan() -> Made:
    """TensorFlow's tutorial: four networks, a persistent tape, four updates, nothing returned."""
    seeded()
    f, g = _translator(), _translator()
    of_x, of_y = _discriminator(32, 3, norm=True), _discriminator(32, 3, norm=True)
    networks = [f, g, of_x, of_y]
    optimizers = [_adam(each) for each in networks]

    def truth(real, made):
        fake = _cross_entropy(tf.zeros_like(made), made)
        return 0.5 * (_cross_entropy(tf.ones_like(real), real) + fake)

    @tf.function
    def train_step(real_x, real_y):
        with tf.GradientTape(persistent=True) as tape:
            fake_y, fake_x = g(real_x, training=True), f(real_y, training=True)
            cycled_x, cycled_y = f(fake_y, training=True), g(fake_x, training=True)
            same_x, same_y = f(real_x, training=True), g(real_y, training=True)
            disc_real_x, disc_real_y = of_x(real_x, training=True), of_y(real_y, training=True)
            disc_fake_x, disc_fake_y = of_x(fake_x, training=True), of_y(fake_y, training=True)
            cycle = tf.reduce_mean(tf.abs(real_x - cycled_x))
            cycle += tf.reduce_mean(tf.abs(real_y - cycled_y))
            loss_g = _cross_entropy(tf.ones_like(disc_fake_y), disc_fake_y) + 10.0 * cycle
            loss_g += 5.0 * tf.reduce_mean(tf.abs(real_y - same_y))
            loss_f = _cross_entropy(tf.ones_like(disc_fake_x), disc_fake_x) + 10.0 * cycle
            loss_f += 5.0 * tf.reduce_mean(tf.abs(real_x - same_x))
            loss_x, loss_y = truth(disc_real_x, disc_fake_x), truth(disc_real_y, disc_fake_y)
        losses = (loss_f, loss_g, loss_x, loss_y)
        gradients = [
            tape.gradient(loss, network.trainable_variables)
            for loss, network in zip(losses, networks, strict=True)
        ]
        for optimizer, gradient, network in zip(optimizers, gradients, networks, strict=True):
            optimizer.apply_gradients(zip(gradient, network.trainable_variables, strict=True))

    return train_step, (images(), images(seed=5))


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
    frozen = _translator()
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
    dcgan, conditional_gan, wgan_gp, pix2pix, cyclegan, cvae, vae_fit, ddim, vq_vae, real_nvp,
    pixel_cnn, denoising_autoencoder, text_to_image_embedding,
)  # fmt: skip
