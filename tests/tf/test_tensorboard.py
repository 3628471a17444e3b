# pyright: reportArgumentType=false
"""What the callback writes, read back as TensorBoard reads it."""

from __future__ import annotations

import logging
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from memtrade.errors import MemtradeError
from memtrade.keras import MemoryBoard, optimize
from memtrade.tf import process


def model_of() -> keras.Model:
    hidden = [keras.layers.Dense(64, "tanh") for _ in range(8)]
    model = keras.Sequential([keras.Input([64]), *hidden, keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def written(folder: Path) -> dict[tuple[str, int], tuple[str, object]]:
    """(tag, step) -> the plugin that shows it, and its value."""
    [path] = folder.glob("events.*")
    found = {}
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name
            found[value.tag, event.step] = (plugin, tf.make_ndarray(value.tensor).item())
    return found


def test_the_plan_and_its_peaks_are_written_once_and_memory_after_each_epoch(
    tmp_path: Path, monkeypatch
) -> None:
    counts = iter([process.Counted(2_000_000, 5_000_000), process.Counted(2_000_000, 6_000_000)])
    monkeypatch.setattr("memtrade.tensorboard.counted", lambda device: next(counts))
    level = logging.getLogger("memtrade").level
    model = optimize(model_of(), 512, strategy="checkpoints")
    x = np.ones([1024, 64], "float32")
    board = MemoryBoard(str(tmp_path))
    model.fit(x, x[:, :1], batch_size=512, epochs=2, verbose=0, callbacks=[board])
    found = written(tmp_path)
    assert found["memory/peak MB", 0] == ("scalars", 5.0)
    assert found["memory/peak MB", 1] == ("scalars", 6.0)
    assert found["memory/in use MB", 1] == ("scalars", 2.0)
    plugin, said = found["memory/plan", 0]
    assert plugin == "text"
    assert str(said).startswith("b'checkpoints of train_step: predicted peak")
    peaks = [found[f"memory/predicted peak{of} MB", 0][1] for of in ("", " of the original")]
    assert 0 < float(str(peaks[0])) < float(str(peaks[1]))
    assert ("memory/plan", 1) not in found
    assert logging.getLogger("memtrade").level == level


def test_where_nobody_counts_and_nothing_is_planned_nothing_is_written(tmp_path: Path) -> None:
    model, x = model_of(), np.ones([64, 64], "float32")
    model.fit(x, x[:, :1], verbose=0, callbacks=[MemoryBoard(str(tmp_path))])
    assert written(tmp_path) == {}


def test_what_is_no_folder_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "a_file.py").write_text("")
    for wrong in (None, 3, str(tmp_path / "a_file.py"), str(tmp_path / "a_file.py" / "x")):
        with pytest.raises(MemtradeError, match=r"log_dir is a folder .* not ") as refused:
            MemoryBoard(wrong)
        assert repr(wrong) in str(refused.value)
