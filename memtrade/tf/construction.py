"""What TensorFlow's own ways change in how a step is built. See memtrade.strategies.native."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.strategies.native import KerasRemat

Gradients = tuple[tf.Tensor, list[tf.Tensor]]  # the loss, and a gradient per variable


@dataclass(frozen=True, kw_only=True)
class Construction:
    """How a step is built; the default is as usual.

    Attributes:
        recompute_blocks: `tf.recompute_grad` around each block of the model.
        micro_batches: the batch is taken in so many equal parts, one after the other.
        remat: `keras.RematScope` around the making of a Keras model.
    """

    recompute_blocks: bool = False
    micro_batches: int = 1
    remat: KerasRemat | None = None


AS_USUAL = Construction()


def micro_batch_size(size: int, count: int) -> int:
    """Raises UnsupportedGraphError unless a batch of `size` splits into `count` equal parts."""
    if size % count:
        raise UnsupportedGraphError(
            f"a batch of {size} cannot be split into {count} equal micro-batches: "
            "choose micro_batches among its divisors"
        )
    return size // count


def in_micro_batches(
    gradients_of: Callable[[Sequence[tf.Tensor]], Gradients],
    batch: Sequence[tf.Tensor],
    count: int,
) -> Gradients:
    """The loss and gradients of `batch`, computed in `count` parts one after the other.

    Those of the parts are averaged: the whole's, if its loss is the mean over independent
    examples. `gradients_of` is called once for each part.
    """
    if count == 1:
        return gradients_of(batch)
    split = [tf.split(x, count) for x in batch]
    parts = iter([tuple(x[i] for x in split) for i in range(count)])
    loss, gradients = gradients_of(next(parts))
    for part in parts:
        with tf.control_dependencies([loss, *gradients]):
            done = tf.no_op()
        # Or the executor would run all forward passes at once.
        with tf.control_dependencies([done]):
            more_loss, more = gradients_of([tf.identity(x) for x in part])
        loss += more_loss
        gradients = [a + b for a, b in zip(gradients, more, strict=True)]
    share = 1 / count
    return loss * share, [gradient * share for gradient in gradients]
