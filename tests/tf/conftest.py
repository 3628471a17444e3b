"""TensorFlow as the worker sets it up, once for all tests of this folder."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf


@pytest.fixture(scope="session", autouse=True)
def _executor():
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
