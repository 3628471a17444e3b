"""The variables of the built-in models, and their initial values.

Variables are created outside the traced function (`tf.init_scope`), their initial values by
stateless random ops from the seed and the variable's name. Within `tf.Graph().as_default()` that
outside is the graph: nothing is allocated, and a model of any size can be traced.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import cast

import tensorflow as tf

from memtrade.errors import MemtradeError


def seed_pair(seed: int, name: str) -> tuple[int, int]:
    """A seed of TensorFlow's stateless random ops that depends on a name and not on an order."""
    return seed & 0x7FFFFFFF, zlib.crc32(name.encode()) & 0x7FFFFFFF


def normal(shape: Sequence[int], *, seed: tuple[int, int], stddev: float = 1.0) -> tf.Tensor:
    """Normal values around 0, cut off at 4 standard deviations.

    One op, which allocates the result and nothing else: the holes that temporary tensors leave in
    the arena would be filled by smaller weights, whose padding then counts as memory in use.
    """
    return tf.raw_ops.StatelessParameterizedTruncatedNormal(
        shape=list(shape),
        seed=list(seed),
        means=0.0,
        stddevs=stddev,
        minvals=-4 * stddev,
        maxvals=4 * stddev,
    )


def static_shape(x: tf.Tensor | tf.Variable | tf.TensorSpec) -> tuple[int, ...]:
    """The shape, all of which is known when the graph is drawn."""
    return cast(tuple[int, ...], tuple(x.shape.as_list()))


class Variables:
    """A model's variables by name, in order of creation.

    Attributes:
        seed: of the initial values. Each depends on the seed and its name only.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self._by_name: dict[str, tf.Variable] = {}

    def all(self) -> tuple[tf.Variable, ...]:
        return tuple(self._by_name.values())

    def trainable(self) -> tuple[tf.Variable, ...]:
        return tuple(each for each in self.all() if each.trainable)

    def get(
        self, name: str, shape: Sequence[int], *, stddev: float, fill: float, trainable: bool
    ) -> tf.Variable:
        """The variable `name`; created if new, with normal values or (`stddev` 0) all `fill`."""
        if name not in self._by_name:

            def initial() -> tf.Tensor:
                if stddev == 0:
                    return tf.fill(list(shape), tf.constant(fill))
                return normal(shape, seed=seed_pair(self.seed, name), stddev=stddev)

            self._by_name[name] = new_variable(name, initial, shape, trainable=trainable)
        variable = self._by_name[name]
        if static_shape(variable) != tuple(shape):
            raise MemtradeError(
                f"variable {name!r} has shape {static_shape(variable)}, not {tuple(shape)}: "
                "a step's shapes must stay the same, so make a new step"
            )
        return variable


def new_variable(
    name: str, initial: Callable[[], tf.Tensor], shape: Sequence[int], *, trainable: bool
) -> tf.Variable:
    """A float32 variable outside of any function that is being traced."""
    with tf.init_scope(), tf.name_scope(""):
        return tf.Variable(initial, shape=tuple(shape), name=name, trainable=trainable)
