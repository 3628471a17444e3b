"""Networks that are trained against each other: several tapes, several losses, several updates."""

# TensorFlow's and Keras's annotations say less than their functions take.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalOperand=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from tests.corpus.parts import BATCH, Made, images, labels, seeded

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


def translator() -> keras.Model:
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
    generator, discriminator = translator(), _discriminator(32, 6, norm=True)
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
    f, g = translator(), translator()
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


STEPS = (dcgan, conditional_gan, wgan_gp, pix2pix, cyclegan)
