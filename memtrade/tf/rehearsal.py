"""One run of a rewritten step before it trains: what its device says of it, and nothing remains.

Variables are read to the host before and written back after, into the places that they had: all of
them are given back first, so that each finds a hole of its own size. The run has a function of its
own, so that the random numbers of the training to come are not drawn. A step that does more than
compute and update variables is not rehearsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from memtrade.facts import READING
from memtrade.op_types import CALL_TYPES
from memtrade.tf.captured import captures, on_device, on_host
from memtrade.tf.extract import Trace, variable_spec

_DRAWING = ("Random", "StatelessRandom", "TruncatedNormal", "Multinomial")
_UPDATING = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")
_HARMLESS = READING | {"VarHandleOp"}


def can_be_rehearsed(trace: Trace) -> bool:
    """Whether all that the step changes are variables, which are there, and its sizes are known.
    A part of a step does not run alone."""
    if trace.device:
        return False
    if not all(spec.shape.is_fully_defined() for spec in trace.step.specs):
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


def rehearse(
    function: Any, values: Sequence[tf.Tensor], captured: Sequence[tf.Tensor], device: str
) -> int | None:
    """Most bytes that one call took on `device` ("GPU:0") beyond what was in use before it.

    Args:
        captured: what the step closes over; handles of variables are those that are written back.

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
        specs = [(each, spec) for each in captured if (spec := variable_spec(each))]
        before = [on_host(handle, spec) for handle, spec in specs]
        in_use = tf.config.experimental.get_memory_info(device)["current"]
        # What the runtime keeps of a function's kernels goes with the function that calls it.
        alone = tf.function(lambda *batch: function(*batch), autograph=False)
        try:
            results = alone(*values)
            for result in tf.nest.flatten(results, expand_composites=True):
                if tf.is_tensor(result):  # a step may return None
                    result.numpy()  # until the device is done
            peak = tf.config.experimental.get_memory_info(device)["peak"]
            results = result = None  # where they lie may have been a variable's place
        finally:
            for handle, spec in specs:  # of no bytes, which might lie in a variable's place, too
                tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], spec.dtype))
            for (handle, spec), value in zip(specs, before, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=on_device(value, spec.dtype))
    return peak - in_use
