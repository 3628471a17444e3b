"""What the runtime computes of constants alone and keeps once, because it holds the same.

An unrolled loop takes its row of a mask in each iteration, and as a rule all rows are the same.
Nothing but their values tells, so they are computed, and fingerprints of 8 bytes compared.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.graph import StepGraph, repeats
from memtrade.simulate.constants import alike
from memtrade.simulate.regions import round_up
from memtrade.tf.graft import grafted, ran_once
from memtrade.tf.nodes import NodeDef, make_node, reached, with_nodes

# No peak is below what lies there for good; less of that than this makes no difference to it.
_LITTLE = 0.001


def equal_results(concrete: Any, graph: StepGraph) -> dict[int, int]:
    """Tensors that the runtime computes of constants alone and keeps, and that hold the same as one
    before them -> that one. Nothing is run where they are small.

    Args:
        concrete: the function that `graph` was read from, which calls nothing.
    """
    told, tensors = alike(graph), graph.tensors
    kinds: dict[Hashable, dict[Hashable, int]] = defaultdict(dict)  # of each, what may differ
    for t in sorted(graph.folding.kept):
        kinds[tensors[t].dtype, tensors[t].shape].setdefault(told.get(t, t), t)
    asked = [each for each in kinds.values() if len(each) > 1]
    counted = (t for each in asked for t in each.values())
    counted_bytes = sum(round_up(tensors[t].size_bytes) for t in counted)
    there_bytes = sum(graph.data.capture_bytes) + graph.bytes_of(graph.data.inputs)
    if counted_bytes <= _LITTLE * there_bytes:
        return {}
    wanted = [pair for each in asked for pair in each.items()]
    prints = _fingerprints(concrete, [graph.label(t) for _, t in wanted])
    held = {key: found for (key, _), found in zip(wanted, prints, strict=False)}
    return repeats(
        (t, (tensors[t].dtype, tensors[t].shape, held[told.get(t, t)]))
        for t in sorted(graph.folding.kept)
        if told.get(t, t) in held
    )


def _fingerprints(concrete: Any, names: Sequence[str]) -> list[bytes]:
    """Of each of the tensors `names`, none of which reads an input; none at all where nothing can
    be run, or the device is too small."""
    with tf.init_scope():  # apply is called while a function is being traced
        if not tf.executing_eagerly():
            return []
        return [found.numpy().tobytes() for found in ran_once(_asking(concrete, names))]


def _asking(concrete: Any, names: Sequence[str]) -> Any:
    """A concrete function of nothing that returns their fingerprints."""
    graph_def = concrete.graph.as_graph_def()
    wanted = [concrete.graph.get_tensor_by_name(name) for name in names]
    needed = reached((t.op for t in wanted), lambda op: [t.op for t in op.inputs])
    nodes = [node for node in graph_def.node if node.name in needed]
    for node in nodes:
        node.input[:] = [each for each in node.input if not each.startswith("^")]
    row, method = "memtrade/row", "memtrade/method"
    nodes += [_constant(row, np.array([1, -1], np.int32)), _constant(method, b"farmhash64")]
    asks = [f"memtrade/fingerprint_{i}" for i in range(len(wanted))]
    for name, t in zip(asks, wanted, strict=True):
        whole = make_node("Reshape", f"{name}/whole", [t.name, row], T=t.dtype, Tshape=tf.int32)
        nodes += [whole, make_node("Fingerprint", name, [whole.name, method], T=t.dtype)]
    return grafted(
        with_nodes(graph_def, nodes),
        [],
        names=[],
        captured=tuple,
        structure=[tf.TensorSpec([1, 8], tf.uint8)] * len(asks),
        results=asks,
        effects=[],
    ).get_concrete_function()


def _constant(name: str, value: Any) -> NodeDef:
    array = np.array(value)
    dtype = tf.string if array.dtype.kind == "S" else tf.as_dtype(array.dtype)
    return make_node("Const", name, dtype=dtype, value=array)
