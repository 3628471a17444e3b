"""What `memtrade.keras.fit` finds out before it fits: the examples, the batch, and over how many
batches gradients are added up."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from memtrade.batch.largest import TRIALS, LargestBatch, largest_batch
from memtrade.errors import MemtradeError, UnknownNameError
from memtrade.settings import check_count, planned_name
from memtrade.strategies import make_options

_WANTED = "give an array, a tuple (x, y) of arrays, or a tf.data.Dataset of single examples"


class Examples:
    """What is trained on, one example after the other.

    Attributes:
        count: how many there are; None if that is not known.

    Raises:
        MemtradeError: on construction, where there is no data, or something else.
    """

    def __init__(self, data: Any, validation_split: float = 0.0):
        self._data = data
        if isinstance(data, tf.data.Dataset):
            size = int(data.cardinality())
            self.count = None if size < 0 else size
        else:
            self.count = self._array_count(data)
            self.count = int(self.count * (1 - validation_split))  # as Keras splits arrays
        if self.count == 0:
            raise MemtradeError(f"there is no example in the data: {_WANTED}")

    def batch(self, size: int) -> tuple[Any]:
        """The arguments of `model.train_step` for a batch of that size, as specs."""
        if isinstance(self._data, tf.data.Dataset):
            return (
                tf.nest.map_structure(
                    lambda spec: tf.TensorSpec([size, *spec.shape], spec.dtype),
                    self._data.element_spec,
                ),
            )
        specs: Any = keras.tree.map_structure(
            lambda part: None if part is None else _spec(part, size), self._parts()
        )
        return (keras.utils.pack_x_y_sample_weight(*specs),)

    def to_fit(self, size: int) -> dict[str, Any]:
        """What `model.fit` takes to train on batches of that size."""
        if isinstance(self._data, tf.data.Dataset):
            return {"x": self._data.batch(size)}
        names = ("x", "y", "sample_weight")
        return {**dict(zip(names, self._parts(), strict=False)), "batch_size": size}

    def _parts(self) -> tuple[Any, ...]:
        return self._data if isinstance(self._data, tuple) else (self._data,)

    def _array_count(self, data: Any) -> int:
        parts = [part for part in keras.tree.flatten(data) if part is not None]
        if not parts:
            raise MemtradeError(f"there is no data: {_WANTED}")
        for part in parts:
            if not (hasattr(part, "dtype") and len(getattr(part, "shape", ()))):
                raise MemtradeError(f"data is no {type(part).__name__}: {_WANTED}")
        counts = {int(part.shape[0]) for part in parts}
        if len(counts) > 1 or len(self._parts()) > 3:
            said = " and ".join(map(str, sorted(counts)))
            raise MemtradeError(f"arrays of {said} examples do not belong together: {_WANTED}")
        return counts.pop()


def _spec(part: Any, size: int) -> tf.TensorSpec:
    """Of a batch of an array as Keras makes it, which has one kind of floats."""
    dtype = keras.backend.standardize_dtype(part.dtype)
    if "float" in dtype:
        dtype = keras.config.floatx()
    return tf.TensorSpec([size, *part.shape[1:]], dtype)


def check_fitting(model: keras.Model, fitting: Mapping[str, Any]) -> None:
    """Raises MemtradeError for what `model.fit` would refuse once the batch has been found."""
    parameters = inspect.signature(model.fit).parameters
    known = set(parameters) - {"x", "y", "sample_weight", "batch_size"}  # which are data's
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        for name in fitting:
            if name not in known:
                raise UnknownNameError("argument of model.fit", name, known)
    check_count("epochs", fitting.get("epochs", 1))
    check_count("steps_per_epoch", fitting.get("steps_per_epoch"), optional=True)
    split = fitting.get("validation_split") or 0.0
    if not isinstance(split, int | float) or not 0 <= split < 1:
        raise MemtradeError(f"validation_split is a part from 0 to below 1, not {split!r}")


def checked_options(strategy: str, options: Any) -> dict[str, Any]:
    """The strategy's options. Raises MemtradeError where they are none, or no such strategy's."""
    if not isinstance(options or {}, Mapping):
        raise MemtradeError(f"options are by name, such as {{'count': 6}}, not {options!r}")
    if "budget" in (options or {}):
        raise MemtradeError("a budget is none of the options here: say fit(..., budget=...)")
    make_options(planned_name(strategy), options)
    return dict(options or {})


def find_batch(
    model: keras.Model, examples: Examples, effective: int | None, how: dict[str, Any]
) -> tuple[LargestBatch, int]:
    """The largest batch, and over how many of them the optimizer has to add gradients up.

    Args:
        effective: examples for each update, if so many are asked for.
        how: what `largest_batch` takes.
    """
    if effective is None:
        return _largest(model, examples, how, most=examples.count), 1
    most = min(effective, examples.count or effective)
    trials = TRIALS
    if most == effective and _largest(model, examples, how, most=most, trials=0).batch_size == most:
        whole = _largest(model, examples, how, most=most)
        if whole.batch_size == effective:
            return whole, 1
        trials = max(TRIALS - len(whole.trials), 1)
    found = _largest(model, examples, how, most=most, trials=trials, accumulates=True)
    return found, steps_for(effective, found.batch_size)


def steps_for(effective: int, batch_size: int) -> int:
    """The fewest batches of one size, up to `batch_size`, that make `effective` examples.

    >>> steps_for(256, 100), steps_for(256, 256), steps_for(10, 7)
    (4, 1, 2)
    """
    fewest = -(-effective // batch_size)
    return next(steps for steps in range(fewest, effective + 1) if effective % steps == 0)


def accumulate(model: keras.Model, steps: int) -> None:
    """Lets the optimizer update the weights every so many batches, by the mean of gradients.

    Raises:
        MemtradeError: it does so over another number of batches, or has been built without.
    """
    optimizer = _inner(model.optimizer)
    before = optimizer.gradient_accumulation_steps or 1
    if before == steps:
        return
    if before > 1 or optimizer.built:
        why = f"adds gradients up over {before} batches" if before > 1 else "has been built already"
        raise MemtradeError(
            f"effective_batch takes gradient_accumulation_steps={steps}, and the optimizer {why}: "
            "compile the model anew, with an optimizer of its own"
        )
    optimizer.gradient_accumulation_steps = steps


def _largest(
    model: keras.Model,
    examples: Examples,
    how: dict[str, Any],
    *,
    most: int | None,
    trials: int = TRIALS,
    accumulates: bool = False,
) -> LargestBatch:
    with _another_optimizer(model, accumulates):
        return largest_batch(
            tf.function(model.train_step, autograph=False),
            examples.batch,
            most=most,
            trials=trials,
            **how,
        )


@contextlib.contextmanager
def _another_optimizer(model: keras.Model, accumulates: bool) -> Iterator[None]:
    """Within it the model has an optimizer like its own, for tracing builds it."""
    own = model.optimizer
    made = type(own).from_config(own.get_config())
    if accumulates and not _inner(made).gradient_accumulation_steps:
        _inner(made).gradient_accumulation_steps = 2  # accumulators take the same for any number
    model.optimizer = made
    try:
        yield
    finally:
        model.optimizer = own


def _inner(optimizer: Any) -> Any:
    """The optimizer that updates, beneath the one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)
