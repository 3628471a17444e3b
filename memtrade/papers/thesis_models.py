"""The thesis' two networks, as its benchmark drew them; not the same as memtrade's own.

ResNet: the full pre-activation network ("v2") of He et al., "Identity mappings in deep residual
networks", 2016, arXiv 1603.05027, as OpenAI's gradient-checkpointing benchmarks it
(test/deep_imagenet_benchmark.py and test/resnet_model.py in cybertronai/gradient-checkpointing):
channels first, 1,001 classes, strided convolutions padded by an op of their own, images and labels
drawn in the step itself, a penalty on all weights, every step traced. That the thesis ran this one
is seen from

- its prompt (`gradient-checkpointing/test# python benchmark.py`), its batch of 32 and its sizes;
- the memory cost of `original`: 2,692, 4,120 and 5,834 MB for 50, 101 and 152 layers, where the
  comments of that benchmark say 2,694, 4,112 and 5,826;
- what LMS logs: 68, 124, 188, 375, 562 and 738 tensors swapped for 18 to 200 layers, with 150 to
  1,672 ops added. `thesis_plans.large_model_support` finds exactly these numbers here, because
  sums ("Add") are exempt, and in no ResNet that normalizes behind its convolutions.

InceptionV4: tf-slim's, whose checkpoints' names and shapes the log prints. Its memory cost of 3,698
MB is that of a network that keeps one tensor per convolution: the outputs of all relus,
concatenations and pools are 3,447 MB. Batch norm in training mode keeps two, 5,378 MB. So its batch
norm was in inference mode, which in tf-slim is a multiplication and an addition; the 335 tensors
that LMS logs for it are found here, too. Channels last, as tf-slim has them by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from memtrade.graph import StepGraph
from memtrade.models import inception_v4
from memtrade.models.base import Classifier, Input, Net, Tensor
from memtrade.models.resnet import BLOCKS, WIDTHS
from memtrade.options import option
from memtrade.tf import layers
from memtrade.tf.build import make_step
from memtrade.tf.extract import trace

WEIGHT_DECAY = 2e-4


@dataclass(frozen=True, kw_only=True)
class PreActivationResNet(Classifier):
    """Batch norm and relu before each convolution; projections read the block's first relu."""

    family: ClassVar[str] = "resnet"

    layers: int = option(50, "depth", choices=tuple(BLOCKS))
    num_classes: int = option(1001, "classes to tell apart", at_least=2)
    data_format: str = option("NCHW", "order of the axes of images", choices=("NHWC", "NCHW"))

    @property
    def name(self) -> str:
        return f"resnet-{self.layers}"

    def inputs(self) -> dict[str, Input]:
        return {}

    def loss(self, net: Net) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        size = self.image_size
        images = tf.random.uniform((self.batch_size, size, size, 3))
        labels = tf.random.uniform((self.batch_size, self.num_classes))
        logits = self.logits(net, tf.transpose(images, (0, 3, 1, 2)))
        weights = net._variables.trainable()
        penalty = WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(w) for w in weights])
        # Last, because the gradients are to descend from here.
        entropy = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return penalty + net.mean(entropy)

    def logits(self, net: Net, images: Tensor) -> Tensor:
        with net.scope("stem"):
            x = net.max_pool(padded_conv(net, images, 64, 7, stride=2, name="conv"), 3, stride=2)
            x = tf.identity(x)  # a bottleneck of its own to OpenAI's rule
        block = basic if self.layers < 50 else bottleneck
        for stage, (blocks, width) in enumerate(zip(BLOCKS[self.layers], WIDTHS, strict=True)):
            for index in range(blocks):
                with net.scope(f"stage{stage + 1}_block{index + 1}"):
                    first = index == 0
                    x = block(net, x, width, stride=2 if stage and first else 1, project=first)
        with net.scope("head"):
            x = norm_relu(net, x, "last")
            x = net.avg_pool(x, x.shape[2], padding="VALID")
            return net.dense(tf.reshape(x, (self.batch_size, -1)), self.num_classes, name="logits")


def norm_relu(net: Net, x: Tensor, name: str) -> Tensor:
    with net.scope(name):
        return net.relu(net.batch_norm(x, decay=0.997, epsilon=1e-5))


def padded_conv(
    net: Net, x: Tensor, filters: int, kernel: int, *, stride: int = 1, name: str
) -> Tensor:
    """Where strided, padded the same on all sides of the image by an op of its own, even by 0."""
    if stride > 1:
        before = (kernel - 1) // 2
        x = net.pad(x, ((before, kernel - 1 - before),) * 2)
    padding = "SAME" if stride == 1 else "VALID"
    return net.conv(x, filters, kernel, stride=stride, padding=padding, name=name)


def basic(net: Net, x: Tensor, width: int, *, stride: int, project: bool) -> Tensor:
    y = norm_relu(net, x, "norm1")
    carried = padded_conv(net, y, width, 1, stride=stride, name="shortcut") if project else x
    y = padded_conv(net, y, width, 3, stride=stride, name="conv1")
    return padded_conv(net, norm_relu(net, y, "norm2"), width, 3, name="conv2") + carried


def bottleneck(net: Net, x: Tensor, width: int, *, stride: int, project: bool) -> Tensor:
    y = norm_relu(net, x, "norm1")
    carried = padded_conv(net, y, 4 * width, 1, stride=stride, name="shortcut") if project else x
    y = padded_conv(net, y, width, 1, name="conv1")
    y = padded_conv(net, norm_relu(net, y, "norm2"), width, 3, stride=stride, name="conv2")
    return padded_conv(net, norm_relu(net, y, "norm3"), 4 * width, 1, name="conv3") + carried


@dataclass(frozen=True, kw_only=True)
class FrozenInceptionV4(inception_v4.InceptionV4):
    """memtrade's InceptionV4 with batch norm in inference mode, and without dropout."""

    dropout: float = option(0.0, "rate of dropout before the logits", at_least=0.0, below=1.0)
    num_classes: int = option(1001, "classes to tell apart", at_least=2)

    def logits(self, net: Net, images: Tensor) -> Tensor:
        return super().logits(FrozenNet(net._variables, layout=net.layout), images)


class FrozenNet(layers.Net):
    """A toolkit whose batch norm scales and shifts by constants: only the shift is trained."""

    def batch_norm(
        self, x: tf.Tensor, *, decay: float, epsilon: float, name: str = "batch_norm"
    ) -> tf.Tensor:
        size = [self.channels(x)]
        with self.scope(name):
            shift = self.variable("beta", size)
            mean = self.variable("moving_mean", size, trainable=False)
            variance = self.variable("moving_variance", size, fill=1.0, trainable=False)
            scale = tf.math.rsqrt(variance + epsilon)
            return _scaled(x, scale) + (shift - mean * scale)


def _scaled(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """x * scale without a gradient for `scale`, which would read x."""

    @tf.custom_gradient
    def scaled(x: tf.Tensor):
        return x * scale, lambda upstream: upstream * scale

    return scaled(x)  # pyright: ignore[reportReturnType]  # the decorator takes the gradient off


def trace_step(layers: int | None, batch_size: int) -> StepGraph:
    """The graph of one training step: of a ResNet, or (None) of InceptionV4.

    Adam, because the thesis' memory between steps is three times the weights: two slots each.
    """
    if layers is None:
        model = FrozenInceptionV4(batch_size=batch_size)
    else:
        model = PreActivationResNet(layers=layers, batch_size=batch_size)
    with tf.Graph().as_default():
        return trace(make_step(model, optimizer="adam")).graph
