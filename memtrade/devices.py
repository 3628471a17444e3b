"""Device profiles: what a device can do, from a TOML file, and how long an op takes on it.

An op's time is the roofline's: the longer of computing and moving its bytes, each at the device's
peak rate times the share of it that kernels of this class reach.

    seconds = max(flops / (peak flops x e), bytes / (peak bandwidth x e')) + launch overhead

For convolutions and matrix products e is their class's efficiency and e' that of "memory"; for all
other classes, which memory bounds, e' is the class's and e is 1. 3x3 convolutions without stride
are a class of their own: Winograd's algorithm (Lavin and Gray 2015, arXiv 1509.09308) multiplies up
to 4 times less than is counted here, so their share may exceed 1.
"""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from memtrade.costs import OpClass, OpCost
from memtrade.errors import MemtradeError, check_name, reason_of
from memtrade.files import packaged_file

_RATES = (
    "flops_per_s",
    "memory_bandwidth_bytes_per_s",
    "host_to_device_bytes_per_s",
    "device_to_host_bytes_per_s",
)
_OVERHEADS = ("launch_overhead_seconds", "dispatch_seconds")
_OPTIONAL_OVERHEADS = ("trace_seconds", "step_overhead_seconds")
COMPUTE_BOUND = frozenset({OpClass.CONV, OpClass.CONV_3X3, OpClass.MATMUL})
# The largest share of a class, where it is not 1. Winograd's F(4x4, 3x3) multiplies 36 times where
# 144 are counted.
MOST: dict[str, float] = {OpClass.CONV_3X3: 4.0}
_CLASSES = tuple(c for c in OpClass if c is not OpClass.FREE)


class Device(msgspec.Struct, frozen=True):
    """A device profile.

    Attributes:
        source: where the figures come from.
        flops_per_s: float32 peak, a multiply-add as two.
        memory_bandwidth_bytes_per_s: between the device and its memory, peak.
        host_to_device_bytes_per_s, device_to_host_bytes_per_s: of large copies.
        launch_overhead_seconds: what an op takes besides its work.
        dispatch_seconds: what the host takes to start an op; it runs ahead of a GPU.
        memory_bytes: of the device.
        blocking_transfers: copies are in line with compute (the arena); else beside it (a GPU).
        efficiency: op class -> share of the peak rate, above 0, at most 1 (conv_3x3: 4).
        channels_first: convolutions are computed that way, so images with channels last are
            transposed before and after (float32 on GPUs without TF32).
        trace_seconds: what an op or a copy takes once the step is over, where all are traced.
        step_overhead_seconds: what a step takes besides.
    """

    name: str
    source: str
    flops_per_s: float
    memory_bandwidth_bytes_per_s: float
    host_to_device_bytes_per_s: float
    device_to_host_bytes_per_s: float
    launch_overhead_seconds: float
    dispatch_seconds: float
    memory_bytes: int
    blocking_transfers: bool
    efficiency: dict[str, float]
    channels_first: bool = False
    trace_seconds: float = 0.0
    step_overhead_seconds: float = 0.0

    def seconds(self, cost: OpCost, known_seconds: float | None = None) -> float:
        """How long one op keeps the device busy. Free ops take no time.

        Args:
            known_seconds: of its kernel, where it was seen; else the roofline's.
        """
        if cost.op_class is OpClass.FREE:
            return 0.0
        if known_seconds is not None:
            return known_seconds + self.launch_overhead_seconds
        own = self.efficiency[cost.op_class]
        if cost.op_class in COMPUTE_BOUND:
            compute, memory = own, self.efficiency[OpClass.MEMORY]
        else:
            compute, memory = 1.0, own
        work = max(
            cost.flops / (self.flops_per_s * compute),
            cost.bytes_moved / (self.memory_bandwidth_bytes_per_s * memory),
        )
        if self.channels_first and cost.transposed_bytes:
            share = self.efficiency[OpClass.MEMORY]
            work += cost.transposed_bytes / (self.memory_bandwidth_bytes_per_s * share)
        return work + self.launch_overhead_seconds


def device_names() -> tuple[str, ...]:
    """The devices that come with memtrade."""
    names = [file.name for file in packaged_file("devices").iterdir()]
    return tuple(sorted(name[:-5] for name in names if name.endswith(".toml")))


def load_device(name_or_path: str | Path) -> Device:
    """A device by its name, or from a TOML file of one's own.

    Raises:
        UnknownNameError: neither a file nor the name of a device.
        MemtradeError: the file is no profile; the message names the field.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MemtradeError(
                f"cannot read the device profile {str(path)!r}: {reason_of(error)}"
            ) from error
        return parse_device(text, where=str(path))
    check_name("device", str(name_or_path), device_names())
    text = packaged_file(f"devices/{name_or_path}.toml").read_text(encoding="utf-8")
    return parse_device(text, where=str(name_or_path))


def parse_device(text: str, *, where: str) -> Device:
    """A profile from its TOML text. `where` stands in messages."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MemtradeError(f"device profile {where} is not TOML: {error}") from error
    efficiency = values.get("efficiency")
    if not isinstance(efficiency, dict):
        raise MemtradeError(
            f"device profile {where} has no table [efficiency]: "
            f"give a share for each of {', '.join(_CLASSES)}"
        )
    efficiency = {OpClass.CONV_3X3: efficiency.get(OpClass.CONV), **efficiency}
    given = [*_OVERHEADS, *(field for field in _OPTIONAL_OVERHEADS if field in values)]
    overheads: dict[str, Any] = {field: _number(values, field, where) for field in given}
    for field, seconds in overheads.items():
        if seconds < 0:
            raise MemtradeError(
                f"device profile {where}: {field} must not be negative, not {seconds}"
            )
    rates: dict[str, Any] = {field: _positive(values, field, where) for field in _RATES}
    rates["memory_bytes"] = int(_positive(values, "memory_bytes", where))
    for op_class in _CLASSES:
        share = _positive(efficiency, op_class, where, table="efficiency.")
        if share > MOST.get(op_class, 1.0):
            raise MemtradeError(
                f"device profile {where}: efficiency.{op_class} is a share of the peak rate, "
                f"at most {MOST.get(op_class, 1.0):g}, not {share}"
            )
    return Device(
        name=_text(values, "name", where),
        source=_text(values, "source", where),
        **rates,
        **overheads,
        blocking_transfers=bool(values.get("blocking_transfers", False)),
        efficiency={op_class.value: float(efficiency[op_class]) for op_class in _CLASSES},
        channels_first=bool(values.get("channels_first", False)),
    )


def _text(values: dict[str, Any], field: str, where: str) -> str:
    if not isinstance(values.get(field), str) or not values[field]:
        raise MemtradeError(f"device profile {where} has no {field}: write a line {field} = '...'")
    return values[field]


def _number(values: dict[str, Any], field: str, where: str, *, table: str = "") -> float:
    value = values.get(field)
    if value is None:
        raise MemtradeError(f"device profile {where} has no {table}{field}: add it, as a number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MemtradeError(f"device profile {where}: {table}{field} must be a number, not {value}")
    return float(value)


def _positive(values: dict[str, Any], field: str, where: str, *, table: str = "") -> float:
    value = _number(values, field, where, table=table)
    if value <= 0:
        raise MemtradeError(f"device profile {where}: {table}{field} must be positive, not {value}")
    return value


def to_toml(device: Device) -> str:
    """A device profile that `load_device` reads."""
    optional = [each for each in _OPTIONAL_OVERHEADS if getattr(device, each)]
    figures = (*_RATES, *_OVERHEADS, *optional)
    lines = [
        f"name = {_quoted(device.name)}",
        f"source = {_quoted(device.source)}",
        *(f"{each} = {_rounded(getattr(device, each))}" for each in figures),
        f"memory_bytes = {device.memory_bytes}",
        f"blocking_transfers = {str(device.blocking_transfers).lower()}",
        *["channels_first = true"] * device.channels_first,
        "",
        "# Shares of the peak rates: of the flops for conv and matmul, else of the bandwidth.",
        "[efficiency]",
        *(f"{each} = {_rounded(device.efficiency[each])}" for each in _CLASSES),
    ]
    return "\n".join(lines) + "\n"


def _rounded(value: float) -> str:
    """Four digits: no measurement here is better than that."""
    return repr(float(f"{value:.4g}"))


def _quoted(value: str) -> str:
    """A basic string: TOML escapes as JSON does."""
    return json.dumps(value, ensure_ascii=False)
