"""In which turn the readers of a tensor stand where oneDNN's pass has written some of them anew.

Before a step first runs, TensorFlow's CPU build goes through its graph and puts oneDNN's op in the
place of each that it has a kernel for, behind all others, in the order in which it comes to them:

    dy ─┬─► bias's gradient      dy ─┬─► bias's gradient
        ├─► dx             ──►       ├─► dw, anew         where it came to w first, and so to dx
        └─► dw                       └─► dx, anew         before dw (the later found stands first)

It goes depth first, from what waits for nothing, whose order hangs on addresses: so do the turns,
from process to process. Types, and how it goes: TensorFlow 2.21's own graphs, before and after it,
of steps with all of them (`RunMetadata.function_graphs`). O(ops + edges).
"""

import random
from itertools import chain

from memtrade.graph import Op, StepGraph, once_per_graph

# What has a kernel of oneDNN's, of these numbers.
_WRITTEN_ANEW = frozenset(
    {"AvgPool", "AvgPool3D", "AvgPool3DGrad", "AvgPoolGrad", "BatchMatMul", "BatchMatMulV2",
     "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Conv3D", "Conv3DBackpropFilterV2",
     "Conv3DBackpropInputV2", "DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropFilter",
     "DepthwiseConv2dNativeBackpropInput", "Einsum", "FusedBatchNormGradV3", "FusedBatchNormV3",
     "MatMul", "MaxPool", "MaxPool3D", "MaxPool3DGrad", "MaxPoolGrad", "Softmax", "Transpose"}
)  # fmt: skip
_NUMBERS = frozenset({"bfloat16", "float32"})

_FEW_READERS = 8  # of more, TensorFlow keeps no order


def turns_of(graph: StepGraph, chance: random.Random) -> dict[int, float]:
    """For each op that is written anew, its turn; the others' is their number."""
    found = _finished(graph, chance)
    first = len(graph.ops)
    return {
        op_id: first + place
        for place, op_id in enumerate(reversed(found))
        if _is_written_anew(graph.ops[op_id], graph)
    }


def _is_written_anew(op: Op, graph: StepGraph) -> bool:
    return op.type in _WRITTEN_ANEW and graph.tensors[op.outputs[0]].dtype in _NUMBERS


def _finished(graph: StepGraph, chance: random.Random) -> list[int]:
    """Ops behind all that hang on them, depth first."""
    roots, *readers = (each[:] for each in _roots_and_readers(graph))
    for each in (roots, *(some for some in readers if len(some) > _FEW_READERS)):
        chance.shuffle(each)
    seen, finished = [False] * len(graph.ops), []
    stack = roots
    while stack:
        op_id = stack.pop()
        if op_id < 0:
            finished.append(~op_id)
        elif not seen[op_id]:
            seen[op_id] = True
            stack.append(~op_id)
            stack += [each for each in readers[op_id] if not seen[each]]
    return finished


@once_per_graph
def _roots_and_readers(graph: StepGraph) -> list[list[int]]:
    """The ops that wait for nothing; then, for each op, those that wait for it."""
    readers: list[list[int]] = [[] for _ in graph.ops]
    roots = []
    for op in graph.ops:
        awaited = dict.fromkeys(chain((graph.tensors[t].op for t in op.inputs), op.controls))
        for each in awaited:
            readers[each].append(op.id)
        if not awaited:
            roots.append(op.id)
    return [roots, *readers]
