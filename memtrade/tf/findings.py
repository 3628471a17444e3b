"""The front gate: what a step holds that TensorFlow's graph alone shows, and what is refused."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from memtrade.errors import MemtradeError
from memtrade.findings import Finding, of_graph
from memtrade.op_types import CALL_TYPES, PYTHON_TYPES
from memtrade.parts import COLLECTIVES
from memtrade.tf.inline import by_xla, functions_named, functions_with

# Ops that write into their input, which others may read.
_IN_PLACE_TYPES = frozenset(
    {"AliasInplaceAdd", "AliasInplaceSub", "AliasInplaceUpdate", "InplaceAdd", "InplaceSub",
     "InplaceUpdate"}
)  # fmt: skip

# What TensorFlow finds as the gradient of a call of a rewritten step.
REWRITTEN = "MemtradeRewrittenStep"

# Kind, which ops, and why a step with one is not rewritten.
_REFUSED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "in-place ops",
        lambda node: node.op in _IN_PLACE_TYPES,
        "writes into a tensor that others read, so nothing may run in another order: use "
        "tf.tensor_scatter_nd_update, or a tf.Variable",
    ),
    (
        "rewritten steps",
        lambda node: node.op in CALL_TYPES and _gradient_of(node) == REWRITTEN,
        "is a step that memtrade.apply made, which runs as it was planned: apply it to the step "
        "around, with the one inside as it was",
    ),
)


def refusals(graph_def: Any) -> Iterator[Finding]:
    """What would not be the same after a rewriting, a finding for each kind."""
    nodes = list(_nodes(graph_def))
    for what, is_meant, why in _REFUSED:
        found = [node for node in nodes if is_meant(node)]
        if found:
            name, kind = found[0].name, found[0].op
            where = repr(name) if name == kind else f"{name!r} ({kind})"
            yield Finding(what, len(found), where, why, refused=True)


def _gradient_of(node: Any) -> str:
    """What a node says its gradient is; asked of one without, protobuf would write it there."""
    kind = "_gradient_op_type"
    return node.attr[kind].s.decode() if kind in node.attr else ""


def meeting_nodes(graph_def: Any) -> dict[str, dict[str, bool]]:
    """The nodes that run a function (a branch, a loop) with collectives in it, or a function that
    calls one, and the attribute that says so."""
    meeting = functions_with(
        graph_def.library.function, lambda node: node.op.startswith(COLLECTIVES)
    )
    return {
        node.name: {"collective": True}
        for node in graph_def.node
        if not meeting.isdisjoint(functions_named(node))
    }


def of_trace(graph_def: Any, traced: Callable[[], Any], arguments: Iterable[Any]) -> list[Finding]:
    """All findings. `traced` makes the Trace; it is not called for a step that is refused."""
    found = list(refusals(graph_def))
    if not found:
        try:
            found = of_graph(traced().graph)
        except MemtradeError as error:
            found = [Finding("step", 1, "", str(error), refused=True)]
    devices = {node.device for node in _nodes(graph_def) if node.device}
    if len(devices) > 1:
        follows = "what each computes is planned by itself, and they meet in the order they have"
        found.append(Finding("several devices", len(devices), min(devices), follows))
    collectives = [node for node in _nodes(graph_def) if node.op.startswith(COLLECTIVES)]
    if collectives:
        follows = "they run once, in the order they have, which is the same on all replicas"
        found.append(Finding("collectives", len(collectives), collectives[0].name, follows))
    python = [node for node in _nodes(graph_def) if node.op in PYTHON_TYPES]
    if python:
        follows = (
            "they run once, where the step has them; what they take, nobody foresees: peaks are "
        )
        follows += "about that, and the step is not rehearsed"
        found.append(Finding("Python calls", len(python), python[0].name, follows))
    compiled = [f for f in graph_def.library.function if by_xla(f)]
    if compiled:
        follows = "a plan holds outside of them; of the whole step, jit_compile is turned off"
        name = compiled[0].signature.name
        found.append(Finding("functions for XLA", len(compiled), name, follows))
    variables = [each for each in arguments if isinstance(each, tf.Variable)]
    if variables:
        follows = "each call hands them on, and they are updated where they are"
        name = variables[0].name
        found.append(Finding("variables as arguments", len(variables), name, follows))
    return found


def _nodes(graph_def: Any) -> Iterable[Any]:
    bodies = (function.node_def for function in graph_def.library.function)
    return itertools.chain(graph_def.node, *bodies)
