"""A device's rates as measured here, and the profile that is made of them. No TensorFlow here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from memtrade.costs import OpClass, OpCost
from memtrade.devices import COMPUTE_BOUND, Device
from memtrade.facts.asking import CopyRates
from memtrade.facts.learned import Learned

# A kernel that moves less than this tells of overheads, not of rates.
_TELLING_BYTES = 1 << 20


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What the micro-benchmarks found; the fields are those of a device profile.

    Attributes:
        flops_per_s, memory_bandwidth_bytes_per_s: the highest that any kernel reached.
        efficiency: op class -> its share of the one or the other.
        overhead_seconds: of an op that has next to nothing to do.
    """

    flops_per_s: float
    memory_bandwidth_bytes_per_s: float
    host_to_device_bytes_per_s: float
    device_to_host_bytes_per_s: float
    overhead_seconds: float
    memory_bytes: int
    blocking_transfers: bool
    efficiency: dict[str, float]


def shares_of_peaks(
    costs: Sequence[OpCost], took: Sequence[float]
) -> tuple[float, float, dict[str, float]]:
    """Peak flops and bytes per second over all kernels, and each class's share of its peak."""
    timed = list(zip(costs, took, strict=True))
    peak_flops = max(c.flops / s for c, s in timed if c.op_class in COMPUTE_BOUND)
    peak_bytes = max(c.bytes_moved / s for c, s in timed if c.op_class not in COMPUTE_BOUND)
    shares = {}
    for op_class in dict.fromkeys(cost.op_class for cost in costs):
        own = [(cost, seconds) for cost, seconds in timed if cost.op_class is op_class]
        total = sum(seconds for _, seconds in own)
        if op_class in COMPUTE_BOUND:
            rate = sum(cost.flops for cost, _ in own) / total / peak_flops
        else:
            rate = sum(cost.bytes_moved for cost, _ in own) / total / peak_bytes
        shares[op_class.value] = rate
    return peak_flops, peak_bytes, shares


def measured_device(device: Device, table: Mapping[str, Learned], rates: CopyRates) -> Device:
    """`device` with the rates that its own kernels were seen to reach, for kernels that nobody has
    asked; classes without any keep the share that they have."""
    timed = [each for each in table.values() if each.seconds and each.op_class in device.efficiency]
    timed = [each for each in timed if each.bytes_moved >= _TELLING_BYTES]
    costs = [OpCost(OpClass(each.op_class), each.flops, each.bytes_moved) for each in timed]
    peaks = {}
    if {True, False} == {cost.op_class in COMPUTE_BOUND for cost in costs}:
        took = [each.seconds or 0.0 for each in timed]
        flops, bandwidth, shares = shares_of_peaks(costs, took)
        peaks = {
            "flops_per_s": flops,
            "memory_bandwidth_bytes_per_s": bandwidth,
            "efficiency": device.efficiency | shares,
        }
    return msgspec.structs.replace(
        device,
        source=f"measured here, by {len(timed)} kernels (memtrade facts)",
        host_to_device_bytes_per_s=rates.host_to_device_bytes_per_s,
        device_to_host_bytes_per_s=rates.device_to_host_bytes_per_s,
        launch_overhead_seconds=rates.overhead_seconds,
        dispatch_seconds=rates.overhead_seconds,
        **peaks,
    )


def to_toml(rates: Rates, *, name: str, source: str) -> str:
    """A device profile that `load_device` reads."""
    lines = [
        f"name = {_text(name)}",
        f"source = {_text(source)}",
        f"flops_per_s = {_number(rates.flops_per_s)}",
        f"memory_bandwidth_bytes_per_s = {_number(rates.memory_bandwidth_bytes_per_s)}",
        f"host_to_device_bytes_per_s = {_number(rates.host_to_device_bytes_per_s)}",
        f"device_to_host_bytes_per_s = {_number(rates.device_to_host_bytes_per_s)}",
        # A chain of ops goes as fast as its slower half lets it: starting them or running them.
        f"launch_overhead_seconds = {_number(rates.overhead_seconds)}",
        f"dispatch_seconds = {_number(rates.overhead_seconds)}",
        f"memory_bytes = {rates.memory_bytes}",
        f"blocking_transfers = {str(rates.blocking_transfers).lower()}",
        "",
        "# Shares of the peak rates: of the flops for conv and matmul, else of the bandwidth.",
        "[efficiency]",
        *(f"{each} = {_number(rates.efficiency[each])}" for each in OpClass if each != "free"),
    ]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Four digits: no measurement here is better than that."""
    return repr(float(f"{value:.4g}"))


def _text(value: str) -> str:
    """A basic string: TOML escapes as JSON does."""
    return json.dumps(value, ensure_ascii=False)
