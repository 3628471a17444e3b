"""What all models have in common. No TensorFlow here: models draw themselves with a given toolkit.

The toolkit of a `DrawnModel` is `memtrade.tf.layers.Net`. Models call its layers, use the
operators of the tensors that it returns (`x + y`, `x[:, 1:]`), and never import TensorFlow: so
their names, options and shapes can be listed by a process that must stay free of it.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Literal

from memtrade.errors import UnknownNameError
from memtrade.options import Checked, Value, option

Tensor = Any  # tf.Tensor
Net = Any  # memtrade.tf.layers.Net
DataFormat = Literal["NHWC", "NCHW"]


@dataclasses.dataclass(frozen=True)
class Input:
    """One tensor of the batch.

    Attributes:
        shape: static.
        dtype: "float32" or "int64".
        below: the synthetic values are drawn uniformly from [0, below). Whole numbers need it;
            a float without it is drawn from the normal distribution.
    """

    shape: tuple[int, ...]
    dtype: Literal["float32", "int64"] = "float32"
    below: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Checked, abc.ABC):
    """A model's configuration.

    A subclass declares its options as fields made by `option`, gives `family`, `name` and
    `inputs`, and is entered in `memtrade.models.MODELS`.
    """

    family: ClassVar[str]  # the name under which the model is registered
    summary: ClassVar[str]  # one line, for lists
    variant_option: ClassVar[str] = ""  # the option that `named` sets and `name` shows, if any

    batch_size: int = option(32, "examples per step")
    seed: int = option(0, "of the initial weights, the synthetic batch and dropout", at_least=0)

    @property
    def name(self) -> str:
        """What records and tables call this model: the family and its size ("resnet-50")."""
        return self.family

    @classmethod
    def named(cls, variant: str) -> dict[str, Value]:
        """The options that a name such as "keras/VGG16" sets; `variant` is what follows the slash.

        Raises:
            UnknownNameError: there is no such variant.
        """
        raise UnknownNameError("model", f"{cls.family}/{variant}", [cls.family])

    @property
    def layout(self) -> DataFormat:
        """The order of the axes of images."""
        return "NHWC"

    @abc.abstractmethod
    def inputs(self) -> dict[str, Input]:
        """The tensors of a batch by name, in the order of the step's arguments."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnModel(Model):
    """A model that draws its forward pass. Its inputs are the arguments of `loss`."""

    @abc.abstractmethod
    def loss(self, net: Net, **inputs: Tensor) -> Tensor:
        """Draws the forward pass. Returns the scalar that the step minimises."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageModel(Model):
    """A model that reads square RGB images."""

    image_size: int = option(224, "height and width of the images in pixels")
    data_format: str = option("NHWC", "order of the axes of images", choices=("NHWC", "NCHW"))

    @property
    def layout(self) -> DataFormat:
        return "NCHW" if self.data_format == "NCHW" else "NHWC"

    def image(self, channels: int) -> tuple[int, int, int, int]:
        """The shape of a batch of images: [N, H, W, channels], or [N, channels, H, W]."""
        n, size = self.batch_size, self.image_size
        return (n, channels, size, size) if self.layout == "NCHW" else (n, size, size, channels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledImages(ImageModel):
    """A model that sorts images into classes."""

    num_classes: int = option(1000, "classes to tell apart", at_least=2)

    def inputs(self) -> dict[str, Input]:
        return {
            "images": Input(self.image(3)),
            "labels": Input((self.batch_size,), "int64", below=self.num_classes),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier(LabelledImages, DrawnModel):
    """A drawn classifier, trained with softmax cross-entropy."""

    weight_decay: float = option(
        0.0, "L2 penalty: this much of half the sum of all weights' squares", at_least=0.0
    )
    draw_batch: bool = option(
        False, "the step draws its images and labels itself, as benchmarks without data do"
    )

    @abc.abstractmethod
    def logits(self, net: Net, images: Tensor) -> Tensor:
        """[N, H, W, 3] or [N, 3, H, W] -> [N, num_classes]."""

    def heads(self, net: Net, images: Tensor) -> list[tuple[Tensor, float]]:
        """The logits of each classifier in the net, and how much its error counts."""
        return [(self.logits(net, images), 1.0)]

    def inputs(self) -> dict[str, Input]:
        return {} if self.draw_batch else super().inputs()

    def loss(self, net: Net, *, images: Tensor = None, labels: Tensor = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # the names are those of inputs()
        if self.draw_batch:
            size = self.image_size
            drawn = net.uniform((self.batch_size, size, size, 3), name="images")
            images = net.transpose(drawn, (0, 3, 1, 2)) if self.layout == "NCHW" else drawn
            labels = net.uniform((self.batch_size, self.num_classes), name="labels")
        heads = self.heads(net, images)
        penalty = net.weight_penalty(self.weight_decay) if self.weight_decay else None
        # Last, because the gradients descend from here.
        error = None
        for logits, weight in heads:
            mean = net.mean(net.cross_entropy(logits, labels))
            mean = mean if weight == 1 else net.scaled(mean, weight)
            error = mean if error is None else error + mean
        return error if penalty is None else penalty + error
