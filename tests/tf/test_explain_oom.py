"""`memtrade.explain_oom` where memory really runs out: in a process of its own, with an arena."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec
from tests.tf.run_out import LIMIT_BYTES

ROOT = Path(__file__).resolve().parents[2]


def test_a_batch_that_is_too_large_is_found_without_being_told_of_it() -> None:
    environment = child_environment(TrialSpec(memory_limit_bytes=LIMIT_BYTES), os.environ)
    done = subprocess.run(
        [sys.executable, "-m", "tests.tf.run_out"],
        # Where a kernel of oneDNN's runs out, TensorFlow 2.21 trips over what it did not get.
        env={**environment, "COLUMNS": "100", "TF_ENABLE_ONEDNN_OPTS": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    page = " ".join(done.stderr.split())
    assert "Out of memory: large, batch 40000, on arena" in page
    assert "the batch is too large" in page
    assert "of 40,000 examples would fit" in page
    assert re.search(r"who hidden_\d", page)
    assert "memtrade.keras.optimize(model, batch_size=40000, strategy=" in page
