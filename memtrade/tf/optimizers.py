"""Optimizers, each update one fused op per variable: what TensorFlow's own optimizers run.

The names and their default learning rates are `memtrade.models.OPTIMIZERS`, which can be listed
without TensorFlow. Slots are made when a step is first traced and outside of it, like weights.
"""

import abc
from typing import ClassVar

import tensorflow as tf

from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.options import OPTIMIZERS
from memtrade.tf.variables import new_variable, static_shape

Scalars = dict[str, tf.Tensor]


class Optimizer(abc.ABC):
    """Updates variables from gradients. Keeps its slots, so use one optimizer per step."""

    scalars: ClassVar[dict[str, float]] = {}  # the constants of the update besides the rate

    def __init__(self, learning_rate: float):
        self.learning_rate = learning_rate
        self._slots: dict[str, tf.Variable] = {}

    def slots(self) -> tuple[tf.Variable, ...]:
        return tuple(self._slots.values())

    def slot(
        self, kind: str, variable: tf.Variable | None = None, fill: float = 0.0
    ) -> tf.Variable:
        """The slot of a variable, of its shape, or (no variable) a scalar of the optimizer."""
        path, shape = "optimizer", ()
        if variable is not None:
            path, shape = variable.name.partition(":")[0], static_shape(variable)
        name = f"{path}/{kind}"
        if name not in self._slots:
            self._slots[name] = new_variable(
                name, lambda: tf.fill(list(shape), tf.constant(fill)), shape, trainable=False
            )
        return self._slots[name]

    def apply(self, pairs: list[tuple[tf.Tensor, tf.Variable]]) -> None:
        """Creates the update ops, in the order of (gradient, variable) `pairs`."""
        scalars = {name: tf.constant(value) for name, value in self.scalars.items()}
        scalars["lr"] = tf.constant(self.learning_rate)
        for gradient, variable in pairs:
            self.update(variable, gradient, scalars)

    @abc.abstractmethod
    def update(self, variable: tf.Variable, gradient: tf.Tensor, scalars: Scalars) -> None:
        """Creates one update op. `scalars` are shared by all of a step's: "lr" and our own."""


class Sgd(Optimizer):
    """w -= lr * g"""

    def update(self, variable: tf.Variable, gradient: tf.Tensor, scalars: Scalars) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=scalars["lr"], delta=gradient
        )


class Momentum(Optimizer):
    """m = 0.9 m + g; w -= lr * m. One slot."""

    scalars: ClassVar = {"momentum": 0.9}

    def update(self, variable: tf.Variable, gradient: tf.Tensor, scalars: Scalars) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self.slot("momentum", variable).handle,
            grad=gradient,
            **scalars,
        )


class RmsProp(Optimizer):
    """s = 0.9 s + 0.1 g^2; w -= lr * g / sqrt(s + 1e-10). The op wants a second, idle slot.

    Hinton's lecture 6e; the constants are those of TensorFlow 1.x's RMSPropOptimizer.
    """

    scalars: ClassVar = {"rho": 0.9, "momentum": 0.0, "epsilon": 1e-10}

    def update(self, variable: tf.Variable, gradient: tf.Tensor, scalars: Scalars) -> None:
        tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle,
            ms=self.slot("mean_square", variable, 1.0).handle,
            mom=self.slot("momentum", variable).handle,
            grad=gradient,
            **scalars,
        )


class Adam(Optimizer):
    """Kingma and Ba 2014 (arXiv 1412.6980), with the paper's constants. Two slots."""

    scalars: ClassVar = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

    def apply(self, pairs: list[tuple[tf.Tensor, tf.Variable]]) -> None:
        powers = [self.slot(f"{b}_power", fill=self.scalars[b]) for b in ("beta1", "beta2")]
        self._powers = [power.read_value() for power in powers]
        super().apply(pairs)
        for power, value, beta in zip(powers, self._powers, ("beta1", "beta2"), strict=True):
            power.assign(value * self.scalars[beta], read_value=False)

    def update(self, variable: tf.Variable, gradient: tf.Tensor, scalars: Scalars) -> None:
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self.slot("m", variable).handle,
            v=self.slot("v", variable).handle,
            beta1_power=self._powers[0],
            beta2_power=self._powers[1],
            grad=gradient,
            **scalars,
        )


_CLASSES: dict[str, type[Optimizer]] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "rmsprop": RmsProp,
    "adam": Adam,
}


def make_optimizer(name: str, learning_rate: float | None = None) -> Optimizer:
    """An optimizer by name; without a learning rate it gets the default one.

    Raises:
        UnknownNameError: no such optimizer.
        MemtradeError: the learning rate is not a positive number.
    """
    if name not in _CLASSES:
        raise UnknownNameError("optimizer", name, OPTIMIZERS)
    rate = OPTIMIZERS[name] if learning_rate is None else learning_rate
    if not 0 < rate < float("inf"):
        raise MemtradeError(
            f"the learning rate must be a positive number, not {rate}: "
            f"the default of {name} is {OPTIMIZERS[name]}"
        )
    return _CLASSES[name](rate)
