"""Whose buffer a kernel takes, by the table and as the allocator's log shows it."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from memtrade.facts import reuse
from memtrade.facts.surroundings import ONEDNN
from memtrade.measure.environment import child_environment
from memtrade.measure.learning import LOGGING
from memtrade.measure.protocol import TrialSpec
from memtrade.tf.kernel_log import Output, read_events
from tests.graphs import Builder


@pytest.mark.parametrize(("number", "taken"), [((), (0,)), ((1,), (0, 1))])
def test_the_buffer_of_a_number_does_not_become_that_of_a_tensor_of_one_element(
    number: tuple[int, ...], taken: tuple[int, ...]
) -> None:
    """Adam's rate, and the bias of a layer of one channel."""
    b = Builder()
    (x,), (rate,) = (b.op(name, "Placeholder", sizes=[4]) for name in ("x", "rate"))
    b.tensors[rate] = msgspec.structs.replace(b.tensors[rate], shape=number)
    (y,) = b.op("y", "Mul", [x, rate], sizes=[4])
    graph = b.build(inputs=[x, rate], outputs=[y], loss=y)
    assert reuse().positions(graph.ops[-1], graph, 0) == taken


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
