"""Images: classification, segmentation, super-resolution, metric learning, video."""

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
    images,
    labels,
    normal,
    seeded,
    sparse_loss,
    supervised,
    whole,
)


def conv_relu_chain() -> Made:
    """Five convolutions and a pooled head: no tensor is narrower than its neighbours."""
    seeded()
    x = inputs = keras.Input([32, 32, 3])
    for _ in range(5):
        x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10)(x))
    return supervised(model), (images(), labels())


def resnet() -> Made:
    seeded()
    inputs = keras.Input([32, 32, 3])
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for _ in range(4):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        y = layers.Conv2D(16, 3, padding="same", use_bias=False)(y)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        x = layers.Add()([x, layers.Conv2D(16, 3, padding="same", use_bias=False)(y)])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    return supervised(model, optimizer=keras.optimizers.SGD(0.1, 0.9)), (images(), labels())


def vgg_fit() -> Made:
    """A compiled model as `fit` trains it, with metrics and dropout."""
    seeded()
    model = keras.Sequential([keras.Input([32, 32, 3])])
    for filters in (16, 32, 32):
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
        model.add(layers.Dropout(0.2))
    model.add(layers.Flatten())
    model.add(layers.Dense(10, activation="softmax"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return compiled_step(model), (images(), labels())


def mobilenet() -> Made:
    """Inverted residuals: wide depthwise convolutions between narrow ones."""
    seeded()
    inputs = keras.Input([32, 32, 3])
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    for _ in range(3):
        y = layers.ReLU(6.0)(layers.BatchNormalization()(layers.Conv2D(32, 1)(x)))
        y = layers.DepthwiseConv2D(3, padding="same")(y)
        y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
        x = layers.Add()([x, layers.BatchNormalization()(layers.Conv2D(8, 1)(y))])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    return supervised(model), (images(), labels())


def densenet() -> Made:
    seeded()
    inputs = keras.Input([24, 24, 3])
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for _ in range(5):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Concatenate()([x, layers.Conv2D(8, 3, padding="same")(y)])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    return supervised(model), (images(24), labels())


def convnext() -> Made:
    seeded()
    inputs = keras.Input([32, 32, 3])
    x = layers.Conv2D(16, 4, 2, padding="same")(inputs)
    for _ in range(4):
        y = layers.DepthwiseConv2D(7, padding="same")(x)
        y = layers.LayerNormalization(epsilon=1e-6)(y)
        y = layers.Dense(64, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(16)(y)])
    x = layers.LayerNormalization()(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    return supervised(model, optimizer=keras.optimizers.AdamW(1e-3)), (images(), labels())


def vit() -> Made:
    """Keras's example "Image classification with Vision Transformer", small."""
    seeded()
    inputs = keras.Input([32, 32, 3])
    x = layers.Conv2D(32, 4, 4)(inputs)
    x = layers.Reshape([64, 32])(x)
    x = x + layers.Embedding(64, 32)(tf.range(64)[None])
    for _ in range(3):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 16, dropout=0.1)(y, y)])
        y = layers.Dense(64, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(32)(layers.Dropout(0.1)(y))])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    return supervised(model, optimizer=keras.optimizers.AdamW(1e-3)), (images(), labels())


def mlp_mixer() -> Made:
    seeded()
    inputs = keras.Input([64, 48])
    x = inputs
    for _ in range(4):
        y = layers.Permute([2, 1])(layers.LayerNormalization()(x))
        y = layers.Dense(64)(layers.Dense(128, activation="gelu")(y))
        x = layers.Add()([x, layers.Permute([2, 1])(y)])
        y = layers.Dense(96, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(48)(y)])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))
    return supervised(model), (normal(BATCH, 64, 48), labels())


def unet_segmentation() -> Made:
    """TensorFlow's tutorial "Image segmentation": long skips, a loss for each pixel."""
    seeded()
    inputs = keras.Input([32, 32, 3])
    x, skips = inputs, []
    for filters in (8, 16, 32):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    for filters in (32, 16, 8):
        x = layers.Conv2DTranspose(filters, 3, 2, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Concatenate()([x, skips.pop()])
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, layers.Conv2D(3, 1)(x))
    return supervised(model), (images(), whole(BATCH, 32, 32, below=3))


def super_resolution() -> Made:
    """Keras's example "Image Super-Resolution using an Efficient Sub-Pixel CNN"."""
    seeded()
    x = inputs = keras.Input([24, 24, 1])
    for filters in (32, 32, 16, 9):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, x)

    def squared(y, low):
        return tf.reduce_mean((tf.nn.depth_to_space(low, 3) - y) ** 2)

    return supervised(model, squared), (images(24, 1), images(72, 1, seed=3))


def siamese() -> Made:
    """Keras's example "Image similarity using a Siamese Network with a triplet loss"."""
    seeded()
    x = inputs = keras.Input([32, 32, 3])
    for filters in (8, 16, 16):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
    embed = keras.Model(inputs, layers.Dense(16)(layers.GlobalAveragePooling2D()(x)))
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(embed.trainable_variables)

    @tf.function
    def train_step(anchor, positive, negative):
        with tf.GradientTape() as tape:
            a, p, n = (embed(each, training=True) for each in (anchor, positive, negative))
            near, far = tf.reduce_sum((a - p) ** 2, -1), tf.reduce_sum((a - n) ** 2, -1)
            loss = tf.reduce_mean(tf.maximum(near - far + 0.5, 0.0))
        gradients = tape.gradient(loss, embed.trainable_variables)
        optimizer.apply_gradients(zip(gradients, embed.trainable_variables, strict=True))
        return {"loss": loss}

    return train_step, (images(seed=1), images(seed=2), images(seed=3))


def conv3d_video() -> Made:
    """TensorFlow's tutorial "Video classification with a 3D convolutional neural network"."""
    seeded()
    inputs = keras.Input([8, 16, 16, 3])
    x = layers.Conv3D(8, (1, 3, 3), padding="same")(inputs)
    for _ in range(2):
        y = layers.Conv3D(8, (1, 3, 3), padding="same")(x)
        y = layers.ReLU()(layers.LayerNormalization()(y))
        y = layers.Conv3D(8, (3, 1, 1), padding="same")(y)
        x = layers.Add()([x, layers.LayerNormalization()(y)])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling3D()(x)))
    return supervised(model), (normal(BATCH, 8, 16, 16, 3), labels())


def squeeze_excite() -> Made:
    seeded()
    inputs = keras.Input([32, 32, 3])
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for _ in range(3):
        y = layers.Conv2D(16, 3, padding="same", activation="swish")(x)
        gate = layers.Dense(4, activation="swish")(layers.GlobalAveragePooling2D()(y))
        gate = layers.Reshape([1, 1, 16])(layers.Dense(16, activation="sigmoid")(gate))
        x = layers.Add()([x, layers.Multiply()([y, gate])])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    return supervised(model, optimizer=keras.optimizers.RMSprop(1e-3)), (images(), labels())


def detector() -> Made:
    """Two heads on one backbone, boxes and classes, a loss each and their sum."""
    seeded()
    x = inputs = keras.Input([32, 32, 3])
    for filters in (8, 16, 16):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    boxes, classes = layers.Conv2D(4, 3, padding="same")(x), layers.Conv2D(5, 3, padding="same")(x)
    model = keras.Model(inputs, {"boxes": boxes, "classes": classes})
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, targets):
        with tf.GradientTape() as tape:
            found = model(x, training=True)
            box_loss = tf.reduce_mean(keras.losses.huber(targets["boxes"], found["boxes"]))
            class_loss = sparse_loss(targets["classes"], found["classes"])
            loss = box_loss + class_loss
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"box_loss": box_loss, "class_loss": class_loss, "loss": loss}

    targets = {"boxes": images(32, 4, seed=4), "classes": whole(BATCH, 32, 32, below=5)}
    return train_step, (images(), targets)


def style_transfer() -> Made:
    """TensorFlow's tutorial "Neural style transfer": what is trained is the image."""
    seeded()
    inputs = keras.Input([64, 64, 3])
    x, taps = inputs, []
    for filters in (8, 16, 16, 16):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        taps.append(x)
    extract = keras.Model(inputs, taps)
    extract.trainable = False
    image = tf.Variable(normal(BATCH, 64, 64, 3))
    optimizer = keras.optimizers.Adam(0.02, beta_1=0.99, epsilon=1e-1)
    optimizer.build([image])

    def gram(features):
        return tf.linalg.einsum("bijc,bijd->bcd", features, features) / 4096.0

    @tf.function
    def train_step(style):
        with tf.GradientTape() as tape:
            pairs = zip(extract(image), extract(style), strict=True)
            loss = tf.add_n([tf.reduce_mean((gram(a) - gram(b)) ** 2) for a, b in pairs])
            loss += 1e-3 * tf.reduce_mean(tf.image.total_variation(image))
        optimizer.apply_gradients([(tape.gradient(loss, image), image)])
        image.assign(tf.clip_by_value(image, -3.0, 3.0))
        return loss

    return train_step, (images(64, seed=9),)


STEPS = (
    conv_relu_chain, resnet, vgg_fit, mobilenet, densenet, convnext, vit, mlp_mixer,
    unet_segmentation, super_resolution, siamese, conv3d_video, squeeze_excite, detector,
    style_transfer,
)  # fmt: skip
