"""A device's rates from the throughput of published or measured pipelines: up to three parameters.

    compute     one factor on the shares of the peak rate of convolutions and matrix products
    memory      one factor on the shares of the memory bandwidth of all other ops
    dispatch    seconds for the host to start an op, which bounds pipelines of small micro-batches

A pattern search on their logarithms minimizes the squared log ratio of predicted to given speed,
plus `PRIOR` times the squared logarithm of each factor: few rows tell slow kernels from a slow host
badly, and then the profile decides. (`simulate.fit` does the same for whole steps, whose time no
host bounds.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from memtrade.devices import COMPUTE_BOUND, MOST, Device

PRIOR = 0.05
SMALLEST_SECONDS = 1e-7
_FIRST_STEP, _LAST_STEP = 0.5, 0.004  # of the search, in logarithms

Parameter = Literal["compute", "memory", "dispatch"]
Coordinates = tuple[float, ...]


def calibrate(
    device: Device,
    ratios: Callable[[Device], tuple[float, ...]],
    *,
    parameters: Sequence[Parameter],
) -> Device:
    """`device` with `parameters` so that `ratios`, predicted over given speeds, come close to 1."""

    def loss(point: Coordinates) -> float:
        misses = sum(math.log(each) ** 2 for each in ratios(_changed(device, parameters, point)))
        factors = [x for name, x in zip(parameters, point, strict=True) if name != "dispatch"]
        return misses + PRIOR * sum(x**2 for x in factors)

    started = math.log(max(device.dispatch_seconds, SMALLEST_SECONDS))
    start = tuple(started if name == "dispatch" else 0.0 for name in parameters)
    return _changed(device, parameters, _search(loss, start))


def _changed(device: Device, parameters: Sequence[Parameter], point: Coordinates) -> Device:
    values = {name: math.exp(x) for name, x in zip(parameters, point, strict=True)}
    compute, memory = values.get("compute", 1.0), values.get("memory", 1.0)
    return msgspec.structs.replace(
        device,
        dispatch_seconds=values.get("dispatch", device.dispatch_seconds),
        efficiency={
            name: min(MOST.get(name, 1.0), share * (compute if name in COMPUTE_BOUND else memory))
            for name, share in device.efficiency.items()
        },
    )


def _search(loss: Callable[[Coordinates], float], point: Coordinates) -> Coordinates:
    """Steps along each axis while that helps; then halves the step."""
    lowest, step = loss(point), _FIRST_STEP
    while step > _LAST_STEP:
        moved = False
        for axis in range(len(point)):
            for change in (step, -step):
                tried = (*point[:axis], point[axis] + change, *point[axis + 1 :])
                found = loss(tried)
                if found < lowest:
                    point, lowest, moved = tried, found, True
                    break
        if not moved:
            step /= 2
    return point
