"""A device's rates by what its kernels were seen to take."""

from __future__ import annotations

from typing import Any

import pytest

from memtrade.devices import Device, load_device
from memtrade.facts.asking import CopyRates
from memtrade.facts.learned import Learned
from memtrade.simulate.calibration import measured_device

RATES = CopyRates(
    overhead_seconds=1e-6,
    device_to_host_bytes_per_s=1e10,
    host_to_device_bytes_per_s=1e10,
    onednn=True,
)


def seen(kernel: str, op_class: str, gigabytes_per_s: float, **parts: Any) -> Learned:
    return Learned(
        key=kernel,
        kernel=f"{kernel} float32 1024x1024",
        seconds=0.01 / gigabytes_per_s,
        source="asked",
        on="2026-01-01",
        op_class=op_class,
        flops=10_000_000,
        bytes_moved=10_000_000,
        **parts,
    )


def measured(*kernels: Learned) -> Device:
    return measured_device(load_device("arena"), {each.key: each for each in kernels}, RATES)


PLAIN = seen("MatMul", "matmul", 1.0), seen("AddV2", "elementwise", 8.0)


def test_kernels_that_compute_do_not_tell_how_fast_values_move() -> None:
    """What was looked at before decides nothing: updates take as long beside a slow Pow."""
    plain, beside = measured(*PLAIN), measured(*PLAIN, seen("Pow", "elementwise", 0.1))
    assert beside.efficiency["elementwise"] == plain.efficiency["elementwise"]
    alone = measured(PLAIN[0], seen("Pow", "elementwise", 0.1))
    assert alone.memory_bandwidth_bytes_per_s == pytest.approx(1e8)


def test_kernels_that_others_disturbed_tell_where_no_others_do() -> None:
    slow = seen("Sub", "elementwise", 0.5, disturbed=True)
    assert measured(*PLAIN, slow).efficiency == measured(*PLAIN).efficiency
    alone = measured(PLAIN[0], slow)
    assert alone.memory_bandwidth_bytes_per_s == pytest.approx(5e8)
