"""Is it still the same gradient? Two steps from the same variables on the same batch.

Equality of the loss and of every variable after each step implies equality of the gradients, and
takes in moving averages and optimizer slots as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

Step = Callable[..., tf.Tensor]


@dataclass(frozen=True)
class Comparison:
    """Largest absolute differences by name, over all steps. NaN against a number is infinite."""

    differences: dict[str, float]

    def beyond(self, tolerance: float) -> list[tuple[str, float]]:
        """What differs by more than `tolerance`, the largest first."""
        found = [(name, d) for name, d in self.differences.items() if d > tolerance]
        return sorted(found, key=lambda each: (-each[1], each[0]))


def compare_steps(
    original: Step,
    rewritten: Step,
    variables: Sequence[tf.Variable],
    batch: Sequence[tf.Tensor],
    *,
    steps: int,
    own_variables: Sequence[tf.Variable] | None = None,
    on_step: Callable[[int, int], None] = lambda step, of: None,
) -> Comparison:
    """Runs both steps `steps` times from the variables' present values, and restores these.

    Args:
        own_variables: those that `rewritten` changes, in the order of `variables`, where it does
            not change the same ones.
    """
    initial = [variable.numpy() for variable in variables]
    changed = variables if own_variables is None else own_variables
    histories = []
    for number, (step, variables_of) in enumerate(((original, variables), (rewritten, changed))):
        _restore(variables_of, initial)
        # Random ops keep a state in their kernels. This makes both steps start with fresh ones.
        tf.random.set_seed(0)
        history = []
        for i in range(steps):
            on_step(number * steps + i + 1, 2 * steps)
            loss = step(*batch)
            history.append([np.asarray(loss), *(variable.numpy() for variable in variables_of)])
        histories.append(history)
        _restore(variables_of, initial)
    names = ["loss", *_unique_names(variables)]
    differences = dict.fromkeys(names, 0.0)
    for expected, found in zip(*histories, strict=True):
        for name, a, b in zip(names, expected, found, strict=True):
            differences[name] = max(differences[name], _difference(a, b))
    return Comparison(differences)


def _restore(variables: Sequence[tf.Variable], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    if np.array_equal(a, b):
        return 0.0
    if not np.issubdtype(a.dtype, np.inexact):
        return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))))
    if np.array_equal(a, b, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(np.max(np.nan_to_num(gap, nan=np.inf)))


def _unique_names(variables: Sequence[tf.Variable]) -> list[str]:
    names: list[str] = []
    for variable in variables:
        name = variable.name.partition(":")[0]
        names.append(name if name not in names else f"{name}#{len(names)}")
    return names
