"""A training step: what strategies are applied to and what is measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

# The graph collection in which a model (or a user) names the tensors to checkpoint, as in
# OpenAI's gradient-checkpointing: tf.compat.v1.add_to_collection("checkpoints", tensor).
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class TrainStep:
    """One call of `function`: a batch in, the loss out, the variables updated.

    Attributes:
        name: what the step trains, for records and tables ("resnet-50").
        function: a `tf.function` of the batch's tensors.
        specs: the batch's shapes and dtypes, all static, in the order of the arguments.
        make_batch: allocates one batch that fits `specs`.
        variables: all that a step changes: weights, moving averages, optimizer slots. A callable,
            because tracing may create variables.
        loss: which of the returned values it is, where the user says so.
        laid: the variables as they lie in memory, where that is not the order of their first use.
        repeated: place of an argument -> place of an earlier one that is the same tensor.
        example: a batch (tensors or arrays) whose sizes count where nothing else tells them.
        behind: for each argument, how many of `laid` were made before it; those that are not there
            lie behind all variables.
    """

    name: str
    function: Any  # tf.types.experimental.PolymorphicFunction
    specs: tuple[tf.TensorSpec, ...]
    make_batch: Callable[[], tuple[tf.Tensor, ...]]
    variables: Callable[[], tuple[tf.Variable, ...]]
    laid: Sequence[tf.Variable] = ()
    behind: Sequence[int] = ()
    repeated: Mapping[int, int] = field(default_factory=dict)
    loss: Any = None  # memtrade.tf.loss.Named
    example: Sequence[Any] | None = None
