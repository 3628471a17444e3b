"""The training step that a user's function makes: --target package.module:function."""

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.errors import MemtradeError
from memtrade.graph import repeats
from memtrade.models.target import OwnStep
from memtrade.target import SOMEWHERE
from memtrade.tf.calling import is_keras_model, step_of_model
from memtrade.tf.captured import captured_variables, on_device, on_host
from memtrade.tf.device import Arena
from memtrade.tf.failures import failure_text
from memtrade.tf.laying import LaidVariables, laid_down
from memtrade.tf.loss import returned_loss
from memtrade.tf.places import offsets_of
from memtrade.tf.step import TrainStep
from memtrade.tf.structure import (
    arguments_of,
    check_shapes,
    given_in,
    packed,
    released,
    specs_of,
    tensors_of,
)


def make_target_step(model: OwnStep) -> TrainStep:
    """The step of the batch's tensors that returns one number, its loss if it has one.

    The user's step is called in it, with the arguments of its example batch. It is traced here.

    Raises:
        MemtradeError: the target does not import, or does not return a step and a batch of the
            model's size; the message has the error's own words and the line of the user's code.
        UnsupportedGraphError: an input has no fixed shape.
    """
    for seed in (random.seed, np.random.seed, tf.random.set_seed):
        seed(model.seed)
    with laid_down() as laid:
        make = _maker(model)
        told = {"batch_size": model.batch_size} if _takes_size(make) else {}
        function, example = _made(model, make, **told)
    arguments = arguments_of(function, example)
    specs, parts = specs_of(arguments), given_in(arguments)
    check_shapes(function, specs, {})
    of_parts = tuple(tensors_of(specs))
    _check_size(model, of_parts, told=bool(told))
    try:
        with laid_down() as laid_later:
            concrete = function.get_concrete_function(*released(specs))
    except MemtradeError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        what = f"tracing the step of {model.target} failed"
        raise MemtradeError(failure_text(what, error)) from error

    @tf.function(autograph=False, input_signature=of_parts)
    def train_step(*batch: tf.Tensor) -> tf.Tensor:
        return returned_loss(function(*packed(specs, batch)))

    return TrainStep(
        name=model.name,
        function=train_step,
        specs=of_parts,
        make_batch=lambda: _batch(parts),
        variables=lambda: tuple(captured_variables(concrete)),
        laid=[*laid, *laid_later],
        repeated=repeats((i, id(part)) for i, part in enumerate(parts) if tf.is_tensor(part)),
        behind=_behind(parts, laid),
        example=None if any(map(_is_spec, parts)) else parts,
    )


def _is_spec(part: Any) -> bool:
    return isinstance(part, tf.TensorSpec)


def _behind(parts: Sequence[Any], laid: LaidVariables) -> list[int]:
    """How many variables lie before each of the example's tensors; arrays become tensors later."""
    tensors = {id(part): part for part in parts if tf.is_tensor(part)}
    sizes = [part.shape.num_elements() * (part.dtype.size or 0) for part in tensors.values()]
    found = dict(zip(tensors, laid.behind(sizes), strict=True))
    return [found.get(id(part), sys.maxsize) for part in parts]


def _maker(model: OwnStep) -> Callable[..., Any]:
    """The target, imported."""
    module_name, _, path = model.target.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        make: Any = importlib.import_module(module_name)
        for name in path.split("."):
            make = getattr(make, name)
    except (Exception, SystemExit) as error:  # an import runs the user's code
        raise MemtradeError(failure_text(f"cannot import {model.target}", error)) from error
    if not callable(make):
        raise MemtradeError(
            f"a target is a function that makes the step, and {model.target} is no function but "
            f"{type(make).__name__}: write it as mypackage.train:make_step"
        )
    return make


def _takes_size(make: Callable[..., Any]) -> bool:
    return "batch_size" in inspect.signature(make).parameters


def _made(model: OwnStep, make: Callable[..., Any], **told: int) -> tuple[Any, Any]:
    """What the target returns: the step as a tf.function, and an example of its batch."""
    try:
        inspect.signature(make).bind(**told)
    except TypeError as error:
        raise MemtradeError(
            f"{model.target} takes more than `batch_size` ({error}): give its other arguments "
            "defaults, or name a function that has none"
        ) from None
    try:
        made = make(**told)
    except (Exception, SystemExit) as error:
        raise MemtradeError(failure_text(f"{model.target} failed", error)) from error
    if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]):
        raise MemtradeError(
            f"{model.target} must return a training step and an example of its batch, as in "
            f"`return train_step, (x, y)`, not {type(made).__name__}"
        )
    step, example = made
    if is_keras_model(step):
        return step_of_model(step), (example,)
    return step if hasattr(step, "get_concrete_function") else tf.function(step), example


def _check_size(model: OwnStep, specs: Sequence[tf.TensorSpec], *, told: bool) -> None:
    """Records say the batch size, so it must be the one that was asked for.

    Args:
        told: whether the target takes it.
    """
    sizes: set[Any] = {spec.shape[0] for spec in specs if spec.shape.rank}
    if not sizes and not told:  # where it was told, it takes batches of a data set
        raise MemtradeError(
            f"{model.target} gives no batch that has a size: let it take `batch_size`, and its "
            "step as many examples"
        )
    # Nodes and edges of so many graphs, or the words of so many texts, one behind the other.
    are_packed = told and all(size and size % model.batch_size == 0 for size in sizes)
    if sizes and model.batch_size not in sizes and not are_packed:
        found = " or ".join(map(str, sorted(sizes)))
        if told:
            raise MemtradeError(
                f"{model.target} takes `batch_size`, and made a batch of {found} for "
                f"{model.batch_size}: let it make so many examples, or as many times that"
            )
        raise MemtradeError(
            f"{model.target} made a batch of {found}, not of {model.batch_size}: let it take "
            f"`batch_size`, or say --batch-size {found}"
        )


def _batch(parts: Sequence[Any]) -> tuple[tf.Tensor, ...]:
    """The example's tensors, on the device; zeros where it has only their specs.

    TensorFlow shares an array of NumPy's that happens to be aligned as its own are: such a batch
    would lie on the device in one trial, and in another one not.
    """
    tensors = [
        tf.zeros(part.shape, part.dtype) if _is_spec(part) else tf.convert_to_tensor(part)  # pyright: ignore[reportArgumentType]
        for part in parts
    ]
    lies = zip(tensors, offsets_of(tensors, Arena.started), strict=True)
    moved = {id(t): on_device(on_host(t), t.dtype) for t, at in lies if at == SOMEWHERE}
    return tuple(moved.get(id(t), t) for t in tensors)
