"""A step with fewer examples, as far as one trace tells: what it takes, and how many would fit.

A tensor grows with the batch where its first dimension is a multiple of it, or its second is it
(time before examples); but not one that has the shape of a weight, such as its gradient.
"""

import math

import msgspec

from memtrade.graph import StepGraph, Tensor
from memtrade.op_types import READ_TYPES


def with_batch(graph: StepGraph, batch: int, smaller: int) -> StepGraph:
    """The graph of `batch` examples, with `smaller` in their place."""
    weights = {
        graph.tensors[t].shape for op in graph.ops if op.type in READ_TYPES for t in op.outputs
    }
    tensors = tuple(
        each if each.shape in weights else _resized(each, batch, smaller) for each in graph.tensors
    )
    return StepGraph(msgspec.structs.replace(graph.data, tensors=tensors))


def fitting_batch(room_bytes: int, batch: int, peak: int, smaller: int, its_peak: int) -> int:
    """About the largest batch for which there is room, on a line through two peaks in bytes; 0
    where not even one example fits.

    >>> fitting_batch(70, batch=8, peak=90, smaller=4, its_peak=50)
    6
    """
    each = (peak - its_peak) / (batch - smaller)
    left = room_bytes - (peak - each * batch)
    return max(0, min(int(left / each), batch - 1)) if each > 0 else 0


def _resized(tensor: Tensor, batch: int, smaller: int) -> Tensor:
    shape = tensor.shape
    if not shape or not tensor.size_bytes:
        return tensor
    if shape[0] and shape[0] % batch == 0:
        resized = (shape[0] // batch * smaller, *shape[1:])
    elif len(shape) > 1 and shape[1] == batch:
        resized = (shape[0], smaller, *shape[2:])
    else:
        return tensor
    size_bytes = tensor.size_bytes * math.prod(resized) // math.prod(shape)
    return msgspec.structs.replace(tensor, shape=resized, size_bytes=size_bytes)
