"""Where variables and batch lie in the arena before the first step.

A step that its user wrote makes its variables while other tensors come and go (Keras builds a layer
when it is first called, on what the layers before it have made), and what they leave behind are
holes, into which the step's own tensors go, padded. The simulator begins from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from memtrade.target import Places
from memtrade.tf.captured import captures
from memtrade.tf.device import Arena, LocalDevice
from memtrade.tf.extract import Trace, variable_spec
from memtrade.tf.in_place import settle


def places_of(traced: Trace, batch: Sequence[tf.Tensor], device: LocalDevice) -> Places | None:
    """None where that cannot be told: on a GPU, and where little is free."""
    if not isinstance(device, Arena):
        return None
    settle(traced)  # which moves variables, and so comes first
    graph = traced.graph
    outer = {inner.name: outer for inner, outer in captures(traced.concrete)}
    try:
        held = [_offset(outer[graph.label(t)], device) for t in graph.data.captures]
        given = [_offset(t, device) for t in batch]
        free = device.free_pieces()
    except (tf.errors.OpError, BufferError, ValueError, TypeError):
        return None  # too little is free, or a tensor's type is none that Python knows
    return Places(tuple(free), tuple(held), tuple(given))


def _offset(captured: tf.Tensor, device: Arena) -> int:
    """Where the tensor lies, or the value of the variable whose handle it is; -1 of anything else,
    and of what has no bytes."""
    spec = variable_spec(captured)
    if spec is not None:
        captured = tf.raw_ops.ReadVariableOp(resource=captured, dtype=spec.dtype)
    if captured.dtype in (tf.resource, tf.string, tf.variant) or not captured.shape.num_elements():
        return -1
    return device.offset(captured)
