"""A device's rates from the throughput of published or measured pipelines: up to three parameters.

    compute     one factor on the shares of the peak rate of convolutions and matrix products
    memory      one factor on the shares of the memory bandwidth of all other ops
    dispatch    seconds for the host to start an op, which bounds pipelines of small micro-batches

Fitted as whole steps are (`papers.fit`), whose time no host bounds: few rows tell slow kernels
from a slow host badly, and then the profile decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from memtrade.devices import Device
from memtrade.papers.fit import fit_ratios

PRIOR = 0.05
SMALLEST_SECONDS = 1e-7

Parameter = Literal["compute", "memory", "dispatch"]


def calibrate(
    device: Device,
    ratios: Callable[[Device], tuple[float, ...]],
    *,
    parameters: Sequence[Parameter],
) -> Device:
    """`device` with `parameters` so that `ratios`, predicted over given speeds, come close to 1."""
    started = math.log(max(device.dispatch_seconds, SMALLEST_SECONDS))
    start = {name: started if name == "dispatch" else 0.0 for name in parameters}
    return fit_ratios(device, ratios, start, prior=PRIOR, pairs=False)
