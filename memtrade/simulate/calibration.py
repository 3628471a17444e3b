"""A device's rates by what kernels were seen to take. No TensorFlow here."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from memtrade.costs import OpClass, OpCost
from memtrade.devices import COMPUTE_BOUND, Device
from memtrade.facts.asking import CopyRates
from memtrade.facts.learned import Learned

# A kernel that moves less than this tells of overheads, not of rates.
_TELLING_BYTES = 1 << 20

# Kernels that compute much for each value, and so tell nothing of how fast others of their class
# move theirs. Updates are never asked: a slow Pow made an SGD's three times as slow as they are.
_ARITHMETIC_NAMES = """
    Atan2 Cos Digamma Elu Erf Erfc Erfinv Exp Expm1 Lgamma Log Log1p LogSoftmax Pow
    RandomStandardNormal RandomUniform Selu Sigmoid Sin Softmax SoftmaxCrossEntropyWithLogits
    Softplus SparseSoftmaxCrossEntropyWithLogits StatelessRandomNormalV2 StatelessRandomUniform
    StatelessRandomUniformV2 Tan Tanh TruncatedNormal Xlogy
"""
_ARITHMETIC = frozenset(_ARITHMETIC_NAMES.split())


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


def _telling(kernels: Sequence[Learned], less: Callable[[Learned], bool]) -> list[Learned]:
    """Of each class the kernels that do not tell `less`; all of them where each does."""
    better = {each.op_class for each in kernels if not less(each)}
    return [each for each in kernels if each.op_class not in better or not less(each)]


def measured_device(device: Device, table: Mapping[str, Learned], rates: CopyRates) -> Device:
    """`device` with the rates that its own kernels were seen to reach, for kernels that nobody has
    asked; classes without any keep the share that they have."""
    timed = [each for each in table.values() if each.seconds and each.op_class in device.efficiency]
    timed = [each for each in timed if each.bytes_moved >= _TELLING_BYTES]
    timed = _telling(timed, lambda each: each.disturbed)
    timed = _telling(timed, lambda each: each.op_type in _ARITHMETIC)
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
