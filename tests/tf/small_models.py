"""Small versions of every built-in model: same ops and structure, seconds instead of minutes."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from memtrade.models import amoebanet_d, inception_v4, make_model, resnet, unet
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


# What no option says. Most of a small step goes into weights, and most of its time into drawing
# blocks that are like the ones before them.
_NARROWER = 2
_REPEATED = {f"Mixed_{stage}{letter}" for stage in (5, 6, 7) for letter in "cdefgh"}


@contextlib.contextmanager
def shallow() -> Iterator[None]:
    """Within it, models are drawn with a block of each kind: ResNet-18 with four, ResNet-50 with
    four bottlenecks."""
    block = inception_v4.block

    def first_block(net: Any, name: str, branches: Any, x: Any) -> Any:
        return x if name in _REPEATED else block(net, name, branches, x)

    with (
        mock.patch.dict(resnet.BLOCKS, dict.fromkeys(resnet.BLOCKS, (1, 1, 1, 1))),
        mock.patch.object(inception_v4, "block", first_block),
        mock.patch.object(amoebanet_d, "STAGES", amoebanet_d.STAGES[:2]),
        mock.patch.object(unet, "DEPTH", 3),
    ):
        yield


@contextlib.contextmanager
def small() -> Iterator[None]:
    """Within it, they are shallow, and ResNet and Inception have half as many channels."""
    conv = inception_v4.conv

    def narrow_conv(net: Any, x: Any, filters: int, *args: Any, **settings: Any) -> Any:
        return conv(net, x, filters // _NARROWER, *args, **settings)

    widths = tuple(width // _NARROWER for width in resnet.WIDTHS)
    with (
        shallow(),
        mock.patch.object(resnet, "WIDTHS", widths),
        mock.patch.object(inception_v4, "conv", narrow_conv),
    ):
        yield
