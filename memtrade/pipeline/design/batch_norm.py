"""Batch norm's moving averages in a step's graph: what deferring their update takes to know.

torchgpipe's deferred batch norm (Kim et al. 2020, arXiv 2004.09910, `DeferredBatchNorm` of its
code) normalizes each micro-batch by itself, sums its statistics up, and moves the averages once per
batch, so that they follow the batch's size and not the micro-batch's. With m micro-batches of n
elements per channel each, the whole batch's are, up to rounding,

    mean = sum(mean_i) / m              variance over N = sum(var_i + mean_i^2) / m - mean^2

The averaged variance is over N - 1, N = m n, as TensorFlow's op gives it for a whole batch;
torchgpipe's is over N.
"""

import math
from dataclasses import dataclass

from memtrade.graph import StepGraph
from memtrade.op_types import SOURCE_TYPES

_NORM, _UPDATE = "FusedBatchNormV3", "AssignSubVariableOp"
_MEAN, _VARIANCE = 1, 2  # outputs of the op


@dataclass(frozen=True)
class MovingAverage:
    """One moving average and its update. Ids are the graph's.

    Attributes:
        update: the op that moves it.
        variable: the tensor of its handle.
        mean: the tensor of the batch's mean.
        variance: of the batch's variance, where it is that which is averaged.
        elements: of the batch, per channel.
        ops: between the batch's statistics and the update, for it alone.
    """

    update: int
    variable: int
    mean: int
    variance: int | None
    elements: int
    ops: tuple[int, ...]


def moving_averages(graph: StepGraph) -> dict[int, MovingAverage]:
    """The moving averages by the ops that update them, means before variances."""
    found = {}
    for op in graph.ops:
        if op.type == _UPDATE and op.id not in graph.backward:
            average = _average(graph, op.id)
            if average is not None:
                found[op.id] = average
    return dict(sorted(found.items(), key=lambda each: each[1].variance is not None))


def _average(graph: StepGraph, update: int) -> MovingAverage | None:
    """What the update averages, if that is a statistic of a batch norm alone."""
    between, statistics = [], set()
    variable, *stack = graph.ops[update].inputs
    while stack:
        t = graph.tensors[stack.pop()]
        producer = graph.ops[t.op]
        if producer.type == _NORM:
            statistics.add(t.id)
        elif producer.type not in SOURCE_TYPES:
            between.append(producer.id)
            stack.extend(producer.inputs)
    if len(statistics) != 1:
        return None
    (statistic,) = statistics
    norm = graph.ops[graph.tensors[statistic].op]
    if graph.tensors[statistic].index not in (_MEAN, _VARIANCE):
        return None
    x, channels = (graph.tensors[t].shape or () for t in norm.inputs[:2])
    own = {update, *between}
    return MovingAverage(
        update=update,
        variable=variable,
        mean=norm.outputs[_MEAN],
        variance=statistic if graph.tensors[statistic].index == _VARIANCE else None,
        elements=math.prod(x) // math.prod(channels),
        ops=tuple(
            op_id
            for op_id in sorted(between)
            if all(c in own for t in graph.ops[op_id].outputs for c in graph.consumers[t])
        ),
    )
