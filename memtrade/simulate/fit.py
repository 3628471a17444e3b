"""Fitting a device profile to measured step times: at most three parameters.

    conv, matmul         one factor on both efficiencies (their ratio stays as given)
    all other classes    one factor on the shares of the memory bandwidth
    launch overhead      seconds per op, besides its work

A pattern search on their logarithms minimizes the squared log ratio of predicted to measured, plus
`prior` times the squared log of each factor: training steps of one kind of network, at one batch
size, tell a slow convolution from a large overhead per op badly (on the five `original` rows of the
thesis, convolutions at 36% of the peak and 60 us an op do as well as 80% and 300 us), and then the
profile's own efficiencies decide. The overhead has no prior. Some hundred simulations of each
sample, milliseconds each; no gradient needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from memtrade.graph import StepGraph
from memtrade.plan import Action, Plan
from memtrade.simulate.costs import OpClass
from memtrade.simulate.devices import Device
from memtrade.simulate.timeline import TimeSimulator

_COMPUTE = (OpClass.CONV, OpClass.MATMUL)
SMALLEST_OVERHEAD_SECONDS = 1e-7


class Sample(NamedTuple):
    """One measured step."""

    graph: StepGraph
    plan: Plan | Sequence[Action]
    step_seconds: float


class Fit(NamedTuple):
    """The fitted profile, and predicted / measured for each sample."""

    device: Device
    ratios: tuple[float, ...]


def fit_device(device: Device, samples: Sequence[Sample], *, prior: float = 0.05) -> Fit:
    """`device` with its efficiencies and launch overhead fitted to `samples`.

    Args:
        prior: how much the device's own efficiencies weigh; one sample that is wrong by a factor
            e weighs 1.
    """
    simulators = [TimeSimulator(sample.graph, device) for sample in samples]

    def ratios(candidate: Device) -> tuple[float, ...]:
        found = []
        for simulator, sample in zip(simulators, samples, strict=True):
            simulator.set_device(candidate)
            found.append(simulator.step_seconds(sample.plan) / sample.step_seconds)
        return tuple(found)

    def loss(point: tuple[float, ...]) -> float:
        misses = sum(math.log(r) ** 2 for r in ratios(_changed(device, point)))
        return misses + prior * (point[0] ** 2 + point[1] ** 2)

    overhead = max(device.launch_overhead_seconds, SMALLEST_OVERHEAD_SECONDS)
    point = _search(loss, (0.0, 0.0, math.log(overhead)))
    fitted = _changed(device, point)
    return Fit(fitted, ratios(fitted))


def _changed(device: Device, point: tuple[float, ...]) -> Device:
    """The device with other logarithms: factor on compute, factor on memory, overhead."""
    compute, memory, overhead = (math.exp(each) for each in point)
    efficiency = {
        name: min(1.0, share * (compute if name in _COMPUTE else memory))
        for name, share in device.efficiency.items()
    }
    return msgspec.structs.replace(device, efficiency=efficiency, launch_overhead_seconds=overhead)


def _search(
    loss: Callable[[tuple[float, ...]], float],
    point: tuple[float, ...],
    *,
    step: float = 0.5,
    precision: float = 0.004,
) -> tuple[float, ...]:
    """Steps along each axis while that helps; then halves the step."""
    lowest = loss(point)
    while step > precision:
        moved = False
        for axis in range(len(point)):
            for sign in (1, -1):
                tried = (*point[:axis], point[axis] + sign * step, *point[axis + 1 :])
                found = loss(tried)
                if found < lowest:
                    point, lowest, moved = tried, found, True
                    break
        if not moved:
            step /= 2
    return point
