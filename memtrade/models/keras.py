"""The models of keras.applications, with random weights: what Keras users start from.

Keras builds them, in `memtrade.tf.keras_models`; here are only their names and sizes, so that a
process without TensorFlow can list and check them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memtrade.errors import UnknownNameError
from memtrade.models.base import LabelledImages
from memtrade.options import Value, option

# The functions of keras.applications (Keras 3.15), each with the image size that Keras gives it
# where it is built with include_top and no input shape. tests/tf/test_keras_models.py compares.
APPLICATIONS = {
    "ConvNeXtBase": 224, "ConvNeXtLarge": 224, "ConvNeXtSmall": 224, "ConvNeXtTiny": 224,
    "ConvNeXtXLarge": 224,
    "DenseNet121": 224, "DenseNet169": 224, "DenseNet201": 224,
    "EfficientNetB0": 224, "EfficientNetB1": 240, "EfficientNetB2": 260, "EfficientNetB3": 300,
    "EfficientNetB4": 380, "EfficientNetB5": 456, "EfficientNetB6": 528, "EfficientNetB7": 600,
    "EfficientNetV2B0": 224, "EfficientNetV2B1": 240, "EfficientNetV2B2": 260,
    "EfficientNetV2B3": 300, "EfficientNetV2L": 480, "EfficientNetV2M": 480,
    "EfficientNetV2S": 384,
    "InceptionResNetV2": 299, "InceptionV3": 299,
    "MobileNet": 224, "MobileNetV2": 224, "MobileNetV3Large": 224, "MobileNetV3Small": 224,
    "NASNetLarge": 331, "NASNetMobile": 224,
    "ResNet101": 224, "ResNet101V2": 224, "ResNet152": 224, "ResNet152V2": 224,
    "ResNet50": 224, "ResNet50V2": 224,
    "VGG16": 224, "VGG19": 224,
    "Xception": 299,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KerasApplication(LabelledImages):
    """An image classifier out of keras.applications, trained as Keras users do."""

    family: ClassVar[str] = "keras"
    summary: ClassVar[str] = "any of keras.applications: keras/EfficientNetB0, keras/DenseNet121"
    variant_option: ClassVar[str] = "application"

    application: str = option("ResNet50V2", "the function's name", choices=tuple(APPLICATIONS))
    data_format: str = option("NHWC", "order of the axes of images", choices=("NHWC",))

    @classmethod
    def named(cls, variant: str) -> dict[str, Value]:
        """The application, whichever way its case is written, at its own image size."""
        names = {name.lower(): name for name in APPLICATIONS}
        if variant.lower() not in names:
            raise UnknownNameError("Keras application", variant, APPLICATIONS)
        name = names[variant.lower()]
        return {"application": name, "image_size": APPLICATIONS[name]}

    @property
    def name(self) -> str:
        return f"keras/{self.application.lower()}"
