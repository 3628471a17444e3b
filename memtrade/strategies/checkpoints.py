"""checkpoints: keep a few activations, recompute the others from them (OpenAI's way).

After T. Salimans and Y. Bulatov, gradient-checkpointing (2018), which follows Chen et al.,
"Training deep nets with sublinear memory cost", 2016, arXiv 1604.06174. The modes are theirs:

    memory      narrow places of the forward pass (bottlenecks), about sqrt(n) of them
    speed       the outputs of convolutions and matrix products
    collection  the tensors that the model or the user named (the graph collection "checkpoints")
    list        the tensors given by the option `tensors`

Where we differ: narrow places are found by liveness in one sweep, so residual networks have them,
and so have U-Nets, several tensors wide; `memory` takes, instead of every sqrt(n)-th one, the
choice with the smallest simulated peak, which is what the rule approximates for equal layers;
each clone runs just before its first reader; what follows the last checkpoint is kept, as its
gradient comes at once. With `rule=openai` the tool's own rule decides all that: see
`memtrade.strategies.bottlenecks`.

Mode memory takes O(ops + edges) for the narrow places, O(places^2) for each of some 50 limits
(`segments.cuts`), and a walk over the program for each of `JUDGED` choices. Not guaranteed: the
smallest peak. Only narrow places are looked at, segments come back whole, and live bytes decide,
without what an allocator adds.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial

from memtrade.errors import MemtradeError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.options import Checked, option
from memtrade.plan import CHECKPOINT, Fate, Plan
from memtrade.schedule import lower
from memtrade.strategies.base import (
    Strategy,
    assemble,
    clock_of,
    decisions,
    make_plan,
    worth_deciding,
)
from memtrade.strategies.bottlenecks import Trained, by_segments
from memtrade.strategies.saving import Decide, NoCutError, that_saves
from memtrade.strategies.segments import cuts, useful
from memtrade.target import Target

# Ops that take long to run again, for mode "speed".
EXPENSIVE_TYPES = frozenset(
    {"BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Einsum", "MatMul"}
)
# Of the choices with the smallest estimate, so many are simulated.
JUDGED = 8

# Why an activation between checkpoints is kept.
STATEFUL = "its op is stateful"

MODES = ("memory", "speed", "collection", "list")
RULES = ("leanest", "openai")
RULE = (
    "by whose rule: the smallest simulated peak, or every sqrt(n)-th bottleneck, as OpenAI's tool"
)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    mode: str = option("memory", "how the checkpoints are chosen", choices=MODES)
    tensors: str = option("", "for mode list: tensor names, separated by commas")
    rule: str = option("leanest", RULE, choices=RULES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.mode == "list") != bool(self.tensors):
            raise MemtradeError(
                "mode 'list' and the option 'tensors' go together: "
                "give mode=list tensors=name,name,..."
            )


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    if options.rule == "openai":
        decided_by_rule, actions = by_segments(graph, choose(graph, options, target), {})
        return assemble("checkpoints", graph, options, target, decided_by_rule, actions)

    def decided() -> list[Fate]:
        return fates(graph, choose(graph, options, target))

    if options.mode != "memory":
        return make_plan("checkpoints", graph, options, target, decided())
    return that_saves(
        "checkpoints", graph, options, target, decided, otherwise(graph, options, target)
    )


def otherwise(graph: StepGraph, options: Options, target: Target) -> list[Decide]:
    """What else there is, where no narrow place saves: wide ones, the rule of mode speed, and the
    plain rule of sqrt(n), some activations of many."""
    root = math.isqrt(len(worth_deciding(graph)))
    fast = dataclasses.replace(options, mode="speed")
    return [
        lambda: fates(graph, choose(graph, options, target, wide=True)),
        lambda: fates(graph, choose(graph, fast, target)),
        *(partial(_spread, graph, count) for count in sorted({root // 2, root, 2 * root} - {0})),
    ]


def _spread(graph: StepGraph, count: int) -> list[Fate]:
    """`count` activations with as many bytes between each two."""
    activations, kept, passed = worth_deciding(graph), [], 0
    total = graph.bytes_of(activations)
    for t in activations:
        passed += graph.tensors[t].size_bytes
        if passed * (count + 1) >= total * (len(kept) + 1):
            kept.append(t)
    return fates(graph, kept[:count])


def choose(graph: StepGraph, options: Options, target: Target, *, wide: bool = False) -> list[int]:
    """The checkpoints, in forward order. Raises where a mode finds none."""
    activations = worth_deciding(graph)
    if options.mode == "memory" and options.rule == "openai":
        return Trained(graph).checkpoints()
    if options.mode == "memory":
        choices = cuts(graph, resident=True, wide=wide)
        if not choices:
            raise NoCutError(graph.name)
        simulator = clock_of(graph, target).simulator
        best = min(
            choices[:JUDGED],
            key=lambda cut: simulator.peak_live_bytes(
                lower(graph, decisions(fates(graph, list(cut.checkpoints))))
            ),
        )
        return useful(graph, best.checkpoints)
    if options.mode == "speed":
        return [t for t in activations if graph.ops[graph.tensors[t].op].type in EXPENSIVE_TYPES]
    if options.mode == "collection":
        named, source = list(graph.data.collection), "the collection 'checkpoints'"
    else:
        named, source = graph.find(options.tensors.split(",")), "the option 'tensors'"
    chosen = {graph.root[t] for t in named}
    chosen = {t for t in chosen if graph.tensors[t].op in graph.forward}
    if not chosen:
        raise UnsupportedGraphError(
            f"{source} names no forward tensor of {graph.name}: `memtrade plan` lists them"
        )
    return sorted(chosen)


def fates(graph: StepGraph, checkpoints: list[int]) -> list[Fate]:
    """Keep the checkpoints and what follows the last one; recompute the rest."""
    chosen, last = set(checkpoints), max(checkpoints, default=-1)
    made = []
    for t in sorted(chosen.union(worth_deciding(graph))):
        if t in chosen:
            made.append(Fate(t, "keep", CHECKPOINT))
        elif t > last:
            made.append(Fate(t, "keep", "after the last checkpoint"))
        elif graph.ops[graph.tensors[t].op].stateful:
            made.append(Fate(t, "keep", STATEFUL))
        else:
            made.append(Fate(t, "recompute", "between checkpoints"))
    return made


STRATEGY = Strategy(
    "checkpoints", "OpenAI's gradient-checkpointing: recompute between checkpoints", Options, plan
)
