"""sqrt_n: cut the forward pass into about sqrt(n) segments of equal cost, keep what lies between.

After T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", 2016,
arXiv 1604.06174. Places to cut are the articulation points, as in Checkmate's baseline "AP sqrt(n)"
(P. Jain et al., 2020, arXiv 1910.02653); a network without them, such as a U-Net, is cut at wider
frontiers. There is nothing to set but the device, whose profile says what an op costs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.models.options import check, option, options_of
from memtrade.plan import Order, Plan
from memtrade.simulate.devices import load_device
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import Strategy, make_plan
from memtrade.strategies.checkpoints import fates
from memtrade.strategies.segments import Frontier, frontiers, useful


@dataclass(frozen=True, kw_only=True)
class Options:
    device: str = option("arena", "the device profile that says what an op costs")

    def __post_init__(self) -> None:
        for each in options_of(type(self)):
            check(each, getattr(self, each.name))
        load_device(self.device)


def plan(graph: StepGraph, options: Options, order: Order) -> Plan:
    taken = choose(graph, TimeSimulator(graph, load_device(options.device)))
    checkpoints = useful(graph, sorted({t for f in taken for t in f.tensors}))
    return make_plan("sqrt_n", graph, options, order, fates(graph, checkpoints))


def choose(graph: StepGraph, times: TimeSimulator) -> list[Frontier]:
    """Of the places to cut, those nearest to every sqrt(n)-th part of the forward pass's time."""
    places = _places(graph)
    ops = sorted(op_id for op_id in graph.forward if op_id <= graph.turn)
    spent = list(accumulate((times.op_seconds[op_id] for op_id in ops), initial=0.0))
    # Where each place lies, as a share of the forward pass.
    shares = [spent[bisect_left(ops, f.op + 1)] / (spent[-1] or 1.0) for f in places]
    parts = max(2, round(math.sqrt(len(places) + 1)))
    nearest = {
        min(range(len(places)), key=lambda i: (abs(shares[i] - part / parts), i))
        for part in range(1, parts)
    }
    return [places[i] for i in sorted(nearest)]


def _places(graph: StepGraph) -> list[Frontier]:
    found = [f for f in frontiers(graph) if f.op < graph.turn]
    places = [f for f in found if len(f.tensors) == 1] or found
    if not places:
        raise UnsupportedGraphError(f"{graph.name} has no place to cut its forward pass")
    return places


STRATEGY = Strategy(
    "sqrt_n", "keep about sqrt(n) equally spaced checkpoints (Chen et al.)", Options, plan
)
