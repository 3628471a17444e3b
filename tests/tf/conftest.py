"""TensorFlow as the worker sets it up."""

from collections.abc import Iterator

import pytest
import tensorflow as tf

from tests.tf.small_models import small


@pytest.fixture(scope="session", autouse=True)
def _no_meta_optimizer():
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(scope="module")
def small_models() -> Iterator[None]:
    with small():
        yield
