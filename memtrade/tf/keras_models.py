"""Training steps of Keras models, written as Keras users write them."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from memtrade.errors import MemtradeError, UnsupportedGraphError
from memtrade.models.keras import KerasApplication
from memtrade.strategies.native import KerasRemat
from memtrade.tf.construction import (
    Construction,
    Gradients,
    in_micro_batches,
    micro_batch_size,
)
from memtrade.tf.laying import laid_down
from memtrade.tf.step import TrainStep

# What goes on alone ends a block if the next such tensor is so many times as large: a padding
# layer does not count.
_GROWTH = 1.5

_OPTIMIZERS: dict[str, Callable[[float], keras.optimizers.Optimizer]] = {
    "sgd": lambda rate: keras.optimizers.SGD(rate),
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "rmsprop": lambda rate: keras.optimizers.RMSprop(rate),
    "adam": lambda rate: keras.optimizers.Adam(rate),
}


def make_keras_step(
    model: KerasApplication,
    make_batch: Callable[[], tuple[tf.Tensor, ...]],
    *,
    optimizer: str,
    learning_rate: float,
    construction: Construction,
) -> TrainStep:
    """A custom training loop's step: a GradientTape around the model, a Keras optimizer.

    The weights are made here, as Keras does, so they take memory before the step is traced.

    Raises:
        MemtradeError: Keras refuses the model's options.
    """
    micro_batch_size(model.batch_size, construction.micro_batches)
    # So that layers and variables are called the same whichever models were made before.
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(model.seed)
    with laid_down() as laid:
        network = make_network(model, construction.remat)
        forward = _forward(network, construction)
        updates = _OPTIMIZERS[optimizer](learning_rate)
        updates.build(network.trainable_variables)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    specs = tuple(
        tf.TensorSpec(each.shape, tf.as_dtype(each.dtype), name)
        for name, each in model.inputs().items()
    )

    def gradients_of(batch: Sequence[tf.Tensor]) -> Gradients:
        images, labels = batch
        with tf.GradientTape() as tape, _told_of_remat(model, construction):
            loss: Any = cross_entropy(labels, forward(images))
        gradients: Any = tape.gradient(loss, network.trainable_variables)
        return loss, gradients

    # Not to be compiled: what XLA has fused has no ops that could be rewritten.
    @tf.function(autograph=False, input_signature=specs, jit_compile=False)
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, gradients = in_micro_batches(
            gradients_of, (images, labels), construction.micro_batches
        )
        updates.apply(gradients, network.trainable_variables)
        return loss

    def variables() -> tuple[tf.Variable, ...]:
        return tuple(each.value for each in (*network.variables, *updates.variables))

    return TrainStep(
        name=model.name,
        function=train_step,
        specs=specs,
        make_batch=make_batch,
        variables=variables,
        laid=laid,
    )


@contextlib.contextmanager
def _told_of_remat(model: KerasApplication, construction: Construction) -> Iterator[None]:
    """Raises UnsupportedGraphError for what Keras's rematerialization cannot do."""
    try:
        yield
    except ValueError as error:
        if construction.remat is None:
            raise
        # As of Keras 3.15 any wrapped layer that knows training from inference does this.
        raise UnsupportedGraphError(
            f"keras.RematScope(mode={construction.remat.mode!r}) does not work on {model.name} "
            f"in a tf.function: {_keras_reason(error)}"
        ) from error


def make_network(model: KerasApplication, remat: KerasRemat | None = None) -> keras.Model:
    """The model, with random weights, which depend on Keras's seed only.

    Raises:
        MemtradeError: Keras refuses the image size.
    """
    scope = contextlib.nullcontext()
    if remat is not None:
        scope = keras.RematScope(
            mode=remat.mode,
            output_size_threshold=remat.output_size_threshold,
            layer_names=list(filter(None, remat.layer_names.split(","))),
        )
    try:
        with scope:
            return getattr(keras.applications, model.application)(
                weights=None,
                input_shape=(model.image_size, model.image_size, 3),
                classes=model.num_classes,
                classifier_activation=None,
            )
    except ValueError as error:
        raise MemtradeError(
            f"keras.applications.{model.application} does not take images of "
            f"{model.image_size} pixels: {' '.join(str(error).split())}"
        ) from error


def _forward(network: keras.Model, construction: Construction) -> Callable[[tf.Tensor], Any]:
    if not construction.recompute_blocks:
        return lambda images: network(images, training=True)
    parts = [_recomputing(block) for block in blocks(network)]

    def forward(x: tf.Tensor) -> Any:
        for part in parts:
            x = part(x)
        return x

    return forward


def _recomputing(block: keras.Model) -> Callable[[tf.Tensor], Any]:
    # tf.recompute_grad takes no keyword arguments in a graph.
    return tf.recompute_grad(lambda x: block(x, training=True))


def blocks(network: keras.Model) -> list[keras.Model]:
    """A functional model in parts, to be called one after the other.

    A block ends where a single tensor goes on to the next: where branches meet, but for a product
    (the gate of squeeze-and-excitation), and where the next tensor that goes on alone is much
    larger (behind a pooling layer, before an expanding convolution).
    """
    alone = _bottlenecks(network)
    ends = [
        tensor
        for (operation, tensor), following in zip(alone, [*alone[1:], None], strict=True)
        if following is None
        or _joins_branches(operation)
        or _GROWTH * _elements(tensor) <= _elements(following[1])
    ]
    if ends[-1] is not network.output:
        ends.append(network.output)
    made, start = [], network.input
    for end in ends:
        if end is not start:
            made.append(keras.Model(start, end))
            start = end
    return made


def _bottlenecks(network: keras.Model) -> list[tuple[Any, Any]]:
    """(operation, its output) wherever nothing else is handed on: articulation points."""
    operations: list[Any] = network.operations  # in topological order
    last_reader: dict[int, int] = {}
    for position, operation in enumerate(operations):
        for tensor in keras.tree.flatten(operation.input) if position else []:
            last_reader[id(tensor)] = position
    found, reach = [], 0
    for position, operation in enumerate(operations):
        # What was made before ends here at the latest, so the output goes on alone.
        if reach <= position and not isinstance(operation.output, list | tuple):
            found.append((operation, operation.output))
        reach = max(reach, last_reader.get(id(operation.output), len(operations)))
    return found


def _joins_branches(operation: Any) -> bool:
    several = len({id(tensor) for tensor in keras.tree.flatten(operation.input)}) > 1
    return several and not isinstance(operation, keras.layers.Multiply)


def _keras_reason(error: Exception) -> str:
    """What went wrong, out of Keras's message, which has the layer above and arguments below."""
    plain = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line for line in map(str.strip, plain.splitlines()) if line]
    return next((line for line in lines if not line.startswith("Exception encountered")), plain)


def _elements(tensor: Any) -> int:
    """Of one example."""
    return math.prod(tensor.shape[1:])
