"""ome: checkpoints, of which selected ones are swapped out (optimizer memory efficiency).

After the thesis that this project reproduces: recomputation makes checkpoints few and far apart,
so that there is time to copy one out and back in while others are computed. Which ones are
swapped is a rule (`select`):

    hidable   the gap between its last forward and its first backward reader is long enough for
              the copy both ways, at the device's rates
    read_once what one forward op alone reads: nothing waits for it but its own segment
    largest   the `count` largest
    all, none

A swapped checkpoint costs device memory only around its two uses, so checkpoints may lie closer
than where all are kept: here the segments are as short as the graph allows. What cannot be
recomputed (random numbers, calls that read variables) is swapped by the same rule. With
`rule=openai` the checkpoints are those of OpenAI's tool, and segments come back as it does it:
`memtrade.strategies.bottlenecks`.

Where that leaves more than half of the original's peak, other rules are tried; and where these do,
too, what rests at the peak is swapped meanwhile (`memtrade.strategies.saving`).

It takes what `checkpoints` takes, and O(ops) for the gaps. Not guaranteed: the smallest peak, or
that a hidable copy is hidden. Gaps are those of the original's compute times, and each copy is
looked at as if it were alone.
"""

import dataclasses
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from memtrade.graph import StepGraph
from memtrade.op_types import ALIAS_TYPES, READ_TYPES
from memtrade.options import Checked, option
from memtrade.order import base_order
from memtrade.plan import CHECKPOINT, Fate, Plan
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import checkpoints, lms
from memtrade.strategies.base import (
    Strategy,
    assemble,
    clock_of,
    is_worth_deciding,
    make_plan,
    worth_deciding,
)
from memtrade.strategies.bottlenecks import by_segments
from memtrade.strategies.saving import NoCutError, that_saves
from memtrade.strategies.segments import cuts, useful
from memtrade.target import Target

SELECTIONS = ("hidable", "read_once", "largest", "all", "none")

# Segments may be this much larger than the smallest possible if that spares copies.
SEGMENT_SLACK = 1.05

# Where the checkpoints that it selects by itself leave more of the original's peak than this, other
# rules are tried, too.
ENOUGH = 0.5


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    mode: str = option("memory", "how the checkpoints are chosen", choices=checkpoints.MODES)
    tensors: str = option("", "for mode list: tensor names, separated by commas")
    select: str = option("hidable", "which checkpoints are swapped", choices=SELECTIONS)
    count: int = option(4, "for select largest: how many")
    rule: str = option("leanest", checkpoints.RULE, choices=checkpoints.RULES)


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    if options.rule == "openai":
        roots = sorted({graph.root[t] for t in choose(graph, options, target)})
        decided, actions = by_segments(graph, roots, select(graph, roots, options, target))
        return assemble("ome", graph, options, target, decided, actions)
    if options.mode != "memory":
        return make_plan("ome", graph, options, target, fates(graph, options, target))
    fast = dataclasses.replace(options, mode="speed")
    plain = checkpoints.Options()
    otherwise = [
        lambda: fates(graph, options, target, wide=True),
        lambda: fates(graph, fast, target),
        *checkpoints.otherwise(graph, plain, target),
    ]
    if options.select != "none":
        otherwise.append(lambda: lms.fates(graph, lms.Options()))
    enough = ENOUGH if options.select == "hidable" else 1.0
    return that_saves(
        "ome",
        graph,
        options,
        target,
        lambda: fates(graph, options, target),
        otherwise,
        enough,
        swaps=options.select == "hidable",
    )


def fates(graph: StepGraph, options: Options, target: Target, *, wide: bool = False) -> list[Fate]:
    chosen = choose(graph, options, target, wide=wide)
    lasting = _lasting(graph, chosen)
    swapped = select(graph, chosen, options, target, lasting)
    made = {fate.tensor: fate for fate in checkpoints.fates(graph, chosen)}
    for t in chosen:
        made[t] = Fate(t, "keep", f"{CHECKPOINT}, not {options.select}")
    cannot = set(lasting)
    for t, why in swapped.items():
        what = checkpoints.STATEFUL if t in cannot else CHECKPOINT
        made[t] = Fate(t, "swap", f"{what}, {why}")
    return [made[t] for t in sorted(made)]


def _lasting(graph: StepGraph, chosen: list[int]) -> list[int]:
    """What stateful ops make before the last checkpoint, and clones or the backward part read."""
    last, known = max(chosen, default=-1), {*chosen}
    found = []
    for op_id in sorted(graph.forward):
        op = graph.ops[op_id]
        if not op.stateful or op.type in READ_TYPES:
            continue
        for t in op.outputs:
            again = any(
                c in graph.backward or not known.issuperset(graph.ops[c].outputs)
                for c in graph.readers(t)
            )
            if again and t < last and t not in known and is_worth_deciding(graph, t):
                found.append(t)
    return found


def choose(graph: StepGraph, options: Options, target: Target, *, wide: bool = False) -> list[int]:
    """The checkpoints; in mode memory, those with the smallest segments, cheapest to swap."""
    if options.mode != "memory" or options.select == "none" or options.rule == "openai":
        given = checkpoints.Options(mode=options.mode, tensors=options.tensors, rule=options.rule)
        return checkpoints.choose(graph, given, target, wide=wide)
    choices = cuts(graph, resident=False, wide=wide)
    if not choices:
        raise NoCutError(graph.name)
    smallest = min(cut.backward_bytes for cut in choices)
    fine = [cut for cut in choices if cut.backward_bytes <= SEGMENT_SLACK * smallest]
    cheapest = min(fine, key=lambda cut: cut.checkpoint_bytes)
    return useful(graph, cheapest.checkpoints)


def select(
    graph: StepGraph,
    chosen: list[int],
    options: Options,
    target: Target,
    lasting: Sequence[int] = (),
) -> dict[int, str]:
    """The checkpoints to swap, and of `lasting`, which cannot be recomputed; with the reason."""
    both = sorted([*chosen, *lasting])
    sizes = {t: graph.tensors[t].size_bytes for t in both}
    if options.select == "all":
        return dict.fromkeys(both, "all are swapped")
    if options.select == "largest":
        largest = sorted(chosen, key=lambda t: (-sizes[t], t))[: options.count]
        return dict.fromkeys(sorted(largest), f"one of the {options.count} largest")
    if options.select == "none" or not chosen:
        return {}
    if options.select == "read_once":
        alone = [t for t in both if len(_forward_readers(graph, t)) == 1]
        return dict.fromkeys(alone, "one forward op alone reads it")
    times = clock_of(graph, target)
    gaps = _gap_seconds(times, chosen, both)
    reasons = {}
    for t in both:
        copies = times.out_seconds[t] + times.in_seconds[t]
        if copies <= gaps[t]:
            reasons[t] = f"{1e3 * copies:.1f} ms of copies in a gap of {1e3 * gaps[t]:.1f} ms"
    return reasons


def _forward_readers(graph: StepGraph, tensor: int) -> set[int]:
    """The forward ops that read it or a view of it; views themselves do not count."""
    readers = graph.readers(tensor)
    return {c for c in readers if c in graph.forward and graph.ops[c].type not in ALIAS_TYPES}


def _gap_seconds(times: TimeSimulator, chosen: list[int], tensors: list[int]) -> dict[int, float]:
    """Compute time between the last forward and the first backward use of each of `tensors`."""
    graph = times.graph
    order = base_order(graph)
    position = {op_id: i for i, op_id in enumerate(order)}
    finished = [0.0, *itertools.accumulate(times.op_seconds[op_id] for op_id in order)]
    gaps = {}
    activations = worth_deciding(graph)
    ends = [0, *chosen, len(graph.tensors)]
    for t in tensors:
        # It is needed again as soon as anything of its segment is.
        place = bisect_right(chosen, t)
        start, following = ends[place], ends[place + 1]
        segment = activations[bisect_left(activations, start) : bisect_left(activations, following)]
        readers = [c for a in (t, *segment) for c in graph.readers(a)]
        backward = [position[c] for c in readers if c in graph.backward]
        forward = [position[c] for c in graph.readers(t) if c in graph.forward]
        last = max(forward, default=position[graph.tensors[t].op])
        gap = finished[min(backward)] - finished[last + 1] if backward else 0.0
        gaps[t] = max(0.0, gap)
    return gaps


STRATEGY = Strategy(
    "ome", "checkpoints of which selected ones are swapped to host memory", Options, plan
)
