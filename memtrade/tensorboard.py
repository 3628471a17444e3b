"""A Keras callback that writes memory and the plan where TensorBoard shows them."""

import logging
from typing import Any

import keras
import tensorflow as tf

from memtrade.errors import MemtradeError
from memtrade.tf.process import counted

_LOG = logging.getLogger("memtrade")
_MB = 1e6


class MemoryBoard(keras.callbacks.Callback):
    """Writes the peak and what is in use after each epoch, and the plan that the model trains by.

    Scalars `memory/peak MB`, `memory/in use MB` and, of the plan, `memory/predicted peak MB` and
    `memory/predicted peak of the original MB`; the text `memory/plan`. What is measured is of the
    device's allocator: a GPU's, or an arena; TensorFlow's allocator for the CPU counts nothing.

    >>> import numpy as np, tempfile
    >>> model = keras.Sequential([keras.Input([8]), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> board = MemoryBoard(tempfile.mkdtemp())
    >>> fitted = model.fit(np.ones([8, 8]), np.ones([8]), callbacks=[board], verbose=0)

    Args:
        log_dir: the folder that TensorBoard shows, as `keras.callbacks.TensorBoard` takes it.
        device: "gpu:0" or "cpu:0"; by default the first GPU, if TensorFlow sees one.

    Raises:
        MemtradeError: the folder cannot be made.
    """

    def __init__(self, log_dir: str, *, device: str | None = None):
        super().__init__()
        try:
            tf.io.gfile.makedirs(log_dir)
        except (TypeError, tf.errors.OpError) as error:
            raise MemtradeError(
                f"log_dir is a folder that can be written to, not {log_dir!r}: name another"
            ) from error
        self.log_dir, self._device = log_dir, device
        self._heard = _Heard()
        self._writer: Any = None
        self._level = logging.NOTSET

    def on_train_begin(self, logs: Any = None) -> None:
        if self._writer is not None:  # a training before did not come to its end
            self.on_train_end()
        self._writer = tf.summary.create_file_writer(self.log_dir)
        gpus = tf.config.list_logical_devices("GPU")
        self._device = (self._device or ("gpu:0" if gpus else "cpu:0")).upper()
        self._level = _LOG.level
        _LOG.addHandler(self._heard)  # plans are made when a batch of a new size comes
        if _LOG.getEffectiveLevel() > logging.INFO:
            _LOG.setLevel(logging.INFO)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        count = counted(str(self._device))
        with self._writer.as_default():
            if count is not None:
                _scalar("memory/peak MB", count.most_bytes, epoch)
                _scalar("memory/in use MB", count.in_use_bytes, epoch)
            for said in self._heard.take():
                _write("text", "memory/plan", tf.constant(said.getMessage()), epoch)
                _scalar("memory/predicted peak MB", vars(said)["peak_bytes"], epoch)
                original_bytes = vars(said)["original_bytes"]
                _scalar("memory/predicted peak of the original MB", original_bytes, epoch)

    def on_train_end(self, logs: Any = None) -> None:
        _LOG.removeHandler(self._heard)
        _LOG.setLevel(self._level)
        self._writer.close()
        self._writer = None


class _Heard(logging.Handler):
    """Keeps what `memtrade.apply` logs of the plans that it makes."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "original_bytes"):
            self.records.append(record)

    def take(self) -> list[logging.LogRecord]:
        found, self.records = self.records, []
        return found


def _scalar(tag: str, size_bytes: int, epoch: int) -> None:
    _write("scalars", tag, tf.constant(size_bytes / _MB, tf.float32), epoch)


# `tf.summary.scalar` and `tf.summary.text` are TensorBoard's own code; what they write can be
# written where it is not installed.
def _write(plugin: str, tag: str, value: tf.Tensor, epoch: int) -> None:
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    tf.summary.write(tag, value, step=epoch, metadata=metadata)
