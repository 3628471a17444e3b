"""A measured profile is one that can be read, with the figures that were measured."""

from __future__ import annotations

import msgspec
import pytest

from memtrade.costs import OpClass
from memtrade.devices import Device, parse_device, to_toml

SOURCE = 'By "calibrate" on a C:\\machine — 2 cores'
PROFILE = Device(
    name="mine",
    source=SOURCE,
    flops_per_s=5.43219876e11,
    memory_bandwidth_bytes_per_s=9e10,
    host_to_device_bytes_per_s=7e9,
    device_to_host_bytes_per_s=7.5e9,
    launch_overhead_seconds=1.7e-5,
    dispatch_seconds=1.7e-5,
    memory_bytes=7_606_362_112,
    blocking_transfers=True,
    efficiency={each.value: 0.123456 for each in OpClass if each is not OpClass.FREE},
)


def test_a_profile_is_read_as_it_was_measured() -> None:
    device = parse_device(to_toml(PROFILE), where="mine.toml")
    assert (device.name, device.source) == ("mine", SOURCE)
    assert device.flops_per_s == pytest.approx(PROFILE.flops_per_s, rel=1e-4)
    assert device.device_to_host_bytes_per_s == 7.5e9
    assert device.host_to_device_bytes_per_s == 7e9
    assert device.launch_overhead_seconds == device.dispatch_seconds == 1.7e-5
    assert device.memory_bytes == PROFILE.memory_bytes
    assert device.blocking_transfers
    assert set(device.efficiency.values()) == {0.1235}


def test_every_op_class_must_have_been_measured() -> None:
    with pytest.raises(KeyError):
        to_toml(msgspec.structs.replace(PROFILE, efficiency={}))
