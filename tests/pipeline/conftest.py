"""Small models, traced: TensorFlow is imported only where a test asks for one."""

import pytest

from memtrade.graph import StepGraph
from memtrade.models import make_model


def traced(family: str, optimizer: str, **options) -> StepGraph:
    import tensorflow as tf

    from memtrade.tf.build import make_step
    from memtrade.tf.extract import trace

    with tf.Graph().as_default():
        return trace(make_step(make_model(family, options), optimizer=optimizer)).graph


@pytest.fixture(scope="session")
def small_gpt2() -> StepGraph:
    return traced(
        "gpt2", "momentum", layers=4, width=32, heads=2, positions=16, vocabulary=50, batch_size=2
    )


@pytest.fixture(scope="session")
def tied_gpt2() -> StepGraph:
    return traced(
        "gpt2", "adam", layers=4, width=32, heads=2, positions=16, vocabulary=50, batch_size=2,
        tied=True, dropout=0.1,
    )  # fmt: skip


@pytest.fixture(scope="session")
def small_unet() -> StepGraph:
    return traced("unet", "sgd", num_convs=2, base_channels=4, image_size=64, batch_size=2)


@pytest.fixture(scope="session")
def small_amoebanet() -> StepGraph:
    return traced(
        "amoebanet-d", "momentum", layers=3, filters=32, image_size=64, num_classes=10,
        batch_size=2,
    )  # fmt: skip
