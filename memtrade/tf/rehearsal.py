"""One run of a rewritten step before it trains: what its device says of it, and nothing remains.

Variables are read to the host before and written back after, one by one and while nothing else is
free, so that each finds the hole that it left itself. The function is the one that will train: what
tracing another one leaves behind, nobody foresees. Its caller is another, so that the random
numbers of the training to come are not drawn. A step that does more than compute and update
variables is not rehearsed.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from memtrade.op_types import CALL_TYPES, READING_TYPES
from memtrade.tf.calling import call_alone
from memtrade.tf.captured import captures, on_device, on_host
from memtrade.tf.device import Arena
from memtrade.tf.extract import Trace, variable_spec
from memtrade.tf.in_place import put_in_place

_DRAWING = ("Random", "StatelessRandom", "TruncatedNormal", "Multinomial")
_UPDATING = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")
_HARMLESS = READING_TYPES | {"VarHandleOp"}


def can_be_rehearsed(trace: Trace) -> bool:
    """Whether all that the step changes are variables, which are there, and its sizes are known.
    A part of a step does not run alone."""
    if trace.device:
        return False
    closed = all(spec.shape.is_fully_defined() for spec in trace.step.specs)
    if not closed and trace.step.example is None:
        return False
    if any(tf.is_symbolic_tensor(captured) for _, captured in captures(trace.concrete)):
        return False
    return all(
        op.type in _HARMLESS
        or op.type.startswith(_DRAWING + _UPDATING)
        or (op.type in CALL_TYPES and "filter" in op.attrs)
        for op in trace.graph.ops
        if op.stateful
    )


def rehearse(trace: Trace, concrete: Any, device: str) -> int | None:
    """Most bytes that a call of the rewritten step took on `device` ("GPU:0") beyond what was in
    use before it and the batch.

    Args:
        concrete: the rewritten step's function.

    Returns:
        None where the device's allocator keeps no count, as TensorFlow's for the CPU does not
    unless it is told to (TF_CPU_ALLOCATOR_USE_BFC).

    Raises:
        tf.errors.ResourceExhaustedError: the call does not fit the device.
    """
    with tf.init_scope():  # apply is called while a function is being traced
        try:
            tf.config.experimental.reset_memory_stats(device)
        except ValueError:
            return None
        example = trace.step.example
        batch = trace.step.make_batch() if example is None else map(tf.convert_to_tensor, example)
        variables = _variables(trace)
        before = [on_host(each.handle, each.spec) for each in variables]
        in_use = tf.config.experimental.get_memory_info(device)["current"]
        alone = tf.function(lambda *values: call_alone(concrete, values), autograph=False)
        try:
            results = alone(*batch)
            for result in tf.nest.flatten(results, expand_composites=True):
                if tf.is_tensor(result):  # a step may return None
                    result.numpy()  # until the device is done
            peak = tf.config.experimental.get_memory_info(device)["peak"]
        finally:
            results = result = alone = None
            gc.collect()  # with a function goes what the runtime keeps of its kernels
            _write_back(variables, before)
    return peak - in_use


class _Variable(NamedTuple):
    handle: tf.Tensor
    spec: tf.TensorSpec
    stays: bool  # the step writes it in place


def _variables(trace: Trace) -> list[_Variable]:
    stay = {trace.graph.label(t) for t in trace.graph.placed}
    return [
        _Variable(outer, spec, inner.name in stay)
        for inner, outer in captures(trace.concrete)
        if (spec := variable_spec(outer))
    ]


def _write_back(variables: Sequence[_Variable], values: Sequence[Any]) -> None:
    """Gives variables what they held, each where it lies: no other hole is free meanwhile."""
    arena, plugs = Arena.started, []
    nothing = {dtype: tf.zeros([0], dtype) for dtype in {each.spec.dtype for each in variables}}
    with contextlib.suppress(tf.errors.OpError, ValueError):  # too little is free
        plugs = arena.plugged() if arena else []
    for (handle, spec, stays), value in zip(variables, values, strict=True):
        if stays:
            put_in_place(handle, spec, value)
            continue
        tf.raw_ops.AssignVariableOp(resource=handle, value=nothing[spec.dtype])
        tf.raw_ops.AssignVariableOp(resource=handle, value=on_device(value, spec.dtype))
    del plugs
