"""Inception-v4 (Szegedy et al. 2016, arXiv 1602.07261), with the names of tf-slim's version.

Unless told, without the auxiliary classifier, and batch norm has a trainable scale, as in Cadene's
and timm's ports (tf-slim's has none), so the parameter count is theirs. Decay 0.9997, epsilon 0.001
and dropout 0.2 are tf-slim's (inception_utils.inception_arg_scope).

tf-slim's own graph is nearer with `batch_norm=inference` (what its is_training=False builds: a
product with constants and a sum, of which only the offset is trained), `head=pool` (the features
are pooled and flattened) and `auxiliary`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

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
            x = block(net, f"Mixed_5{letter}", block_a, x)  # [N, 35, 35, 384]
        x = block(net, "Mixed_6a", reduction_a, x)  # [N, 17, 17, 1024]
        for letter in "bcdefgh":
            x = block(net, f"Mixed_6{letter}", block_b, x)  # [N, 17, 17, 1024]
        aside = x
        x = block(net, "Mixed_7a", reduction_b, x)  # [N, 8, 8, 1536]
        for letter in "bcd":
            x = block(net, f"Mixed_7{letter}", block_c, x)  # [N, 8, 8, 1536]
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
    x = block(net, "Mixed_3a", mixed_3a, x)  # [N, 73, 73, 160]
    x = block(net, "Mixed_4a", mixed_4a, x)  # [N, 71, 71, 192]
    return block(net, "Mixed_5a", mixed_5a, x)  # [N, 35, 35, 384]


def block(net: Net, name: str, branches, x: Tensor) -> Tensor:
    """Concatenates the channels of the branches; the result is a checkpoint."""
    with net.scope(name):
        return net.block(lambda net, x: net.concat(branches(net, x)), x)


def mixed_3a(net: Net, x: Tensor) -> list[Tensor]:
    with net.scope("Branch_0"):
        b0 = net.max_pool(x, 3, stride=2, padding="VALID")
    with net.scope("Branch_1"):
        b1 = conv(net, x, 96, 3, "Conv2d_0a_3x3", stride=2, padding="VALID")
    return [b0, b1]


def mixed_4a(net: Net, x: Tensor) -> list[Tensor]:
    with net.scope("Branch_0"):
        b0 = conv(net, x, 64, 1, "Conv2d_0a_1x1")
        b0 = conv(net, b0, 96, 3, "Conv2d_1a_3x3", padding="VALID")
    with net.scope("Branch_1"):
        b1 = conv(net, x, 64, 1, "Conv2d_0a_1x1")
        b1 = conv(net, b1, 64, (1, 7), "Conv2d_0b_1x7")
        b1 = conv(net, b1, 64, (7, 1), "Conv2d_0c_7x1")
        b1 = conv(net, b1, 96, 3, "Conv2d_1a_3x3", padding="VALID")
    return [b0, b1]


def mixed_5a(net: Net, x: Tensor) -> list[Tensor]:
    with net.scope("Branch_0"):
        b0 = conv(net, x, 192, 3, "Conv2d_1a_3x3", stride=2, padding="VALID")
    with net.scope("Branch_1"):
        b1 = net.max_pool(x, 3, stride=2, padding="VALID")
    return [b0, b1]


def block_a(net: Net, x: Tensor) -> list[Tensor]:
    """The paper's figure 4: [N, 35, 35, 384] -> 4 x [N, 35, 35, 96]."""
    with net.scope("Branch_0"):
        b0 = conv(net, x, 96, 1, "Conv2d_0a_1x1")
    with net.scope("Branch_1"):
        b1 = conv(net, x, 64, 1, "Conv2d_0a_1x1")
        b1 = conv(net, b1, 96, 3, "Conv2d_0b_3x3")
    with net.scope("Branch_2"):
        b2 = conv(net, x, 64, 1, "Conv2d_0a_1x1")
        b2 = conv(net, b2, 96, 3, "Conv2d_0b_3x3")
        b2 = conv(net, b2, 96, 3, "Conv2d_0c_3x3")
    with net.scope("Branch_3"):
        b3 = net.avg_pool(x, 3)
        b3 = conv(net, b3, 96, 1, "Conv2d_0b_1x1")
    return [b0, b1, b2, b3]


def reduction_a(net: Net, x: Tensor) -> list[Tensor]:
    """Figure 7: [N, 35, 35, 384] -> [N, 17, 17, 384 + 256 + 384]."""
    with net.scope("Branch_0"):
        b0 = conv(net, x, 384, 3, "Conv2d_1a_3x3", stride=2, padding="VALID")
    with net.scope("Branch_1"):
        b1 = conv(net, x, 192, 1, "Conv2d_0a_1x1")
        b1 = conv(net, b1, 224, 3, "Conv2d_0b_3x3")
        b1 = conv(net, b1, 256, 3, "Conv2d_1a_3x3", stride=2, padding="VALID")
    with net.scope("Branch_2"):
        b2 = net.max_pool(x, 3, stride=2, padding="VALID")
    return [b0, b1, b2]


def block_b(net: Net, x: Tensor) -> list[Tensor]:
    """Figure 5: [N, 17, 17, 1024] -> [N, 17, 17, 384 + 256 + 256 + 128]."""
    with net.scope("Branch_0"):
        b0 = conv(net, x, 384, 1, "Conv2d_0a_1x1")
    with net.scope("Branch_1"):
        b1 = conv(net, x, 192, 1, "Conv2d_0a_1x1")
        b1 = conv(net, b1, 224, (1, 7), "Conv2d_0b_1x7")
        b1 = conv(net, b1, 256, (7, 1), "Conv2d_0c_7x1")
    with net.scope("Branch_2"):
        b2 = conv(net, x, 192, 1, "Conv2d_0a_1x1")
        b2 = conv(net, b2, 192, (7, 1), "Conv2d_0b_7x1")
        b2 = conv(net, b2, 224, (1, 7), "Conv2d_0c_1x7")
        b2 = conv(net, b2, 224, (7, 1), "Conv2d_0d_7x1")
        b2 = conv(net, b2, 256, (1, 7), "Conv2d_0e_1x7")
    with net.scope("Branch_3"):
        b3 = net.avg_pool(x, 3)
        b3 = conv(net, b3, 128, 1, "Conv2d_0b_1x1")
    return [b0, b1, b2, b3]


def reduction_b(net: Net, x: Tensor) -> list[Tensor]:
    """Figure 8: [N, 17, 17, 1024] -> [N, 8, 8, 192 + 320 + 1024]."""
    with net.scope("Branch_0"):
        b0 = conv(net, x, 192, 1, "Conv2d_0a_1x1")
        b0 = conv(net, b0, 192, 3, "Conv2d_1a_3x3", stride=2, padding="VALID")
    with net.scope("Branch_1"):
        b1 = conv(net, x, 256, 1, "Conv2d_0a_1x1")
        b1 = conv(net, b1, 256, (1, 7), "Conv2d_0b_1x7")
        b1 = conv(net, b1, 320, (7, 1), "Conv2d_0c_7x1")
        b1 = conv(net, b1, 320, 3, "Conv2d_1a_3x3", stride=2, padding="VALID")
    with net.scope("Branch_2"):
        b2 = net.max_pool(x, 3, stride=2, padding="VALID")
    return [b0, b1, b2]


def block_c(net: Net, x: Tensor) -> list[Tensor]:
    """Figure 6: [N, 8, 8, 1536] -> [N, 8, 8, 256 + 512 + 512 + 256]."""
    with net.scope("Branch_0"):
        b0 = conv(net, x, 256, 1, "Conv2d_0a_1x1")
    with net.scope("Branch_1"):
        b1 = conv(net, x, 384, 1, "Conv2d_0a_1x1")
        b1a = conv(net, b1, 256, (1, 3), "Conv2d_0b_1x3")
        b1b = conv(net, b1, 256, (3, 1), "Conv2d_0c_3x1")
        b1 = net.concat([b1a, b1b])
    with net.scope("Branch_2"):
        b2 = conv(net, x, 384, 1, "Conv2d_0a_1x1")
        b2 = conv(net, b2, 448, (3, 1), "Conv2d_0b_3x1")
        b2 = conv(net, b2, 512, (1, 3), "Conv2d_0c_1x3")
        b2a = conv(net, b2, 256, (1, 3), "Conv2d_0d_1x3")
        b2b = conv(net, b2, 256, (3, 1), "Conv2d_0e_3x1")
        b2 = net.concat([b2a, b2b])
    with net.scope("Branch_3"):
        b3 = net.avg_pool(x, 3)
        b3 = conv(net, b3, 256, 1, "Conv2d_0b_1x1")
    return [b0, b1, b2, b3]
