"""AmoebaNet-D (Real et al., "Regularized Evolution", 2018, arXiv 1802.01548), as in torchgpipe.

AmoebaNet-D (L, D) has L normal cells in three groups and D/4 channels in the stem; GPipe (Huang et
al. 2018, arXiv 1811.06965) made it the benchmark of pipeline parallelism. We follow
torchgpipe/benchmarks/models/amoebanet, whose parameter counts ours equal, with its two quirks: the
operation that is named max_pool_3x3 is an average pool, and the normal cell concatenates the states
0, 3, 4, 6 (TensorFlow's TPU models do, too), not 4, 5, 6 as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from memtrade.errors import RuleError
from memtrade.models.base import Classifier, Net, Tensor
from memtrade.options import option

Operation = Callable[[Net, Tensor, int], Tensor]  # (net, x, stride)

# A reduction cell each, and behind it so many thirds of the normal cells.
STAGES = (("stem2", 0), ("stem3", 1), ("cell2", 1), ("cell4", 1))


@dataclass(frozen=True, kw_only=True)
class AmoebaNetD(Classifier):
    """Every cell's concatenation is a checkpoint, and so is the stem's output."""

    family: ClassVar[str] = "amoebanet-d"
    summary: ClassVar[str] = "AmoebaNet-D (L, D) of the torchgpipe benchmarks (Real et al. 2018)"

    layers: int = option(18, "L, normal cells; a multiple of 3", at_least=3)
    filters: int = option(256, "D, 4 times the channels of the stem; a multiple of 8", at_least=8)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, multiple in (("layers", 3), ("filters", 8)):
            if getattr(self, name) % multiple:
                rule = f"must be a multiple of {multiple}, not {getattr(self, name)}"
                raise RuleError(f"option {name!r}", rule)

    @property
    def name(self) -> str:
        return f"amoebanet-d-{self.layers}-{self.filters}"

    def logits(self, net: Net, images: Tensor) -> Tensor:
        channels = self.filters // 4
        with net.scope("stem1"):
            # [N, 112, 112, D/4] of 224 pixels
            x = net.block(conv, images, filters=channels, kernel=3, stride=2)
        states = (x, x)  # the outputs of the last two cells, the newer one first
        reduced = False  # whether the newer one is half the size of the older one
        for name, normals in STAGES:
            channels *= 2
            with net.scope(f"{name}_reduction"):
                states = step(net, states, channels, REDUCTION, reduced=reduced)
            reduced = True
            for index in range(normals * self.layers // 3):
                with net.scope(f"{name}_normal{index + 1}"):
                    states = step(net, states, channels, NORMAL, reduced=reduced)
                reduced = False
        with net.scope("classify"):
            x = net.global_average_pool(states[0])  # [N, 16 D]
            return net.dense(x, self.num_classes, name="logits")


def conv(
    net: Net,
    x: Tensor,
    filters: int,
    kernel: int | tuple[int, int],
    *,
    stride: int | tuple[int, int] = 1,
) -> Tensor:
    """Relu, convolution, batch norm."""
    return batch_norm(net, net.conv(net.relu(x), filters, kernel, stride=stride))


def batch_norm(net: Net, x: Tensor) -> Tensor:
    return net.batch_norm(x, decay=0.9, epsilon=1e-5)  # PyTorch's defaults


def factorized_reduce(net: Net, x: Tensor, filters: int) -> Tensor:
    """Halves an image with two strided 1x1 convolutions, the second one offset by a pixel."""
    x = net.relu(x)
    even = net.conv(x, filters // 2, 1, stride=2, name="even")
    rows, columns = (x.shape[axis] % 2 for axis in net.image_axes())
    shifted = net.crop(x, top=1, left=1)
    if rows or columns:  # the offset has one pixel too few
        shifted = net.pad(shifted, ((0, rows), (0, columns)))
    odd = net.conv(shifted, filters // 2, 1, stride=2, name="odd")
    return batch_norm(net, net.concat([even, odd]))


# The operations: (net, x, stride) -> a tensor with as many channels as x.


def none(net: Net, x: Tensor, stride: int) -> Tensor:
    return x if stride == 1 else factorized_reduce(net, x, net.channels(x))


def avg_pool_3x3(net: Net, x: Tensor, stride: int) -> Tensor:
    return net.avg_pool(x, 3, stride=stride)


def max_pool_3x3(net: Net, x: Tensor, stride: int) -> Tensor:
    return net.avg_pool(x, 3, stride=stride)  # sic, see above


def max_pool_2x2(net: Net, x: Tensor, stride: int) -> Tensor:
    return net.max_pool(x, 2, stride=stride)


def conv_1x1(net: Net, x: Tensor, stride: int) -> Tensor:
    return conv(net, x, net.channels(x), 1, stride=stride)


def conv_3x3(net: Net, x: Tensor, stride: int) -> Tensor:
    return bottleneck(net, x, {(3, 3): (stride, stride)})


def conv_1x7_7x1(net: Net, x: Tensor, stride: int) -> Tensor:
    return bottleneck(net, x, {(1, 7): (1, stride), (7, 1): (stride, 1)})


def bottleneck(net: Net, x: Tensor, kernels: dict[tuple[int, int], tuple[int, int]]) -> Tensor:
    """Convolutions, kernel -> stride, on a quarter of the channels."""
    channels = net.channels(x)
    with net.scope("in"):
        y = conv(net, x, channels // 4, 1)
    for (height, width), stride in kernels.items():
        with net.scope(f"{height}x{width}"):
            y = conv(net, y, channels // 4, (height, width), stride=stride)
    with net.scope("out"):
        return conv(net, y, channels, 1)


@dataclass(frozen=True)
class Genotype:
    """A cell as evolution found it.

    Attributes:
        operations: (state, operation) in pairs; the sum of a pair is the next state. States 0 and 1
            are the outputs of the last cell and of the one before.
        concat: the states that are the cell's output.
        stride: of the operations on states 0 and 1.
    """

    operations: tuple[tuple[int, Operation], ...]
    concat: tuple[int, ...]
    stride: int


NORMAL = Genotype(
    operations=(
        (1, conv_1x1), (1, max_pool_3x3),
        (1, none), (0, conv_1x7_7x1),
        (0, conv_1x1), (0, conv_1x7_7x1),
        (2, max_pool_3x3), (2, none),
        (1, avg_pool_3x3), (5, conv_1x1),
    ),
    concat=(0, 3, 4, 6),
    stride=1,
)  # fmt: skip
REDUCTION = Genotype(
    operations=(
        (0, max_pool_2x2), (0, max_pool_3x3),
        (2, none), (1, conv_3x3),
        (2, conv_1x7_7x1), (2, max_pool_3x3),
        (3, none), (1, max_pool_2x2),
        (2, avg_pool_3x3), (3, conv_1x1),
    ),
    concat=(4, 5, 6),
    stride=2,
)  # fmt: skip


def step(
    net: Net, states: tuple[Tensor, Tensor], channels: int, genotype: Genotype, *, reduced: bool
) -> tuple[Tensor, Tensor]:
    """From cell to cell: (last output, the one before) -> (new output, last output)."""
    made = net.block(cell, *states, channels=channels, genotype=genotype, reduced=reduced)
    return made, states[0]


def cell(
    net: Net, last: Tensor, before: Tensor, *, channels: int, genotype: Genotype, reduced: bool
) -> Tensor:
    """One cell: the outputs of the last one and the one before -> its own.

    Args:
        channels: of every state within. The output has len(concat) times as many.
        reduced: the last cell was a reduction, so its output is half the size of the one before.
    """
    with net.scope("reduce1"):
        first = conv(net, last, channels, 1)
    with net.scope("reduce2"):
        if reduced:
            before = factorized_reduce(net, before, channels)
        elif net.channels(before) != channels:
            before = conv(net, before, channels, 1)
    inner = [first, before]
    steps = genotype.operations
    for index, pair in enumerate(zip(steps[::2], steps[1::2], strict=True), start=2):
        results = []
        for side, (state, operation) in zip("ab", pair, strict=True):
            stride = genotype.stride if state < 2 else 1
            with net.scope(f"state{index}{side}_{operation.__name__}"):
                results.append(operation(net, inner[state], stride))
        inner.append(results[0] + results[1])
    return net.concat([inner[each] for each in genotype.concat])
