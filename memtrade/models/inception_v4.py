"""Inception-v4 (Szegedy et al. 2016, arXiv 1602.07261), with the names of tf-slim's version.

Unless told, without the auxiliary classifier, and batch norm has a trainable scale, as in Cadene's
and timm's ports (tf-slim's has none), so the parameter count is theirs. Decay 0.9997, epsilon 0.001
and dropout 0.2 are tf-slim's (inception_utils.inception_arg_scope).

tf-slim's own graph is nearer with `batch_norm=inference` (what its is_training=False builds: a
product with constants and a sum, of which only the offset is trained), `head=pool` (the features
are pooled and flattened) and `auxiliary`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar

from memtrade.models.base import Classifier, Net, Tensor
from memtrade.options import option

# What the auxiliary classifier's error counts, in tf-slim's training script.
AUXILIARY = 0.4


@dataclass(frozen=True, kw_only=True)
class InceptionV4(Classifier):
    """The stem's outputs and every Mixed_* block's concatenation are checkpoints."""

    family: ClassVar[str] = "inception-v4"
    summary: ClassVar[str] = "Inception-v4 (Szegedy et al. 2016)"

    image_size: int = option(299, "height and width of the images in pixels", at_least=75)
    dropout: float = option(0.2, "rate of dropout before the logits", at_least=0.0, below=1.0)
    batch_norm: str = option(
        "training", "by the batch's averages, or by lasting ones", choices=("training", "inference")
    )
    head: str = option(
        "mean", "how features are averaged: in one op, or pooled and flattened, as in tf-slim",
        choices=("mean", "pool"),
    )  # fmt: skip
    auxiliary: bool = option(False, "tf-slim's second classifier, 0.4 of whose error counts")

    def logits(self, net: Net, images: Tensor) -> Tensor:
        return self.heads(net, images)[0][0]

    def heads(self, net: Net, images: Tensor) -> list[tuple[Tensor, float]]:
        net.training = self.batch_norm == "training"
        x = stem(net, images)  # [N, 35, 35, 384] of 299 pixels
        for letter in "bcde":
            x = block(net, f"Mixed_5{letter}", BLOCK_A, x)  # [N, 35, 35, 384]
        x = block(net, "Mixed_6a", REDUCTION_A, x)  # [N, 17, 17, 1024]
        for letter in "bcdefgh":
            x = block(net, f"Mixed_6{letter}", BLOCK_B, x)  # [N, 17, 17, 1024]
        aside = x
        x = block(net, "Mixed_7a", REDUCTION_B, x)  # [N, 8, 8, 1536]
        for letter in "bcd":
            x = block(net, f"Mixed_7{letter}", BLOCK_C, x)  # [N, 8, 8, 1536]
        side = [(self._auxiliary_logits(net, aside), AUXILIARY)] if self.auxiliary else []
        with net.scope("Logits"):
            if self.head == "pool":
                x = net.dropout(net.avg_pool(x, x.shape[2], padding="VALID"), self.dropout)
                with net.scope("PreLogitsFlatten"):
                    x = net.checkpoint(net.reshape(x, (self.batch_size, -1)))  # [N, 1536]
            else:
                x = net.global_average_pool(x)  # [N, 1536]
                x = net.checkpoint(net.dropout(x, self.dropout))
            return [(net.dense(x, self.num_classes, name="Logits"), 1.0), *side]

    def _auxiliary_logits(self, net: Net, x: Tensor) -> Tensor:
        """[N, 17, 17, 1024] -> [N, num_classes]."""
        with net.scope("AuxLogits"):
            x = net.avg_pool(x, min(5, x.shape[2]), stride=3, padding="VALID")  # [N, 5, 5, 1024]
            x = conv(net, x, 128, 1, "Conv2d_1b_1x1")
            x = conv(net, x, 768, x.shape[2], "Conv2d_2a", padding="VALID")  # [N, 1, 1, 768]
            x = net.reshape(x, (self.batch_size, -1))
            return net.dense(x, self.num_classes, name="Aux_logits")


def conv(
    net: Net,
    x: Tensor,
    filters: int,
    kernel: int | tuple[int, int],
    name: str,
    *,
    stride: int = 1,
    padding: str = "SAME",
) -> Tensor:
    """tf-slim's conv2d: convolution, batch norm, relu."""
    with net.scope(name):
        x = net.conv(x, filters, kernel, stride=stride, padding=padding)
        return net.relu(net.batch_norm(x, decay=0.9997, epsilon=0.001))


def stem(net: Net, x: Tensor) -> Tensor:
    """[N, 299, 299, 3] -> [N, 35, 35, 384]."""
    single = partial(net.block, conv, kernel=3)
    # [N, 149, 149, 32], [N, 147, 147, 32], [N, 147, 147, 64]
    x = single(x, filters=32, name="Conv2d_1a_3x3", stride=2, padding="VALID")
    x = single(x, filters=32, name="Conv2d_2a_3x3", padding="VALID")
    x = single(x, filters=64, name="Conv2d_2b_3x3")
    x = block(net, "Mixed_3a", MIXED_3A, x)  # [N, 73, 73, 160]
    x = block(net, "Mixed_4a", MIXED_4A, x)  # [N, 71, 71, 192]
    return block(net, "Mixed_5a", MIXED_5A, x)  # [N, 35, 35, 384]


Layer = Callable[[Net, Tensor], Tensor]
Branches = Sequence[Sequence[Layer]]


def block(net: Net, name: str, branches: Branches, x: Tensor) -> Tensor:
    """Concatenates the channels of the branches; the result is a checkpoint."""
    with net.scope(name):
        return net.block(_concatenated, x, branches=branches)


def _concatenated(net: Net, x: Tensor, branches: Branches) -> Tensor:
    made = []
    for number, layers in enumerate(branches):
        with net.scope(f"Branch_{number}"):
            made.append(reduce(lambda y, layer: layer(net, y), layers, x))
    return net.concat(made)


def layer(filters: int, kernel: int | tuple[int, int], name: str, **settings: Any) -> Layer:
    return lambda net, x: conv(net, x, filters, kernel, f"Conv2d_{name}", **settings)


def fork(*layers: Layer) -> Layer:
    """All of them on the same input, concatenated."""
    return lambda net, x: net.concat([each(net, x) for each in layers])


def averaged(net: Net, x: Tensor) -> Tensor:
    return net.avg_pool(x, 3)


def halved(net: Net, x: Tensor) -> Tensor:
    return net.max_pool(x, 3, stride=2, padding="VALID")


unpadded = partial(layer, padding="VALID")
strided = partial(unpadded, stride=2)

MIXED_3A: Branches = (
    [halved],
    [strided(96, 3, "0a_3x3")],
)
MIXED_4A: Branches = (
    [layer(64, 1, "0a_1x1"), unpadded(96, 3, "1a_3x3")],
    [layer(64, 1, "0a_1x1"), layer(64, (1, 7), "0b_1x7"), layer(64, (7, 1), "0c_7x1"),
     unpadded(96, 3, "1a_3x3")],
)  # fmt: skip
MIXED_5A: Branches = (
    [strided(192, 3, "1a_3x3")],
    [halved],
)
# The paper's figure 4: [N, 35, 35, 384] -> 4 x [N, 35, 35, 96].
BLOCK_A: Branches = (
    [layer(96, 1, "0a_1x1")],
    [layer(64, 1, "0a_1x1"), layer(96, 3, "0b_3x3")],
    [layer(64, 1, "0a_1x1"), layer(96, 3, "0b_3x3"), layer(96, 3, "0c_3x3")],
    [averaged, layer(96, 1, "0b_1x1")],
)
# Figure 7: [N, 35, 35, 384] -> [N, 17, 17, 384 + 256 + 384].
REDUCTION_A: Branches = (
    [strided(384, 3, "1a_3x3")],
    [layer(192, 1, "0a_1x1"), layer(224, 3, "0b_3x3"), strided(256, 3, "1a_3x3")],
    [halved],
)
# Figure 5: [N, 17, 17, 1024] -> [N, 17, 17, 384 + 256 + 256 + 128].
BLOCK_B: Branches = (
    [layer(384, 1, "0a_1x1")],
    [layer(192, 1, "0a_1x1"), layer(224, (1, 7), "0b_1x7"), layer(256, (7, 1), "0c_7x1")],
    [layer(192, 1, "0a_1x1"), layer(192, (7, 1), "0b_7x1"), layer(224, (1, 7), "0c_1x7"),
     layer(224, (7, 1), "0d_7x1"), layer(256, (1, 7), "0e_1x7")],
    [averaged, layer(128, 1, "0b_1x1")],
)  # fmt: skip
# Figure 8: [N, 17, 17, 1024] -> [N, 8, 8, 192 + 320 + 1024].
REDUCTION_B: Branches = (
    [layer(192, 1, "0a_1x1"), strided(192, 3, "1a_3x3")],
    [layer(256, 1, "0a_1x1"), layer(256, (1, 7), "0b_1x7"), layer(320, (7, 1), "0c_7x1"),
     strided(320, 3, "1a_3x3")],
    [halved],
)  # fmt: skip
# Figure 6: [N, 8, 8, 1536] -> [N, 8, 8, 256 + 512 + 512 + 256].
BLOCK_C: Branches = (
    [layer(256, 1, "0a_1x1")],
    [layer(384, 1, "0a_1x1"),
     fork(layer(256, (1, 3), "0b_1x3"), layer(256, (3, 1), "0c_3x1"))],
    [layer(384, 1, "0a_1x1"), layer(448, (3, 1), "0b_3x1"), layer(512, (1, 3), "0c_1x3"),
     fork(layer(256, (1, 3), "0d_1x3"), layer(256, (3, 1), "0e_3x1"))],
    [averaged, layer(256, 1, "0b_1x1")],
)  # fmt: skip
