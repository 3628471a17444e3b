"""Small versions of every built-in model: same ops and structure, seconds instead of minutes."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from memtrade.models import inception_v4, make_model, resnet
from memtrade.tf.build import make_step
from memtrade.tf.step import TrainStep

SMALL = {
    "resnet-18": ("resnet", {"layers": 18, "image_size": 32, "num_classes": 10, "batch_size": 4}),
    "resnet-18-v2": (
        "resnet",
        {"layers": 18, "version": 2, "weight_decay": 1e-3, "image_size": 32, "num_classes": 10,
         "batch_size": 4},
    ),
    "resnet-50": ("resnet", {"layers": 50, "image_size": 32, "num_classes": 10, "batch_size": 4}),
    "inception-v4": (
        "inception-v4",
        {"image_size": 75, "num_classes": 10, "batch_size": 4},
    ),
    "gpt2-dropout": (
        "gpt2",
        {"layers": 2, "width": 32, "heads": 2, "positions": 16, "vocabulary": 50,
         "batch_size": 4, "dropout": 0.1},
    ),
    "unet": ("unet", {"num_convs": 1, "base_channels": 4, "image_size": 64, "batch_size": 2}),
    "amoebanet-d": ("amoebanet-d", {"layers": 3, "filters": 32, "image_size": 64,
                                    "num_classes": 10, "batch_size": 2}),
}  # fmt: skip


def small_step(name: str, optimizer: str = "momentum") -> TrainStep:
    family, options = SMALL[name]
    return make_step(make_model(family, options), optimizer=optimizer)


# ResNet and Inception have no option for their width, and most of a small step goes into weights.
_NARROWER = 2


@contextlib.contextmanager
def narrow() -> Iterator[None]:
    """Within it, ResNet and Inception are drawn with half as many channels."""
    conv = inception_v4.conv

    def narrow_conv(net: Any, x: Any, filters: int, *args: Any, **settings: Any) -> Any:
        return conv(net, x, filters // _NARROWER, *args, **settings)

    widths = tuple(width // _NARROWER for width in resnet.WIDTHS)
    with (
        mock.patch.object(resnet, "WIDTHS", widths),
        mock.patch.object(inception_v4, "conv", narrow_conv),
    ):
        yield
