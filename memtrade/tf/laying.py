"""Where variables lie: one after the other, whatever it took to compute their first values.

An initializer asks for more than the value that it returns (Keras's glorot_uniform for three times
as much), and the allocator fills what it gives back with other variables, and pads them where they
are a little smaller. How much, the model's author cannot know, and nor can the simulator:
InceptionResNetV2 has 23 MB of padding among 253 MB of weights. So the first value is taken to host
memory, and put into an arena that has no holes:

    as TensorFlow does it     [made][  free  ][weight, padded ][ free ][made] ...
    laid down                 [weight][weight][weight] ...
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from memtrade.simulate.walk import MAX_SLICE_BYTES
from memtrade.tf.captured import on_device, on_host


class LaidVariables(list[tf.Variable]):
    """Variables in order of creation.

    Attributes:
        between: what else was made and stays, as bytes: before the first variable, before the
            second, ..., behind the last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.between: list[int] = []

    def behind(self, sizes: Sequence[int]) -> list[int]:
        """For tensors of `sizes` bytes, made in this order: how many variables lie before each.
        All of them, if it was not made among them."""
        found, left = [], list(self.between)
        gap = 0
        for size in sizes:
            at = next((i for i in range(gap, len(left)) if left[i] >= size), len(self))
            if at < len(left):
                left[at] -= size
                gap = at
            found.append(at)
        return found


@contextlib.contextmanager
def laid_down() -> Iterator[LaidVariables]:
    """Within it, variables that are made lie side by side. Yields them, in order of creation."""
    made, held = LaidVariables(), _in_use_bytes()

    def create(make: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        nonlocal held
        made.between.append(_in_use_bytes() - held)
        variable = make(**options | {"initial_value": _alone(options["initial_value"])})
        made.append(variable)
        held = _in_use_bytes()
        return variable

    with tf.variable_creator_scope(create):
        yield made
    made.between.append(_in_use_bytes() - held)


def _in_use_bytes() -> int:
    """Of the CPU; 0 where it has an allocator that does not count."""
    try:
        return tf.config.experimental.get_memory_info("CPU:0")["current"]
    except (ValueError, RuntimeError):
        return 0


def _alone(initial: Any) -> Callable[[], Any]:
    """`initial` as a function after which the device holds the value and nothing else."""

    def value() -> Any:
        computed = initial() if callable(initial) else initial
        if not tf.executing_eagerly() or not isinstance(computed, tf.Tensor):
            return computed
        dtype, size_bytes = computed.dtype, computed.shape.num_elements() * computed.dtype.size
        if size_bytes > MAX_SLICE_BYTES:
            return computed
        held = on_host(computed)
        del computed
        return on_device(held, dtype)

    return value
