"""lms: swap activations to host memory (IBM's Large Model Support, TFLMS v1).

After Le et al., "TFLMS: Large model support in TensorFlow by graph rewriting", 2018, arXiv
1807.02037, with the options of its version 1:

    n_tensors          how many activations to swap, in forward order; -1 means all
    lb, ub             a swap-in starts at least `lb` and at most `ub` backward ops before its
                       reader
    ctrld_strategy     how the op that starts it is found. direct_order: `lb` ops earlier in the
                       program. chain_rule: go `lb` levels forward from the tensor's op; a gradient
                       op that belongs to what is found there, within the bounds
    fuse_swapins       swap-ins that start close to one another start together
    swap_branches      also swap between far-apart forward readers (long skip connections);
    branch_threshold   "far" means more than this many ops
    incl/excl_types    only these op types' outputs, or all but these (comma-separated)
    incl/excl_scopes   likewise by the prefix of the op's name

Where we differ: levels count ops on the longest path; a pinned order makes "ops before" exact; a
tensor comes back once for all that read it.

`rule=tflms` does as the tool does:

    which              what a gradient op reads, however small, but outputs of `SPARED` types
    in which order     breadth first from the starting ops, which counts for n_tensors; only what is
                       reached from there. They are those under starting_scope or named by
                       starting_op_names, or else those that reach most
    optimizer_scopes   name prefixes of the gradient ops; else what descends from the loss
    how often          a swap-in per reader; with fuse_swapins, one for all
    chain_rule         goes on by levels until it finds an op before the reader

O(ops + edges) to choose, O(actions + swaps x lb) to place the swap-ins. Not guaranteed: that a
copy ends in time, or that the peak falls. The rules ask neither a clock nor an allocator: how many
and how early is the user's to say.

There, too, a tensor's second copy comes no earlier than the reader of the first has run. The
tool's cpu_device and debug levels have no counterpart: `memtrade plan` lists what is swapped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from memtrade.errors import MemtradeError, UnsupportedGraphError
from memtrade.graph import Op, StepGraph, reached
from memtrade.op_types import ALIAS_TYPES, READ_TYPES, SOURCE_TYPES
from memtrade.options import Checked, option
from memtrade.plan import Action, Fate, Plan
from memtrade.schedule import Lowering, lower
from memtrade.strategies.base import Strategy, assemble, decisions, worth_deciding
from memtrade.target import Target

CONTROLS = ("chain_rule", "direct_order")
RULES = ("leanest", "tflms")
RULE = "whose: one swap-in for all readers of a large tensor, or TFLMS's, one for each of any"

# TFLMS's ATOMIC_TYPES, as TensorFlow 2 names them.
SPARED = ALIAS_TYPES | SOURCE_TYPES | READ_TYPES | {"Add", "AddV2", "Mul", "Shape", "ShapeN"}

_TOOLS_OWN = ("optimizer_scopes", "starting_scope", "starting_op_names")

# Swap-ins that start within this many backward ops of one another count as close.
FUSE_OPS = 5


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    n_tensors: int = option(-1, "how many activations to swap; -1 means all", at_least=-1)
    lb: int = option(1, "a swap-in starts at least this many backward ops before its reader")
    ub: int = option(10000, "a swap-in starts at most this many backward ops before its reader")
    ctrld_strategy: str = option("chain_rule", "how the op is found", choices=CONTROLS)
    fuse_swapins: bool = option(False, "close swap-ins start together")
    swap_branches: bool = option(False, "also swap between forward readers that lie far apart")
    branch_threshold: int = option(0, "ops between such readers", at_least=0)
    incl_types: str = option("", "swap only outputs of these op types (comma-separated)")
    excl_types: str = option("", "swap no outputs of these op types")
    incl_scopes: str = option("", "swap only outputs of ops under these name prefixes")
    excl_scopes: str = option("", "swap no outputs of ops under these name prefixes")

    rule: str = option("leanest", RULE, choices=RULES)
    optimizer_scopes: str = option("", "for rule tflms: name prefixes of the gradient ops")
    starting_scope: str = option("", "for rule tflms: a name prefix of the ops to start from")
    starting_op_names: str = option("", "for rule tflms: names of ops to start from")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lb > self.ub:
            raise MemtradeError(f"lb must not exceed ub: lb is {self.lb}, ub is {self.ub}")
        named = [name for name in _TOOLS_OWN if getattr(self, name)]
        if named and self.rule != "tflms":
            raise MemtradeError(f"{named[0]} is the tool's own: give rule=tflms, too")


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    decided = fates(graph, options)
    each = options.rule == "tflms" and not options.fuse_swapins
    lowering = Lowering(
        fleeting=frozenset(f.tensor for f in decided if each and f.decision == "swap"),
        branch_threshold=options.branch_threshold if options.swap_branches else None,
    )
    actions = lower(graph, decisions(decided), lowering)
    if options.rule == "tflms":
        actions = _views_stay(graph, actions)
    made = assemble("lms", graph, options, target, decided, start_early(graph, actions, options))
    return msgspec.structs.replace(made, remarks=tuple(_in_vain(graph, options)))


def _views_stay(graph: StepGraph, actions: Sequence[Action]) -> tuple[Action, ...]:
    """What reads a view of a tensor that left goes on reading the view: TFLMS knows no views."""
    found: list[Action] = []
    for action in actions:
        if action.kind == "recompute" and graph.ops[action.id].type in ALIAS_TYPES:
            if found[-1] == Action("swap_in", graph.ops[action.id].inputs[0]):
                found.pop()
            continue
        found.append(action)
    return tuple(found)


def candidates(graph: StepGraph, options: Options) -> list[int]:
    """The tensors that could be swapped, in the order in which they count."""
    return visited(graph, options) if options.rule == "tflms" else worth_deciding(graph)


def fates(graph: StepGraph, options: Options) -> list[Fate]:
    made, left = {}, options.n_tensors
    for t in candidates(graph, options):
        reason = _excluded(graph, t, options)
        if reason or left == 0:
            made[t] = Fate(t, "keep", reason or f"after the first {options.n_tensors}")
        else:
            made[t] = Fate(t, "swap", "activation")
            left -= 1
    for t in graph.activations if options.rule == "tflms" else ():
        made.setdefault(t, Fate(t, "keep", "TFLMS spares it, or does not come to it"))
    return [made[t] for t in sorted(made)]


def visited(graph: StepGraph, options: Options) -> list[int]:
    """The tensors that TFLMS takes, in the order in which it comes to them. O(ops + edges), and as
    much for each place where it could start.

    Raises:
        UnsupportedGraphError: nothing is found under a scope or a name.
    """
    scopes = _listed(options.optimizer_scopes)
    gradients = graph.backward
    if scopes:
        gradients = frozenset(_found(graph, "optimizer_scopes", scopes, _under))

    def taken(op_id: int) -> list[int]:
        op = graph.ops[op_id]
        if op_id in gradients or op.type in SPARED or op_id == graph.turn:
            return []
        return [
            t
            for t in op.outputs
            if graph.is_intermediate(t)
            and any(c in gradients and graph.ops[c].outputs for c in graph.consumers[t])
        ]

    def following(op_id: int) -> list[int]:
        readers = (c for t in graph.ops[op_id].outputs for c in graph.consumers[t])
        return sorted({c for c in readers if c not in gradients})

    seeds = [
        *_found(graph, "starting_scope", _listed(options.starting_scope), _under),
        *_found(graph, "starting_op_names", _listed(options.starting_op_names), str.__eq__),
    ]
    if not seeds:
        first = _first([op.id for op in graph.ops if taken(op.id)], following)
        reach = {op_id: sum(bool(taken(c)) for c in reached([op_id], following)) for op_id in first}
        seeds = [op_id for op_id in first if reach[op_id] == max(reach.values())]
    return [t for op_id in reached(seeds, following) for t in taken(op_id)]


def _first(candidates: Sequence[int], following: Callable[[int], list[int]]) -> list[int]:
    """Those that no other leads to. `candidates` are in a topological order."""
    behind: set[int] = set()
    found = []
    for op_id in candidates:
        if op_id not in behind:
            found.append(op_id)
            behind.update(reached([op_id], following))
    return found


def _found(
    graph: StepGraph, what: str, words: Sequence[str], fits: Callable[[str, str], bool]
) -> list[int]:
    """The ops that an option names. Raises UnsupportedGraphError where a word names none."""
    found: dict[int, None] = {}
    for word in words:
        ops = [op.id for op in graph.ops if fits(op.name, word)]
        if not ops:
            raise UnsupportedGraphError(
                f"{what} names no op of {graph.name}: {word!r}; `memtrade plan` lists the names"
            )
        found.update(dict.fromkeys(ops))
    return list(found)


def _listed(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def _under(name: str, scope: str) -> bool:
    return name == scope or name.startswith(f"{scope.rstrip('/')}/")


# The options that choose by what an op is.
_CHOOSING = ("excl_types", "incl_types", "excl_scopes", "incl_scopes")


def _fits(option: str, op: Op, word: str) -> bool:
    return op.type == word if option.endswith("types") else _under(op.name, word)


def _excluded(graph: StepGraph, tensor: int, options: Options) -> str:
    """Why the options keep this tensor on the device, or nothing."""
    op = graph.ops[graph.tensors[tensor].op]
    for name in _CHOOSING:
        words = getattr(options, name)
        included = name.startswith("incl")
        if words and any(_fits(name, op, word) for word in _listed(words)) != included:
            what = f"op type {op.type}" if name.endswith("types") else "its scope"
            return f"{what} is {'not included' if included else 'excluded'}"
    return ""


def _in_vain(graph: StepGraph, options: Options) -> list[str]:
    """The words of options that choose nothing, such as a type that no op of the graph has."""
    words = [(name, word) for name in _CHOOSING for word in _listed(getattr(options, name))]
    ids = candidates(graph, options) if words else []
    ops = [graph.ops[graph.tensors[t].op] for t in ids]
    return [
        f"{name} names nothing that could be swapped: {word!r}"
        for name, word in words
        if not any(_fits(name, op, word) for op in ops)
    ]


def start_early(
    graph: StepGraph, actions: tuple[Action, ...], options: Options
) -> tuple[Action, ...]:
    """Moves each backward swap-in to the op that starts it. O(actions + swaps * lb)."""
    turn = max(
        i
        for i, action in enumerate(actions)
        if action.kind == "swap_out" or (action.kind == "run" and action.id in graph.forward)
    )
    rank: dict[int, int] = {}  # backward op -> how many backward ops run before it
    begun: list[tuple[int, Action]] = []  # (backward ops before its start, swap-in)
    earlier: dict[int, int] = {}  # tensor -> when the reader of its copy before this one has run
    for action in actions[turn + 1 :]:
        if action.kind == "run":
            rank[action.id] = len(rank)
        elif action.kind == "swap_in":
            start = _start(graph, action.id, rank, options)
            begun.append((max(start, earlier.get(action.id, 0)), action))
            earlier[action.id] = len(rank) + 1
    starts: dict[int, list[Action]] = {}
    group = -FUSE_OPS - 1
    close = options.fuse_swapins and options.rule != "tflms"
    for start, action in sorted(begun, key=lambda each: each[0]):
        fused = close and start - group <= FUSE_OPS
        group = group if fused else start
        starts.setdefault(group, []).append(action)
    result = [*actions[: turn + 1], *starts.get(0, ())]
    for action in actions[turn + 1 :]:
        if action.kind != "swap_in":
            result.append(action)
        if action.kind == "run":
            result.extend(starts.get(rank[action.id] + 1, ()))
    return tuple(result)


def _start(graph: StepGraph, tensor: int, rank: dict[int, int], options: Options) -> int:
    """How many backward ops run before the swap-in of `tensor`, whose reader follows `rank`'s ops.

    By the chain rule: those up to the gradient of an op `lb` levels ahead, or, as TFLMS goes on,
    of one on the next level that has one.
    """
    earliest, latest = max(0, len(rank) - options.ub), max(0, len(rank) - options.lb)
    if options.ctrld_strategy == "direct_order":
        return latest
    frontier, level = {graph.tensors[tensor].op}, 0
    while frontier:
        made = (t for op_id in frontier for t in graph.ops[op_id].outputs)
        readers = [c for t in made for c in graph.consumers[t]]
        if level >= options.lb:
            gradients = [rank[c] + 1 for c in readers if c in rank]
            within = [start for start in gradients if earliest <= start <= latest]
            if within or options.rule != "tflms":
                return max(within, default=latest)
        frontier = {c for c in readers if c in graph.forward}
        level += 1
    return latest


STRATEGY = Strategy("lms", "IBM's TFLMS: swap activations to host memory", Options, plan)
