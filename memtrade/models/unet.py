"""The simplified U-Net of torchgpipe's benchmarks (Kim et al. 2020, arXiv 2004.09910).

U-Net (B, C) has 5 levels, B convolutions per level and C channels at the top. After Ronneberger et
al. 2015 (arXiv 1505.04597); its long skip connections are what makes a memory plan interesting.
Described in torchgpipe/benchmarks/models/unet/__init__.py, whose parameter counts ours equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memtrade.errors import MemtradeError
from memtrade.models.base import DrawnModel, ImageModel, Input, Net, Tensor
from memtrade.options import option

DEPTH = 5  # levels, and so halvings of the image


@dataclass(frozen=True, kw_only=True)
class UNet(ImageModel, DrawnModel):
    """Segments images into one class. Every level's output, on both sides, is a checkpoint."""

    family: ClassVar[str] = "unet"
    summary: ClassVar[str] = "U-Net (B, C) of the torchgpipe benchmarks (Ronneberger et al. 2015)"

    num_convs: int = option(5, "B, convolutions per level")
    base_channels: int = option(64, "C, channels at the top level, an even number", at_least=2)
    # Below 64 pixels the bottleneck has one pixel, which instance norm turns into 0.
    image_size: int = option(192, "height and width of the images in pixels", at_least=64)
    dropout: float = option(0.1, "rate of dropout, of whole channels", at_least=0.0, below=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base_channels % 2:
            raise MemtradeError(
                f"option 'base_channels' must be even, not {self.base_channels}: "
                "the last level has half as many"
            )

    @property
    def name(self) -> str:
        return f"unet-{self.num_convs}-{self.base_channels}"

    def inputs(self) -> dict[str, Input]:
        return {"images": Input(self.image(3)), "targets": Input(self.image(1), below=1)}

    def loss(self, net: Net, *, images: Tensor, targets: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # the names are those of inputs()
        """Mean binary cross-entropy over the pixels."""
        return net.mean(net.binary_cross_entropy(self.logits(net, images), targets))

    def logits(self, net: Net, images: Tensor) -> Tensor:
        """[N, H, W, 3] -> [N, H, W, 1]"""
        c, x, skips = self.base_channels, images, []
        for level in range(DEPTH):
            with net.scope(f"encoder{level + 1}"):
                width = c * 2**level
                x = net.block(self._cell, x, inner=width, out=width)  # [N, H/2^level, .., width]
                skips.append(x)
                x = net.max_pool(x, 2, stride=2, padding="VALID")
        with net.scope("bottleneck"):
            # [N, H/32, W/32, 16C]
            x = net.block(self._cell, x, inner=c * 2**DEPTH, out=c * 2 ** (DEPTH - 1))
        for level in reversed(range(DEPTH)):
            with net.scope(f"decoder{level + 1}"):
                width = c * 2**level // 2
                x = fit(net, net.upsample(x), skips[level])
                x = net.concat([x, skips[level]])  # [N, H/2^level, .., 4 * width]
                x = net.block(self._cell, x, inner=width, out=width)
        with net.scope("head"):
            return net.conv(x, 1, 1)

    def _cell(self, net: Net, x: Tensor, inner: int, out: int) -> Tensor:
        """num_convs times convolution, dropout, norm, leaky relu: [N, H, W, .] -> [N, H, W, out]"""
        for index in range(self.num_convs):
            last = index == self.num_convs - 1
            with net.scope(f"conv{index + 1}"):
                x = net.conv(x, out if last else inner, 3)
                x = net.dropout(x, self.dropout, whole="channels")
                x = net.leaky_relu(net.instance_norm(x), 0.01)
        return x


def fit(net: Net, x: Tensor, like: Tensor) -> Tensor:
    """Adds zeros below and to the right of `x` where halving and doubling lost an odd pixel."""
    rows, columns = (like.shape[axis] - x.shape[axis] for axis in net.image_axes())
    return net.pad(x, ((0, rows), (0, columns))) if rows or columns else x
