"""The variables that a traced step captures, also those of which only the handle is left.

A ConcreteFunction knows its variables by weak references. The slots of tf.compat.v1's optimizers
have nobody else who holds them, and the step changes them all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.tf.captured import captures
from memtrade.tf.extract import variable_spec


class Behind:
    """The variable behind a handle, with what comparisons ask of a tf.Variable."""

    def __init__(self, name: str, handle: tf.Tensor, spec: tf.TensorSpec):
        self.name, self.handle, self.shape, self.dtype = name, handle, spec.shape, spec.dtype

    def numpy(self) -> np.ndarray:
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype).numpy()

    def assign(self, value: Any) -> None:
        constant = tf.constant(value, self.dtype)
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=constant)


def captured_variables(concrete: Any) -> list[Any]:
    """In the order of their first use. TensorFlow's own list has another in each run, and
    comparisons of two steps pair them."""
    known = {id(variable.handle): variable for variable in concrete.variables}
    found = []
    for i, (_, handle) in enumerate(captures(concrete)):
        spec = variable_spec(handle)
        if id(handle) in known:
            found.append(known[id(handle)])
        elif spec is not None:
            found.append(Behind(f"captured {i}", handle, spec))
    return found
