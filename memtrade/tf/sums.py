"""Long sums, group by group: who adds fifty gradients at once holds all fifty.

    x[:, 0] ─► ... ─► dx of 0 ─┐                   AddN of 8 ──┐
    x[:, 1] ─► ... ─► dx of 1 ─┤ AddN              AddN of 8 ─ Add ──┐
       ...                     │                   AddN of 8 ─────── Add ─► ...

A Python loop over `x[:, i]` makes such a sum: of each slice a gradient as large as all of x. The
kernel adds up what is left over by `_WIDTH` first and then that many at a time, so the groups make
the same bits. The step as it came adds them at once, which `parts_of` tells. O(nodes).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from memtrade.tf.graft import graft
from memtrade.tf.nodes import NodeDef, copied, make_node, tensor_name, with_nodes
from memtrade.tf.unroll import shapes_kept

# How many inputs TensorFlow's kernel adds to its output at a time.
_WIDTH = 8
# Smaller parts are not worth more ops.
_ELEMENTS = 1024
_PARTS = "_memtrade_parts"
# Of a group behind the first: the kernel of the whole sum adds it up from left to right.
_LATER = "_memtrade_later"


def in_groups(concrete: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """`concrete`, a function of `specs` that calls nothing, with its long sums in groups."""
    func_graph = concrete.graph
    long = {operation.name for operation in func_graph.get_operations() if _is_long(operation)}
    if not long:
        return concrete
    graph_def = func_graph.as_graph_def()
    nodes = (_groups(node) if node.name in long else [node] for node in graph_def.node)
    made = with_nodes(graph_def, itertools.chain.from_iterable(nodes))
    return graft(concrete, made, specs, on_import=shapes_kept(func_graph)).get_concrete_function()


def parts_of(operation: tf.Operation) -> list[str]:
    """What the step as it came adds at once where this op ends the sum, or nothing."""
    parts = operation.node_def.attr.get(_PARTS)
    return [each.decode() for each in parts.list.s] if parts is not None else []


def is_later_group(node: NodeDef) -> bool:
    """Whether the step as it came does not choose with which part this one begins."""
    return _LATER in node.attr


def _is_long(operation: tf.Operation) -> bool:
    if operation.type != "AddN" or len(operation.inputs) <= _WIDTH + 1:
        return False
    elements = operation.outputs[0].shape.num_elements()
    return operation.outputs[0].dtype.is_floating and (elements or 0) >= _ELEMENTS


def _groups(node: NodeDef) -> list[NodeDef]:
    parts = [each for each in node.input if not each.startswith("^")]
    first = len(parts) % _WIDTH
    ends = range(first if first > 1 else first + _WIDTH, len(parts) + 1, _WIDTH)
    made: list[NodeDef] = []
    total = ""
    for start, end in itertools.pairwise([0, *ends]):
        group = copied(node, f"{node.name}/group{start}", parts[start:end])
        group.attr["N"].i = end - start
        if start:
            group.attr[_LATER].b = True
        made.append(group)
        if total:
            summed, dtype = [total, group.name], tf.as_dtype(node.attr["T"].type)
            name = f"{node.name}/sum{start}"
            made.append(make_node("AddV2", name, summed, device=node.device, T=dtype))
        total = made[-1].name
    made[-1].name = node.name
    made[-1].input.extend(each for each in node.input if each.startswith("^"))
    made[-1].attr[_PARTS].list.s.extend(tensor_name(each).encode() for each in parts)
    return made
