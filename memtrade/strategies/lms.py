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

Where we differ: levels count ops on the longest path; a pinned order makes "ops before" exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.options import check, option, options_of
from memtrade.plan import Action, Fate, Plan
from memtrade.schedule import Lowering, lower
from memtrade.strategies.base import Strategy, assemble, decisions, worth_deciding
from memtrade.target import Target

CONTROLS = ("chain_rule", "direct_order")

# Swap-ins that start within this many backward ops of one another count as close.
FUSE_OPS = 5


@dataclass(frozen=True, kw_only=True)
class Options:
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

    def __post_init__(self) -> None:
        for each in options_of(type(self)):
            check(each, getattr(self, each.name))
        if self.lb > self.ub:
            raise MemtradeError(f"lb must not exceed ub: lb is {self.lb}, ub is {self.ub}")


def plan(graph: StepGraph, options: Options, target: Target) -> Plan:
    lowering = Lowering(
        branch_threshold=options.branch_threshold if options.swap_branches else None
    )
    decided = fates(graph, options)
    actions = lower(graph, decisions(decided), lowering)
    return assemble("lms", graph, options, target, decided, start_early(graph, actions, options))


def fates(graph: StepGraph, options: Options) -> list[Fate]:
    made, left = [], options.n_tensors
    for t in worth_deciding(graph):
        reason = _excluded(graph, t, options)
        if reason or left == 0:
            made.append(Fate(t, "keep", reason or f"after the first {options.n_tensors}"))
        else:
            made.append(Fate(t, "swap", "activation"))
            left -= 1
    return made


def _excluded(graph: StepGraph, tensor: int, options: Options) -> str:
    op = graph.ops[graph.tensors[tensor].op]

    def listed(words: str) -> list[str]:
        return [word.strip() for word in words.split(",") if word.strip()]

    def under(scopes: str) -> bool:
        return any(op.name == s or op.name.startswith(f"{s.rstrip('/')}/") for s in listed(scopes))

    if op.type in listed(options.excl_types):
        return f"op type {op.type} is excluded"
    if options.incl_types and op.type not in listed(options.incl_types):
        return f"op type {op.type} is not included"
    if under(options.excl_scopes):
        return "its scope is excluded"
    if options.incl_scopes and not under(options.incl_scopes):
        return "its scope is not included"
    return ""


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
    waiting: list[tuple[int, Action]] = []  # (backward ops before its start, swap-in)
    for action in actions[turn + 1 :]:
        if action.kind == "run":
            rank[action.id] = len(rank)
        elif action.kind == "swap_in":
            waiting.append((len(rank), action))
    starts: dict[int, list[Action]] = {}
    group = -FUSE_OPS - 1
    for start, action in sorted(
        ((_start(graph, action.id, reader, rank, options), action) for reader, action in waiting),
        key=lambda each: each[0],
    ):
        fused = options.fuse_swapins and start - group <= FUSE_OPS
        group = group if fused else start
        starts.setdefault(group, []).append(action)
    result = [*actions[: turn + 1], *starts.get(0, ())]
    for action in actions[turn + 1 :]:
        if action.kind != "swap_in":
            result.append(action)
        if action.kind == "run":
            result.extend(starts.get(rank[action.id] + 1, ()))
    return tuple(result)


def _start(
    graph: StepGraph, tensor: int, reader: int, rank: dict[int, int], options: Options
) -> int:
    """How many backward ops run before the swap-in of `tensor`, which op `reader` reads."""
    earliest, latest = max(0, reader - options.ub), max(0, reader - options.lb)
    if options.ctrld_strategy == "direct_order":
        return latest
    found = _chain_rule(graph, tensor, rank, options.lb, earliest, latest)
    return latest if found is None else found


def _chain_rule(
    graph: StepGraph, tensor: int, rank: dict[int, int], lb: int, earliest: int, latest: int
) -> int | None:
    """The backward ops that have run when the gradient of an op `lb` levels ahead has."""
    frontier = {graph.tensors[tensor].op}
    for _ in range(lb):
        frontier = {
            c
            for op_id in frontier
            for t in graph.ops[op_id].outputs
            for c in graph.consumers[t]
            if c in graph.forward
        }
    gradients = [
        rank[c] + 1
        for op_id in frontier
        for t in graph.ops[op_id].outputs
        for c in graph.consumers[t]
        if c in rank and earliest <= rank[c] + 1 <= latest
    ]
    return max(gradients, default=None)


STRATEGY = Strategy("lms", "IBM's TFLMS: swap activations to host memory", Options, plan)
