"""From a model to a training step: loss, gradients, update."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.models.base import DrawnModel, Input, Model
from memtrade.models.keras import KerasApplication
from memtrade.models.target import OwnStep
from memtrade.tf.construction import (
    AS_USUAL,
    Construction,
    Gradients,
    in_micro_batches,
    micro_batch_size,
)
from memtrade.tf.layers import Net, RecomputingNet
from memtrade.tf.optimizers import Optimizer, make_optimizer
from memtrade.tf.step import TrainStep
from memtrade.tf.target import make_target_step
from memtrade.tf.variables import Variables, normal, seed_pair


def make_step(
    model: Model,
    *,
    optimizer: str = "sgd",
    learning_rate: float | None = None,
    construction: Construction = AS_USUAL,
) -> TrainStep:
    """The training step of a model out of `memtrade.models`. Nothing is traced yet.

    The step's function has an input signature, so it is traced once. A drawn model's weights
    are made when it is; within `tf.Graph().as_default()`,
    `step.function.get_concrete_function()` allocates nothing, whatever the model's size; such a
    step belongs to that graph and cannot be run eagerly afterwards. Keras makes a model's
    weights at once.

    Args:
        construction: how TensorFlow's own ways build the step.

    Raises:
        UnknownNameError: no such optimizer.
        MemtradeError: the learning rate is not a positive number, or Keras refuses the model's
            options.
        UnsupportedGraphError: the model cannot be built that way; on tracing, the loss does not
            depend on a weight.
    """
    if isinstance(model, OwnStep):
        if construction != AS_USUAL:
            raise UnsupportedGraphError(
                f"{model.target} builds its step itself: strategies that build it in another way "
                "are for the models of `memtrade models`"
            )
        return make_target_step(model)
    updates = make_optimizer(optimizer, learning_rate)
    if isinstance(model, KerasApplication):
        # Importing Keras takes seconds, which other models need not wait for.
        from memtrade.tf.keras_models import make_keras_step

        return make_keras_step(
            model,
            lambda: make_batch(model),
            optimizer=optimizer,
            learning_rate=updates.learning_rate,
            construction=construction,
        )
    if not isinstance(model, DrawnModel):
        raise UnsupportedGraphError(
            f"nothing draws the loss of {model.name}: let its class extend DrawnModel, not Model"
        )
    if construction.remat is not None:
        raise UnsupportedGraphError(
            f"keras.RematScope is for Keras models, and {model.name} is none: "
            "try --model keras/ResNet50V2"
        )
    return _make_drawn_step(model, updates, construction)


def _make_drawn_step(
    model: DrawnModel, updates: Optimizer, construction: Construction
) -> TrainStep:
    inputs = model.inputs()
    specs = tuple(
        tf.TensorSpec(each.shape, tf.as_dtype(each.dtype), name) for name, each in inputs.items()
    )
    weights = Variables(model.seed)
    kind = RecomputingNet if construction.recompute_blocks else Net
    size = micro_batch_size(model.batch_size, construction.micro_batches)
    part = dataclasses.replace(model, batch_size=size)

    def gradients_of(batch: Sequence[tf.Tensor]) -> Gradients:
        net = kind(weights, layout=model.layout)
        loss = part.loss(net, **dict(zip(inputs, batch, strict=True)))
        trainable = weights.trainable()
        # Gated, as TensorFlow 1.x optimizers do by default (GATE_OP): a weight is updated once
        # both gradients of its op are there. Ungated, an update may find its weight still read
        # and copy it, which scatters the weights over the device memory, step by step.
        gradients = tf.gradients(loss, trainable, gate_gradients=True)
        return loss, [_dense(g, v) for g, v in zip(gradients, trainable, strict=True)]

    @tf.function(autograph=False, input_signature=specs)
    def train_step(*batch: tf.Tensor) -> tf.Tensor:
        loss, gradients = in_micro_batches(gradients_of, batch, construction.micro_batches)
        updates.apply(list(zip(gradients, weights.trainable(), strict=True)))
        return loss

    def variables() -> tuple[tf.Variable, ...]:
        # Traces if nothing has yet.
        train_step.get_concrete_function()  # pyright: ignore[reportFunctionMemberAccess]
        return (*weights.all(), *updates.slots())

    return TrainStep(
        name=model.name,
        function=train_step,
        specs=specs,
        make_batch=lambda: make_batch(model),
        variables=variables,
    )


def make_batch(model: Model) -> tuple[tf.Tensor, ...]:
    """A synthetic batch from the model's seed: one random op and one allocation per tensor."""
    return tuple(_synthetic(name, each, model.seed) for name, each in model.inputs().items())


def _synthetic(name: str, wanted: Input, seed: int) -> tf.Tensor:
    pair = seed_pair(seed, f"batch/{name}")
    if wanted.below is None:
        return normal(wanted.shape, seed=pair)
    shape, dtype = list(wanted.shape), tf.as_dtype(wanted.dtype)
    if dtype.is_integer:
        return tf.raw_ops.StatelessRandomUniformInt(
            shape=shape,
            seed=list(pair),
            minval=tf.constant(0, dtype),
            maxval=tf.constant(wanted.below, dtype),
        )
    values = tf.raw_ops.StatelessRandomUniform(shape=shape, seed=list(pair))  # [0, 1)
    return values if wanted.below == 1 else values * wanted.below


def _dense(gradient: tf.Tensor | tf.IndexedSlices | None, variable: tf.Variable) -> tf.Tensor:
    """A gradient as one tensor of its variable's shape: an embedding's comes as rows and indices.

    Raises:
        UnsupportedGraphError: there is no gradient.
    """
    if gradient is None:
        raise UnsupportedGraphError(
            f"the loss does not depend on variable {variable.name!r}: "
            "use it in the model's loss or do not create it"
        )
    if isinstance(gradient, tf.IndexedSlices):
        rows = variable.shape[0]
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
    return gradient
