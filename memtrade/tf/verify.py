"""Is it still the same gradient? Two steps from the same variables on the same batch.

Equality of the loss and of every variable after each step implies equality of the gradients, and
takes in moving averages and optimizer slots as well. How far apart values are, and what counts, is
`memtrade.comparison`'s.
"""

from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np
import tensorflow as tf

from memtrade.comparison import LOSS, Comparison, Values, Verified, by_name
from memtrade.tf.captured import Positions, go_back, positions_of
from memtrade.tf.step import TrainStep

StepFunction = Callable[..., tf.Tensor]

# How often a step is run again that may differ from itself: CycleGAN's does in one run of ten.
_REPEATS = 8

# A ReLU that is turned over by rounding is not any more if the variables are a little elsewhere; a
# wrong gradient stays wrong. How far, as a share of each number, and how often that is tried.
_ELSEWHERE, _TRIES = 1e-4, 4


def verified(
    original: TrainStep,
    rewritten: StepFunction,
    *,
    steps: int,
    tolerance: float,
    own_variables: Sequence[tf.Variable] | None = None,
    anew: bool = False,
    on_step: Callable[[int, int], None] = lambda step, of: None,
) -> Verified:
    """Whether a rewritten step is the original, see `compare_steps`; where it is not, whether
    rounding explains that, or the original is not the same when it is run again."""
    step, variables, batch = original.function, original.variables(), original.make_batch()
    positions = positions_of(step.get_concrete_function(*batch))

    def compared() -> Comparison:
        return compare_steps(
            step,
            rewritten,
            variables,
            batch,
            steps=steps,
            own_variables=own_variables,
            positions=positions,
            anew=anew,
            on_step=on_step,
        )

    comparison = compared()
    found = comparison.verified(tolerance)
    if not found.equal and tolerance:
        noise = in_another_order(step, variables, batch, steps=steps, positions=positions)
        found = comparison.verified(tolerance, noise)
    if not found.equal and tolerance and anew:
        both = [*variables, *(own_variables or ())]
        found = _equal_elsewhere(both, lambda: compared().verified(tolerance)) or found
    if found.equal:
        return found
    itself = differs_from_itself(step, variables, batch, steps=steps, positions=positions)
    return msgspec.structs.replace(found, itself=itself)


def _equal_elsewhere(
    variables: Sequence[tf.Variable], compared: Callable[[], Verified]
) -> Verified | None:
    """A comparison that finds both steps equal, from values a little beside those that the
    variables hold, which they get back."""
    values = [variable.numpy() for variable in variables]
    rng = np.random.default_rng(0)
    try:
        for _ in range(_TRIES):
            for variable, value in zip(variables, values, strict=True):
                if variable.dtype.is_floating:
                    share = _ELSEWHERE * rng.uniform(-1, 1, value.shape)
                    variable.assign((value * (1 + share)).astype(value.dtype))
            if (found := compared()).equal:
                return found
        return None
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def compare_steps(
    original: StepFunction,
    rewritten: StepFunction,
    variables: Sequence[tf.Variable],
    batch: Sequence[tf.Tensor],
    *,
    steps: int,
    own_variables: Sequence[tf.Variable] | None = None,
    positions: Positions = (),
    anew: bool = False,
    on_step: Callable[[int, int], None] = lambda step, of: None,
) -> Comparison:
    """Runs both steps `steps` times from the variables' present values, and restores these.

    Args:
        own_variables: those that `rewritten` changes, in the order of `variables`, where it does
            not change the same ones. If there are more of them, or fewer, names tell partners.
        positions: from where both steps take batches of data sets.
        anew: each step of `rewritten` starts from what `original` came to: where the last bits
            differ, a few steps later ReLUs turn over, and everything does.
    """
    names = [variable.name for variable in variables]
    initial = by_name(names, [variable.numpy() for variable in variables])
    changed = variables if own_variables is None else own_variables
    if len(changed) != len(variables):
        names = [variable.name for variable in changed]
    expected = history(
        original,
        dict(zip(initial, variables, strict=True)),
        initial,
        batch,
        steps=steps,
        positions=positions,
        on_step=lambda step: on_step(step, 2 * steps),
    )
    found = history(
        rewritten,
        by_name(names, changed),
        initial,
        batch,
        steps=steps,
        positions=positions,
        starts=expected if anew else None,
        on_step=lambda step: on_step(steps + step, 2 * steps),
    )
    comparison = Comparison(initial)
    for each in zip(expected, found, strict=True):
        comparison.add(*each)
    return comparison


def differs_from_itself(
    step: StepFunction,
    variables: Sequence[tf.Variable],
    batch: Sequence[tf.Tensor],
    *,
    steps: int,
    positions: Positions = (),
) -> float | None:
    """The share of an update by which a step differs from itself when it is run again; None where
    it never did.

    TensorFlow's AddN begins with the input whose buffer it may take, and which one that is depends
    on what has run by then: three gradients or more are added up in one order or another.
    """
    for _ in range(_REPEATS):
        comparison = compare_steps(step, step, variables, batch, steps=steps, positions=positions)
        found = comparison.verified(0.0)
        if not found.equal:
            return found.of_update
    return None


def in_another_order(
    step: StepFunction,
    variables: Sequence[tf.Variable],
    batch: Sequence[tf.Tensor],
    *,
    steps: int,
    positions: Positions = (),
) -> Comparison:
    """A step beside itself with its examples the other way round, so that sums over the batch are
    added up in another order: what has no gradient is moved by rounding alone, and differs."""
    counts = [each.shape[0] for each in batch if each.shape.rank]

    def turned(*given: tf.Tensor) -> tf.Tensor:
        return step(*(tf.reverse(t, [0]) if t.shape[:1] == counts[:1] else t for t in given))

    return compare_steps(
        step, turned, variables, batch, steps=steps, positions=positions, anew=True
    )


def history(
    step: StepFunction,
    variables: dict[str, tf.Variable],
    initial: Values,
    batch: Sequence[tf.Tensor],
    *,
    steps: int,
    positions: Positions = (),
    starts: Sequence[Values] | None = None,
    on_step: Callable[[int], None] = lambda step: None,
) -> list[Values]:
    """What a step returns and its variables are, each time that it has run.

    Args:
        initial: what the variables hold at first, and again in the end.
        positions: where iterators stand in their data sets at first, and again in the end.
        starts: what they hold before each step but the first; unless given, what the one before
            has left there.
    """
    _restore(variables, initial)
    go_back(positions)
    # Random ops keep a state in their kernels. So each history starts with fresh ones.
    tf.random.set_seed(0)
    found = []
    for i in range(steps):
        if starts is not None and i:
            _restore(variables, starts[i - 1])
        on_step(i + 1)
        loss = np.asarray(step(*batch))
        found.append({LOSS: loss, **{name: each.numpy() for name, each in variables.items()}})
    _restore(variables, initial)
    go_back(positions)
    return found


def compare_values(
    step: TrainStep, values: Values, losses: Sequence[float], *, left_out: Collection[str] = ()
) -> Comparison:
    """Runs `step` as often as there are losses, and compares these, and the variables then, with
    `values` that another process came to from the same ones; but for the names `left_out`."""
    batch = step.make_batch()
    variables = [variable for variable in step.variables() if variable.name not in left_out]
    theirs = [name for name in values if name not in left_out]

    def present() -> dict[str, np.ndarray]:
        return by_name([each.name for each in variables], [each.numpy() for each in variables])

    comparison = Comparison(present())
    for i, loss in enumerate(losses, start=1):
        expected = {LOSS: np.asarray(step.function(*batch))}
        found = {LOSS: np.asarray(loss)}
        if i == len(losses):
            expected |= present()
            found |= by_name(theirs, [values[name] for name in theirs])
        comparison.add(expected, found)
    return comparison


def _restore(variables: dict[str, tf.Variable], values: Values) -> None:
    for name, variable in variables.items():
        if name in values and variable.shape == values[name].shape:
            variable.assign(values[name])
