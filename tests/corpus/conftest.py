"""TensorFlow as the worker sets it up."""

import pytest
import tensorflow as tf


@pytest.fixture(scope="session", autouse=True)
def _no_meta_optimizer():
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
