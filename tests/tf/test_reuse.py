"""Whose buffer a kernel takes, by the table and as the allocator's log shows it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from memtrade.facts import reuse
from memtrade.facts.surroundings import ONEDNN
from memtrade.measure.environment import child_environment
from memtrade.measure.learning import LOGGING
from memtrade.measure.protocol import TrialSpec
from memtrade.tf.kernel_log import Output, read_events


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_the_table_tells_each_input_whose_buffer_a_kernel_takes(onednn):
    """Each kernel ran once for each input that is like its output, with all others held."""
    spec = TrialSpec(model="resnet", strategy="original", memory_limit_bytes=512 << 20)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.tf.drive_reuse"],
        env=child_environment(spec) | LOGGING | {ONEDNN: onednn},
        stderr=subprocess.PIPE, text=True, errors="replace", timeout=120, check=True,
    )  # fmt: skip
    events = read_events(ran.stderr.splitlines())
    lies = {each.kernel: each.address for each in events if isinstance(each, Output)}
    takes: dict[str, tuple[int, ...]] = {}
    for name in lies:
        op_type, position, what = [*name.split("/"), "", ""][:3]
        if what == "run":
            taken = lies[name] == lies[f"{op_type}/{position}/in{position}"]
            takes[op_type] = takes.get(op_type, ()) + ((int(position),) if taken else ())
    told = {each: positions or (0, 1, 2) for each, positions in reuse().tried.items()}
    assert takes == told
