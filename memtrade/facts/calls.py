"""What is known of a function that XLA compiles and that so stays one op of the graph.

Keras compiles convolutions in groups by themselves where there is no GPU. XLA for CPU makes the
gradient of their filter as if each channel of the images met each of the output, and keeps but the
diagonal blocks: of ConvNeXt's step that is most of the time, and hundreds of MB for a moment.
Measured with TensorFlow 2.21, filters of 7 x 7 over 96 to 768 channels, each on its own, and of
3 x 3 over 64 and 96, in four groups.
"""

import math
from typing import NamedTuple

from memtrade.facts.kernel import Request
from memtrade.graph import Op, StepGraph


class DenseFilter(NamedTuple):
    """A filter as XLA writes it out. `places`: where it is applied to the images."""

    size_bytes: int
    elements: int
    places: int


def body_requests(op: Op, graph: StepGraph) -> tuple[Request, ...]:
    """Of a loop or a branch: what it hands on, which may be what it was given, and its body's own
    (`memtrade/tf/sizes.py`)."""
    a_loop = len(op.inputs) == len(op.outputs)
    made = []
    for i, t in enumerate(op.outputs):
        if i in op.attrs.get("handed", ()):  # the input's own buffer
            continue
        size = graph.tensors[t].size_bytes
        same = a_loop and graph.tensors[op.inputs[i]].size_bytes == size
        made.append(Request(size, i, (i,) if same else ()))
    relief = tuple((most_bytes, position) for most_bytes, position in op.attrs.get("relief", ()))
    return (*made, Request(op.attrs["scratch_bytes"], relief=relief))


def call_scratch_bytes(op: Op, graph: StepGraph) -> int:
    """What the kernel of a call takes for itself while it runs: the filter is there twice, or once
    beside the larger of the images and their gradient in XLA's layout."""
    dense = dense_filter(op, graph)
    if dense is None:
        return 0
    largest = max(graph.tensors[t].size_bytes for t in op.inputs)
    filters = graph.tensors[op.inputs[op.attrs["filter"]]].size_bytes
    return max(2 * dense.size_bytes, largest + filters)


def dense_filter(op: Op, graph: StepGraph) -> DenseFilter | None:
    """Of a call that makes the gradient of a convolution in groups; else None."""
    if not op.attrs.get("filter_gradient"):
        return None
    filters = graph.tensors[op.inputs[op.attrs["filter"]]]
    images = graph.tensors[op.inputs[op.attrs["images"]]]
    if not filters.shape or not images.shape or filters.shape[-2] == images.shape[-1]:
        return None
    channels = images.shape[-1]
    groups = channels // filters.shape[-2]
    return DenseFilter(
        groups * filters.size_bytes,
        groups * math.prod(filters.shape),
        math.prod(images.shape) // channels,
    )
