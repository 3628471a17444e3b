"""Where variables and batch lie in the arena before the first step.

A step that its user wrote makes its variables while other tensors come and go (Keras builds a layer
when it is first called, on what the layers before it have made), and what they leave behind are
holes, into which the step's own tensors go, padded. The simulator begins from there.
"""

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from memtrade.target import SOMEWHERE, Places
from memtrade.tf.captured import captures, variable_spec
from memtrade.tf.device import Arena, LocalDevice
from memtrade.tf.extract import Trace
from memtrade.tf.in_place import settle
from memtrade.tf.moving import aside, movables, move_together


def lay_out(traced: Trace, device: LocalDevice) -> tuple[tuple[tf.Tensor, ...], Places | None]:
    """A batch behind the variables, and where all of these lie: None where that cannot be told, on
    a GPU, and where little is free."""
    step = traced.step
    if not isinstance(device, Arena):
        return step.make_batch(), None
    with aside(step.example, device, movables(traced)):
        _make_ready(traced, device)
    batch = step.make_batch()
    return batch, _found(traced, offsets_of(batch, device), device)


def places_here(
    traced: Trace, given: Sequence[int] | None, *, built: bool = False
) -> Places | None:
    """The same in a process of the user's own; None where TensorFlow has no arena there, or what is
    traced is a part of a step.

    Args:
        given: `offsets_of` its batch, where that is there.
        built: whether the rewritten step is there, too.
    """
    arena = Arena.started
    with tf.init_scope():  # apply is called while a function is being traced
        if arena is None or given is None or traced.device or not tf.executing_eagerly():
            return None
        if not built:
            _make_ready(traced, arena)
        try:
            found = _found(traced, given, arena)
            return found and found._replace(built=built)
        finally:
            arena.reset_peak()  # of what was asked for to see what is free


def _make_ready(traced: Trace, arena: Arena) -> None:
    """Has variables move that will: where they lie is looked at then. What is settled, reads copy,
    and nobody can move it."""
    # Keras drops the graphs that told it its layers' shapes. They keep constants until they are
    # collected, and would leave holes that no plan knows of.
    gc.collect()
    move_together(traced, arena)
    settle(traced)


def offsets_of(batch: Sequence[Any], device: Arena | None) -> list[int]:
    """Where each lies; -1 of what is no tensor, and of all if there is no arena."""
    return [
        _offset(each, device) if device and isinstance(each, tf.Tensor) else -1 for each in batch
    ]


def _found(traced: Trace, given: Sequence[int], arena: Arena) -> Places | None:
    graph = traced.graph
    outer = {inner.name: outer for inner, outer in captures(traced.concrete)}
    try:
        held = [_offset(outer[graph.label(t)], arena) for t in graph.data.captures]
        free = arena.free_pieces()
    except (tf.errors.OpError, BufferError, ValueError, TypeError):
        return None  # too little is free, or a tensor's type is none that Python knows
    return Places(tuple(free), tuple(held), tuple(given))


def _offset(captured: tf.Tensor, device: Arena) -> int:
    """Where the tensor lies, or the value of the variable whose handle it is; -1 of anything else,
    and of what has no bytes; SOMEWHERE of a variable that reads copy, and of what lies in no
    region: as its memory happens to be aligned, a NumPy array is copied or shared."""
    spec = variable_spec(captured)
    again = captured
    if spec is not None:
        read = partial(tf.raw_ops.ReadVariableOp, resource=captured, dtype=spec.dtype)
        captured, again = read(), read()
    if tf.is_symbolic_tensor(captured) or captured.dtype in (tf.resource, tf.string, tf.variant):
        return -1
    if not captured.shape.num_elements():
        return -1
    at = device.offset(captured)
    return at if at >= 0 and device.offset(again) == at else SOMEWHERE
