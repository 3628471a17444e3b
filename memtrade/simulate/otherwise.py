"""A program as it may run, too, with other peaks.

- Tensors whose sizes are only bounded have less: that may leave holes that larger ones take, with
  padding.
- No branch moves variables that may do so.
- A kernel that makes outputs on several threads at once is asked for them in any order: either may
  get the hole that the allocator fills first, and with it goes what is left between them later.
  A cell of an LSTM splits its gates so.

    Split ─┬─► 1 MB, until the next op
           └─► 1 MB, until the step ends
"""

import math
import random
from collections.abc import Iterator

import msgspec

from memtrade.facts.views import viewed
from memtrade.graph import BOUND, StepGraph, once_per_graph
from memtrade.simulate.program import Code, Program

# TensorFlow 2.21's split_op.cc and split_v_op.cc hand each output to a thread from so many outputs
# on, where each has fewer numbers than that; and Eigen's TensorCostModel takes a second thread from
# 210,000 cycles on, one for each number here.
_OUTPUTS, _LEAST, _MOST = 4, 210_000, 180 * 1024
_TYPES = ("Split", "SplitV")
# How many random orders are tried.
_ORDERS = 8
# How much of a bounded tensor there may be, beside all of it.
_SHARES = (0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


def otherwise(program: Program, graph: StepGraph, *, in_order: bool) -> Iterator[Program]:
    """The program in each of these ways.

    Args:
        in_order: whether its kernels ask for their outputs as these are numbered.
    """
    bounded = _bounded(graph)
    for share in _SHARES if bounded else ():
        yield program.shrunk(bounded, share)
    if not in_order:
        yield from _in_other_orders(program, graph)
    if still := program.without_moves:
        yield still


@once_per_graph
def _bounded(graph: StepGraph) -> frozenset[int]:
    return frozenset(graph.sized(BOUND))


@once_per_graph
def made_abreast(graph: StepGraph) -> frozenset[int]:
    """The outputs that are asked for in any order, on a CPU."""
    found: set[int] = set()
    for op in graph.ops:
        if op.type not in _TYPES or len(op.outputs) < _OUTPUTS or viewed(op, graph) is not None:
            continue
        numbers = sum(math.prod(graph.tensors[t].shape or ()) for t in op.outputs)
        if _LEAST <= numbers < len(op.outputs) * _MOST:
            found.update(op.outputs)
    return frozenset(found)


def _in_other_orders(program: Program, graph: StepGraph) -> Iterator[Program]:
    tensors, of = made_abreast(graph), program.tensor_of.__getitem__
    turned = [
        at
        for at, row in enumerate(program.rows)
        if row.code == Code.COMPUTE and not tensors.isdisjoint(map(of, row.outputs))
    ]
    for seed in range(_ORDERS):
        draw, rows = random.Random(seed), [*program.rows]
        for at in turned:
            wanted = draw.sample(rows[at].requests, len(rows[at].requests))
            rows[at] = msgspec.structs.replace(rows[at], requests=wanted)
        yield program._replace(rows=rows)
