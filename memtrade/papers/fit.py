"""Fitting a device profile to step times or throughputs: two or three parameters.

    compute    one factor on the efficiencies of convolutions and matrix products
    memory     one factor on the shares of the memory bandwidth, of all other classes
    launch     seconds per op, besides its work
    trace      seconds per op and copy, once the step is over
    step       seconds per step
    dispatch   seconds for the host to start an op, which bounds pipelines of small micro-batches

A pattern search on their logarithms minimizes the squared log ratio of predicted to measured, plus
`PRIOR` times the squared log of each factor: training steps of one kind of network, at one batch
size, tell a slow convolution from a large overhead per op badly (on the five `original` rows of the
thesis, convolutions at 36% of the peak and 60 us an op do as well as 80% and 300 us), and then the
profile's own efficiencies decide. Seconds have no prior. Some hundred simulations of each sample,
milliseconds each; no gradient needed.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from memtrade.devices import COMPUTE_BOUND, MOST, Device
from memtrade.graph import StepGraph
from memtrade.plan import Action, Plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.target import Target

FACTORS = ("compute", "memory")
SECONDS = {
    "launch": "launch_overhead_seconds",
    "trace": "trace_seconds",
    "step": "step_overhead_seconds",
    "dispatch": "dispatch_seconds",
}
# How much the device's own efficiencies weigh; one sample that is wrong by a factor e weighs 1.
PRIOR = 0.05
# Of the search, in logarithms: its first step, and where it ends.
FIRST_STEP, PRECISION = 0.5, 0.004


class Sample(NamedTuple):
    """One measured step."""

    graph: StepGraph
    plan: Plan | Sequence[Action]
    step_seconds: float


def fit_device(target: Target, samples: Sequence[Sample], parameters: Sequence[str]) -> Device:
    """The target's device with `parameters` fitted to `samples`; the others stay as they are. The
    target's kernels' seconds are not known: they would not move."""
    device = target.device
    simulators = [TimeSimulator(sample.graph, target) for sample in samples]

    def ratios(candidate: Device) -> tuple[float, ...]:
        found = []
        for simulator, sample in zip(simulators, samples, strict=True):
            simulator.set_device(candidate)
            found.append(simulator.step_seconds(sample.plan) / sample.step_seconds)
        return tuple(found)

    start = {name: _start(device, name, samples) for name in parameters}
    return fit_ratios(device, ratios, start)


def fit_ratios(
    device: Device,
    ratios: Callable[[Device], tuple[float, ...]],
    start: Mapping[str, float],
    *,
    pairs: bool = True,
) -> Device:
    """The device with parameters so that `ratios`, predicted over given, come close to 1.

    Args:
        start: each parameter's logarithm to search from.
        pairs: search along pairs of axes, too.
    """
    parameters = tuple(start)

    def loss(point: tuple[float, ...]) -> float:
        misses = sum(math.log(r) ** 2 for r in ratios(_changed(device, parameters, point)))
        factors = (x for name, x in zip(parameters, point, strict=True) if name in FACTORS)
        return misses + PRIOR * sum(x**2 for x in factors)

    return _changed(device, parameters, _search(loss, tuple(start.values()), pairs=pairs))


def _start(device: Device, name: str, samples: Sequence[Sample]) -> float:
    """The logarithm to search from: the device's own value, or seconds that come to a tenth."""
    if name in FACTORS:
        return 0.0
    given = getattr(device, SECONDS[name])
    if given > 0:
        return math.log(given)
    each = [0.1 * s.step_seconds / (1 if name == "step" else len(s.graph.ops)) for s in samples]
    return math.log(statistics.fmean(each))


def _changed(device: Device, parameters: Sequence[str], point: tuple[float, ...]) -> Device:
    """The device with the logarithms in `point`: of factors, or of seconds."""
    values = {name: math.exp(x) for name, x in zip(parameters, point, strict=True)}
    seconds = {SECONDS[name]: value for name, value in values.items() if name not in FACTORS}
    efficiency = {
        name: min(
            MOST.get(name, 1.0),
            share * values.get("compute" if name in COMPUTE_BOUND else "memory", 1.0),
        )
        for name, share in device.efficiency.items()
    }
    return msgspec.structs.replace(device, efficiency=efficiency, **seconds)


def _search(
    loss: Callable[[tuple[float, ...]], float], point: tuple[float, ...], *, pairs: bool
) -> tuple[float, ...]:
    """Steps along axes, and along `pairs` of them one against the other, while that helps; then
    halves the step."""
    size = len(point)
    unit = [tuple(float(i == axis) for i in range(size)) for axis in range(size)]
    between = itertools.combinations(unit, 2) if pairs else ()
    directions = [*unit, *(tuple(a - b for a, b in zip(*pair, strict=True)) for pair in between)]
    lowest, step = loss(point), FIRST_STEP
    while step > PRECISION:
        moved = False
        for direction, sign in itertools.product(directions, (step, -step)):
            tried = tuple(x + sign * d for x, d in zip(point, direction, strict=True))
            found = loss(tried)
            if found < lowest:
                point, lowest, moved = tried, found, True
        if not moved:
            step /= 2
    return point
