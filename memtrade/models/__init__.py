"""The built-in models: what they are called and what can be set.

A new model is one file, with a dataclass that extends `DrawnModel`, and its entry in `MODELS`.
Importing this package imports no TensorFlow.

    >>> make_model("resnet", {"layers": "152", "batch_size": 8}).name
    'resnet-152'
    >>> make_model("keras/efficientnetb3").image_size
    300
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.models.amoebanet_d import AmoebaNetD
from memtrade.models.base import DrawnModel, Input, Model
from memtrade.models.gpt2 import Gpt2
from memtrade.models.inception_v4 import InceptionV4
from memtrade.models.keras import KerasApplication
from memtrade.models.resnet import ResNet
from memtrade.models.target import OwnStep
from memtrade.models.unet import UNet
from memtrade.options import OPTIMIZERS, Option, Value, make_from_words, options_of

__all__ = [
    "MODELS", "OPTIMIZERS", "DrawnModel", "Input", "Model", "Option", "make_model", "options_of"
]  # fmt: skip

# Of one tensor of a batch. What a model makes of it is up to some thousand times larger, and
# TensorFlow counts to 2^63.
_MOST_VALUES = 1 << 46

MODELS: dict[str, type[Model]] = {
    model.family: model
    for model in (ResNet, InceptionV4, Gpt2, UNet, AmoebaNetD, KerasApplication, OwnStep)
}


def make_model(name: str, options_given: Mapping[str, Value] | None = None) -> Model:
    """A model by its registered name, or "family/variant" where a family has variants. Options
    may be text, as they come from a command line.

    Raises:
        UnknownNameError: no such model, or the model has no such option.
        MemtradeError: a value of the wrong type or out of bounds.
    """
    family, slash, variant = name.partition("/")
    family = family.replace("_", "-")
    if family not in MODELS:
        raise UnknownNameError("model", name, MODELS)
    options = MODELS[family].named(variant) if slash else {}
    model = make_from_words(MODELS[family], options | dict(options_given or {}), of=family)
    for label, given in model.inputs().items():
        if math.prod(given.shape) > _MOST_VALUES:
            shape = " × ".join(f"{size:,}" for size in given.shape)
            raise MemtradeError(
                f"the batch's {label} of {shape} are more than {_MOST_VALUES:,} values, which no "
                "device holds: give a smaller batch or smaller examples"
            )
    return model
