"""A device's rates as measured here, and the profile that is made of them. No TensorFlow here."""

from __future__ import annotations

import json

import msgspec

from memtrade.simulate.costs import OpClass


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
