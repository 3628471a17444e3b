"""ResNet (He et al., "Deep Residual Learning for Image Recognition", 2015, arXiv 1512.03385).

18 and 34 layers use basic blocks (two 3x3 convolutions), the deeper ones bottleneck blocks (1x1,
3x3, 1x1, with 4 times the width at the end). Where a block halves the image, the paper strides
its first convolution ("v1"); everyone since strides the 3x3 one ("v1.5": torchvision, NVIDIA), and
so do we unless `stride_on` says otherwise. The number of parameters is the same.

`version=2` is the full pre-activation network of He et al., "Identity Mappings in Deep Residual
Networks", 2016, arXiv 1603.05027, as TensorFlow's official models drew it in 2018 and as OpenAI's
gradient-checkpointing benchmarks it: batch norm and relu stand before each convolution, a
projection reads the block's first relu, and where a convolution is strided the image is padded by
an op of its own, the same on all sides.

Batch-norm decay 0.997 and epsilon 1e-5 are tf-slim's (resnet_utils.resnet_arg_scope).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memtrade.models.base import Classifier, Net, Tensor
from memtrade.options import option

# Residual blocks per stage. 200 layers: He et al., "Identity Mappings", 2016, arXiv 1603.05027.
BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
WIDTHS = (64, 128, 256, 512)


@dataclass(frozen=True, kw_only=True)
class ResNet(Classifier):
    """A residual network. Every block's output is a checkpoint, and so is the stem's."""

    family: ClassVar[str] = "resnet"
    summary: ClassVar[str] = "ResNet v1.5 or v2, 18 to 200 layers (He et al. 2015, 2016)"

    layers: int = option(50, "depth", choices=tuple(BLOCKS))
    version: int = option(1, "1, or 2: pre-activation", choices=(1, 2))
    stride_on: str = option(
        "3x3",
        "in v1, the convolution of a bottleneck that halves the image",
        choices=("3x3", "1x1"),
    )

    @property
    def name(self) -> str:
        return f"resnet-{self.layers}"

    def logits(self, net: Net, images: Tensor) -> Tensor:
        x = self._features(net, images)
        with net.scope("head"):
            if self.version == 2:
                x = norm_relu(net, x, "last")
                x = net.avg_pool(x, x.shape[2], padding="VALID")  # [N, 1, 1, 512 or 2048]
                x = net.reshape(x, (self.batch_size, -1))
            else:
                x = net.global_average_pool(x)  # [N, 512 or 2048]
            return net.dense(x, self.num_classes, name="logits")

    def _features(self, net: Net, images: Tensor) -> Tensor:
        first, shallow, deep = STEM_AND_BLOCKS[self.version]
        with net.scope("stem"):
            x = net.block(first, images)  # [N, 56, 56, 64] of 224 pixels
        block = shallow if self.layers < 50 else deep
        for stage, (blocks, width) in enumerate(zip(BLOCKS[self.layers], WIDTHS, strict=True)):
            for index in range(blocks):
                own = {"project": not index} if self.version == 2 else {"stride_on": self.stride_on}
                stride = 2 if stage > 0 and index == 0 else 1
                with net.scope(f"stage{stage + 1}_block{index + 1}"):
                    # [N, 56 / 2^stage, same, width or 4 * width]
                    x = net.block(block, x, width=width, stride=stride, **own)
        return x


def stem(net: Net, images: Tensor) -> Tensor:
    """[N, H, W, 3] -> [N, H/4, W/4, 64]."""
    x = net.relu(conv_bn(net, images, 64, 7, stride=2, name="conv1"))
    return net.max_pool(x, 3, stride=2)


def conv_bn(
    net: Net, x: Tensor, filters: int, kernel: int, *, stride: int = 1, name: str
) -> Tensor:
    with net.scope(name):
        x = net.conv(x, filters, kernel, stride=stride)
        return net.batch_norm(x, decay=0.997, epsilon=1e-5)


def basic(net: Net, x: Tensor, width: int, *, stride: int, stride_on: str) -> Tensor:
    """Two 3x3 convolutions, the first one strided: [N, H, W, C] -> [N, H/s, W/s, width]."""
    y = net.relu(conv_bn(net, x, width, 3, stride=stride, name="conv1"))
    y = conv_bn(net, y, width, 3, name="conv2")
    return net.relu(y + shortcut(net, x, width, stride=stride))


def bottleneck(net: Net, x: Tensor, width: int, *, stride: int, stride_on: str) -> Tensor:
    """1x1, 3x3, 1x1 convolutions: [N, H, W, C] -> [N, H/s, W/s, 4 * width]."""
    first, second = (1, stride) if stride_on == "3x3" else (stride, 1)
    y = net.relu(conv_bn(net, x, width, 1, stride=first, name="conv1"))
    y = net.relu(conv_bn(net, y, width, 3, stride=second, name="conv2"))
    y = conv_bn(net, y, 4 * width, 1, name="conv3")
    return net.relu(y + shortcut(net, x, 4 * width, stride=stride))


def shortcut(net: Net, x: Tensor, filters: int, *, stride: int) -> Tensor:
    """The identity where the shapes allow it, else a projection (the paper's option B)."""
    if stride == 1 and net.channels(x) == filters:
        return x
    return conv_bn(net, x, filters, 1, stride=stride, name="shortcut")


def stem_v2(net: Net, images: Tensor) -> Tensor:
    """[N, H, W, 3] -> [N, H/4, W/4, 64]; the identity is theirs, and has a name of its own."""
    x = padded_conv(net, images, 64, 7, stride=2, name="conv")
    return net.identity(net.max_pool(x, 3, stride=2))


def norm_relu(net: Net, x: Tensor, name: str) -> Tensor:
    with net.scope(name):
        return net.relu(net.batch_norm(x, decay=0.997, epsilon=1e-5))


def padded_conv(
    net: Net, x: Tensor, filters: int, kernel: int, *, stride: int = 1, name: str
) -> Tensor:
    """Where strided, padded the same on all sides of the image by an op of its own, even by 0."""
    if stride == 1:
        return net.conv(x, filters, kernel, name=name)
    before = (kernel - 1) // 2
    x = net.pad(x, ((before, kernel - 1 - before),) * 2)
    return net.conv(x, filters, kernel, stride=stride, padding="VALID", name=name)


def basic_v2(net: Net, x: Tensor, width: int, *, stride: int, project: bool) -> Tensor:
    """[N, H, W, C] -> [N, H/s, W/s, width]."""
    y = norm_relu(net, x, "norm1")
    carried = padded_conv(net, y, width, 1, stride=stride, name="shortcut") if project else x
    y = padded_conv(net, y, width, 3, stride=stride, name="conv1")
    return padded_conv(net, norm_relu(net, y, "norm2"), width, 3, name="conv2") + carried


def bottleneck_v2(net: Net, x: Tensor, width: int, *, stride: int, project: bool) -> Tensor:
    """[N, H, W, C] -> [N, H/s, W/s, 4 * width]."""
    y = norm_relu(net, x, "norm1")
    carried = padded_conv(net, y, 4 * width, 1, stride=stride, name="shortcut") if project else x
    y = padded_conv(net, y, width, 1, name="conv1")
    y = padded_conv(net, norm_relu(net, y, "norm2"), width, 3, stride=stride, name="conv2")
    return padded_conv(net, norm_relu(net, y, "norm3"), 4 * width, 1, name="conv3") + carried


# By version: the stem, and the block of networks with less than 50 layers, and with more.
STEM_AND_BLOCKS = {1: (stem, basic, bottleneck), 2: (stem_v2, basic_v2, bottleneck_v2)}
