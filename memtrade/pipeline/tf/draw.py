"""A step traced without allocating anything: what a pipeline is cut out of."""

from dataclasses import dataclass

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.models.base import DrawnModel, Model
from memtrade.tf.build import make_batch, make_step
from memtrade.tf.extract import Trace, trace


@dataclass(frozen=True)
class DrawnStep:
    """A step that was traced without allocating anything, and the batch that it shall run on.

    Attributes:
        trace: of the step on one micro-batch.
        outer: the graph of the variables' initial values and of the batch.
        variables: of the step.
        batch: the whole batch, in the order of the step's arguments.
    """

    trace: Trace
    outer: tf.Graph
    variables: tuple[tf.Variable, ...]
    batch: tuple[tf.Tensor, ...]


def draw_step(
    model: Model, whole: Model, *, optimizer: str, learning_rate: float | None = None
) -> DrawnStep:
    """Traces the step of `model`, one micro-batch of `whole`, within a graph of its own.

    Raises UnsupportedGraphError for Keras models and steps of one's own, whose weights are made at
    once.
    """
    if not isinstance(model, DrawnModel):
        raise UnsupportedGraphError(
            f"a pipeline runs built-in models, and {model.name} is not one: try --model gpt2"
        )
    outer = tf.Graph()
    with outer.as_default():
        step = make_step(model, optimizer=optimizer, learning_rate=learning_rate)
        traced = trace(step)
        return DrawnStep(traced, outer, step.variables(), make_batch(whole))
