"""Profiles: the shipped ones load, and a faulty one is refused with the field's name."""

from pathlib import Path

import msgspec
import pytest

from memtrade.costs import OpClass, OpCost
from memtrade.devices import device_names, load_device, parse_device
from memtrade.errors import MemtradeError, UnknownNameError

GOOD = """
name = "mine"
source = "measured"
flops_per_s = 1e12
memory_bandwidth_bytes_per_s = 1e11
host_to_device_bytes_per_s = 1e10
device_to_host_bytes_per_s = 1e10
launch_overhead_seconds = 0.001
dispatch_seconds = 0
memory_bytes = 8_000_000_000
[efficiency]
conv = 0.5
matmul = 0.5
normalization = 0.25
elementwise = 0.25
pooling = 0.25
memory = 0.25
"""


@pytest.mark.parametrize("name", device_names())
def test_shipped_profiles_are_complete_and_say_their_source(name: str):
    device = load_device(name)
    assert device.name == name
    assert len(device.source) > 20
    assert device.blocking_transfers == (name == "arena")


def test_the_issue_s_devices_are_shipped():
    wanted = ["gtx-1070", "p40", "v100-16gb", "a100-40gb", "h100", "h200", "rtx-4090", "arena"]
    assert set(wanted) <= set(device_names())


def test_an_unknown_device_is_answered_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match=r"did you mean 'gtx-1070'"):
        load_device("gtx1070")


def test_a_profile_of_one_s_own(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_device(path).memory_bytes == 8_000_000_000
    assert not load_device(str(path)).blocking_transfers


@pytest.mark.parametrize(
    ("line", "replacement", "message"),
    [
        ("flops_per_s = 1e12\n", "", "no flops_per_s"),
        ("flops_per_s = 1e12", "flops_per_s = -1", "flops_per_s must be positive"),
        ("memory_bytes = 8_000_000_000", "memory_bytes = 0", "memory_bytes must be positive"),
        ("dispatch_seconds = 0", "dispatch_seconds = -1", "dispatch_seconds must not be negative"),
        ("conv = 0.5", "conv = 1.5", "efficiency.conv is a share of the peak rate, at most 1,"),
        ("conv = 0.5", "conv = 0.5\nconv_3x3 = 5", "efficiency.conv_3x3 is .*, at most 4,"),
        ("[efficiency]", "trace_seconds = -1\n[efficiency]", "trace_seconds must not be negative"),
        ("conv = 0.5\n", "", "no efficiency.conv"),
        ("conv = 0.5", "conv = nan", "efficiency.conv must be a number"),
        ("conv = 0.5", "conv = 'fast'", "efficiency.conv must be a number"),
        ("[efficiency]", "[shares]", r"no table \[efficiency\]"),
        ('name = "mine"', "", "no name"),
        ('name = "mine"', "name", "not TOML"),
    ],
)
def test_a_faulty_profile_is_refused_with_the_field(line: str, replacement: str, message: str):
    assert line in GOOD
    with pytest.raises(MemtradeError, match=message):
        parse_device(GOOD.replace(line, replacement, 1), where="mine.toml")


def test_a_missing_file_is_refused():
    with pytest.raises(MemtradeError, match="cannot read"):
        load_device("nowhere/mine.toml")


def test_an_op_takes_the_longer_of_computing_and_moving():
    device = parse_device(GOOD, where="here")
    work = device.seconds(OpCost(OpClass.CONV, 5 * 10**11, 1))
    moving = device.seconds(OpCost(OpClass.CONV, 1, 5 * 10**10))
    assert work == pytest.approx(1.001)
    assert moving == pytest.approx(2.001)
    assert device.seconds(OpCost(OpClass.FREE, 0, 0)) == 0


def test_what_a_profile_may_leave_out():
    device = parse_device(GOOD, where="here")
    assert device.efficiency["conv_3x3"] == device.efficiency["conv"]
    assert (device.trace_seconds, device.step_overhead_seconds) == (0, 0)
    assert not device.channels_first
    told = GOOD.replace("[efficiency]", "channels_first = true\n[efficiency]\nconv_3x3 = 1.2")
    assert parse_device(told, where="here").efficiency["conv_3x3"] == 1.2
    assert parse_device(told, where="here").channels_first


def test_transposes_take_time_where_channels_come_first():
    last = parse_device(GOOD, where="here")
    first = msgspec.structs.replace(last, channels_first=True)
    cost = OpCost(OpClass.CONV, 5 * 10**11, 1, transposed_bytes=5 * 10**10)
    assert last.seconds(cost) == pytest.approx(1.001)
    assert first.seconds(cost) == pytest.approx(3.001)
