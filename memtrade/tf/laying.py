"""Where variables lie: one after the other, whatever it took to compute their first values.

An initializer asks for more than the value that it returns (Keras's glorot_uniform for three times
as much), and the allocator fills what it gives back with other variables, and pads them where they
are a little smaller. How much, the model's author cannot know, and nor can the simulator:
InceptionResNetV2 has 23 MB of padding among 253 MB of weights. So the first value is taken to host
memory, and put into an arena that has no holes:

    as TensorFlow does it     [made][  free  ][weight, padded ][ free ][made] ...
    laid down                 [weight][weight][weight] ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from memtrade.tf.swap import MAX_SLICE_BYTES


@contextlib.contextmanager
def laid_down() -> Iterator[list[tf.Variable]]:
    """Within it, variables that are made lie side by side. Yields them, in order of creation."""
    made: list[tf.Variable] = []

    def create(make: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        variable = make(**options | {"initial_value": _alone(options["initial_value"])})
        made.append(variable)
        return variable

    with tf.variable_creator_scope(create):
        yield made


def _alone(initial: Any) -> Callable[[], Any]:
    """`initial` as a function after which the device holds the value and nothing else."""

    def value() -> Any:
        computed = initial() if callable(initial) else initial
        if not tf.executing_eagerly() or not isinstance(computed, tf.Tensor):
            return computed
        dtype, size_bytes = computed.dtype, computed.shape.num_elements() * computed.dtype.size
        if size_bytes > MAX_SLICE_BYTES:
            return computed
        # As bytes of Python's: a tensor of them would lie among what is given back.
        on_host = tf.io.serialize_tensor(computed).numpy()
        del computed
        return tf.io.parse_tensor(tf.constant(on_host), dtype)

    return value
