"""Is a rewritten step of the corpus the same, to the bit, in all that it returns and changes?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from memtrade.tf.captured import captured_variables, positions_of
from memtrade.tf.verify import compare_steps, differs_from_itself

STEPS = 2

# In a row of the table: it differs, and so does the original when it is run again.
ITSELF = "as itself"


def flat(returned: Any) -> tf.Tensor:
    """All numbers that a step returns, one after the other."""
    leaves = tf.nest.flatten(returned, expand_composites=True)
    numbers = [
        tf.reshape(tf.cast(leaf, tf.float64), [-1])
        for leaf in leaves
        if isinstance(leaf, tf.Tensor) and (leaf.dtype.is_floating or leaf.dtype.is_integer)
    ]
    return tf.concat(numbers, 0) if numbers else tf.zeros([], tf.float64)


def variables_of(step: Any, batch: tuple[Any, ...]) -> list[Any]:
    """What a step changes, those among its arguments included."""
    captured = captured_variables(step.get_concrete_function(*batch))
    given = [leaf for leaf in tf.nest.flatten(batch) if isinstance(leaf, tf.Variable)]
    return [*captured, *given]


def differs_itself(step: Any, batch: tuple[Any, ...]) -> bool:
    """Whether a step does not come to the same when it is run again."""
    variables = variables_of(step, batch)
    found = differs_from_itself(
        lambda *values: flat(step(*values)),
        variables,
        batch,
        steps=STEPS,
        positions=positions_of(step.get_concrete_function(*batch)),
    )
    return found is not None


def differing(step: Any, lean: Callable[..., Any], batch: tuple[Any, ...]) -> list[Any]:
    """What the two do not agree in after some steps each."""
    comparison = compare_steps(
        lambda *values: flat(step(*values)),
        lambda *values: flat(lean(*values)),
        variables_of(step, batch),
        batch,
        steps=STEPS,
        positions=positions_of(step.get_concrete_function(*batch)),
    )
    return comparison.beyond(0.0)
