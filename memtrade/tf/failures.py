"""What the user's own code raises where it is called or traced, in one line."""

import os
import re
import reprlib
import traceback
from textwrap import shorten
from typing import Any

import tensorflow as tf

from memtrade.errors import MemtradeError
from memtrade.tf.structure import released

# How many characters of an error are passed on.
_MOST_WORDS = 300
# Keras has them in its messages, for terminals.
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_NO_VALUES = (
    "while a step is traced its tensors have no values: compute with TensorFlow's functions, and "
    "ask what the step returns for .numpy()"
)


def concrete_for(function: Any, specs: tuple[Any, ...]) -> Any:
    """The concrete function of `function` for the specs of an example.

    Raises MemtradeError where the example is not what its code takes, as far as types and shapes
    tell; any other error of the code comes as it is.
    """
    try:
        return function.get_concrete_function(*released(specs))
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        if not (isinstance(error, TypeError | ValueError) or _wants_values(error)):
            raise
        name = getattr(function, "__name__", "train_step")
        leaves = ", ".join(map(_leaf_text, tf.nest.flatten(specs)))
        example = shorten(leaves, _MOST_WORDS // 3, placeholder=" ...")
        what = f"{name} cannot be traced for this example ({example})"
        raise MemtradeError(failure_text(what, error)) from error


def _wants_values(error: BaseException) -> bool:
    """Whether the code asked a tensor for `.numpy()`, or NumPy to compute with it."""
    return isinstance(error, AttributeError | NotImplementedError) and (
        "SymbolicTensor" in str(error) or "symbolic tf.Tensor" in str(error)
    )


def _leaf_text(leaf: Any) -> str:
    """Such as "float32 (4, 64)" of a tensor, else what Python says."""
    if isinstance(leaf, tf.TensorSpec):
        return f"{leaf.dtype.name} {leaf.shape}"
    return reprlib.repr(leaf)


def failure_text(what: str, error: BaseException) -> str:
    """`what`, with the error's words, the last line of the user's own code on its way, and, of a
    tensor that was asked for its values, what to do."""
    plain = _COLOURS.sub("", str(error))
    words = [line.strip() for line in plain.splitlines() if line.strip()] or [""]
    name = type(error).__name__
    # TensorFlow puts a traceback before an error of the traced function.
    traced = words[0] in ("in user code:", "Graph execution error:")
    first = next((i for i, word in enumerate(words) if word.startswith(name)), -1) if traced else 0
    word = " ".join(words[first:])
    kind = "" if word.startswith(name) else f"{name}: "
    said = f"{what}: {kind}{word}"[:_MOST_WORDS].rstrip(": .")
    advice = f": {_NO_VALUES}" if _wants_values(error) else ""
    here = f"{os.getcwd()}{os.sep}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        inside = frame.filename.startswith(here) and "site-packages" not in frame.filename
        if inside and frame.filename != __file__:
            return f"{said} ({frame.filename.removeprefix(here)}, line {frame.lineno}){advice}"
    return said + advice
