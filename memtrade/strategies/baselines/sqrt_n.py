"""sqrt_n: cut the forward pass into about sqrt(n) segments of equal cost, keep what lies between.

After T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", 2016,
arXiv 1604.06174. Places to cut are the articulation points, as in the baseline "AP sqrt(n)" of
Checkmate (P. Jain et al., 2020, arXiv 1910.02653), where they are spread well enough over the
forward pass; else, as in a U-Net, which has them at its ends only, all frontiers ("linearized
sqrt(n)"). What an op costs is the target's to say, so there is nothing to set.

O(ops + edges + places x sqrt(places)). Not guaranteed: that memory grows with sqrt(n) only. That
holds where segments of equal time hold equal bytes, which nothing here looks at.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.plan import Plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies.base import Strategy, make_plan
from memtrade.strategies.checkpoints import fates
from memtrade.strategies.original import Options
from memtrade.strategies.segments import Frontier, frontiers, useful
from memtrade.target import Target

# A stretch without articulation points may be so many times as long as a part.
UNEVEN = 1.5


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    taken = choose(graph, TimeSimulator(graph, target))
    checkpoints = useful(graph, sorted({t for f in taken for t in f.tensors}))
    return make_plan("sqrt_n", graph, options, target, fates(graph, checkpoints))


def choose(graph: StepGraph, times: TimeSimulator) -> list[Frontier]:
    """Of the places to cut, those nearest to every sqrt(n)-th part of the forward pass's time."""
    places = [f for f in frontiers(graph) if f.op < graph.turn]
    if not places:
        raise UnsupportedGraphError(
            f"{graph.name} has no place to cut its forward pass: try lms, which needs none"
        )
    narrow = [f for f in places if len(f.tensors) == 1]
    shares = dict(zip(places, _shares(graph, times, places), strict=True))
    parts = _parts(narrow)
    taken = _spread(narrow, shares, parts)
    stretches = itertools.pairwise([0.0, *(shares[f] for f in taken), 1.0])
    if max(b - a for a, b in stretches) <= UNEVEN / parts:
        return taken
    return _spread(places, shares, _parts(places))


def _parts(places: Sequence[Frontier]) -> int:
    return max(2, round(math.sqrt(len(places) + 1)))


def _shares(graph: StepGraph, times: TimeSimulator, places: Sequence[Frontier]) -> list[float]:
    """Where each place lies, as a share of the forward pass's time."""
    ops = sorted(op_id for op_id in graph.forward if op_id <= graph.turn)
    spent = list(itertools.accumulate((times.op_seconds[op_id] for op_id in ops), initial=0.0))
    return [spent[bisect_right(ops, f.op)] / (spent[-1] or 1.0) for f in places]


def _spread(
    places: Sequence[Frontier], shares: Mapping[Frontier, float], parts: int
) -> list[Frontier]:
    """The place nearest to each boundary between that many equal parts."""
    if not places:
        return []
    boundaries = [part / parts for part in range(1, parts)]
    nearest = {min(places, key=lambda f: (abs(shares[f] - b), f.op)) for b in boundaries}
    return sorted(nearest, key=lambda f: f.op)


STRATEGY = Strategy(
    "sqrt_n", "keep about sqrt(n) equally spaced checkpoints (Chen et al.)", Options, plan
)
