"""Nested arguments and results: their leaves by name, and values put back into their places."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.errors import MemtradeError, UnsupportedGraphError

# A value on each replica of a tf.distribute strategy.
_PerReplica = tf.types.experimental.distributed.PerReplica

# What becomes a tensor.
_ARRAYS = (np.ndarray, np.generic)

# A type of the program's own, which may hold several tensors.
_EXTENSION = tf.experimental.ExtensionType

# Tensors of several parts, which steps may take.
_COMPOSITES = (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)
_COMPOSITE_SPECS = (tf.RaggedTensorSpec, tf.SparseTensorSpec, tf.IndexedSlicesSpec)


def named_leaves(structure: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings and sequences with their paths, such as "0/loss"; of a value
    per replica, that of the first."""
    if isinstance(structure, Mapping):
        children = structure.items()
    elif isinstance(structure, tuple) and hasattr(structure, "_fields"):
        children = zip(structure._fields, structure, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(structure, (tuple, list)):
        children = enumerate(structure)
    elif isinstance(structure, _PerReplica):
        yield path, tf.nest.flatten(structure, expand_composites=True)[0]
        return
    else:
        yield path, structure
        return
    for key, child in children:
        yield from named_leaves(child, f"{path}/{key}" if path else str(key))


@dataclass(frozen=True)
class HeldVariable:
    """A variable among a step's arguments. It is captured, so that its shape stays known."""

    variable: tf.Variable


def packed(structure: Any, values: Sequence[Any]) -> Any:
    """`values` in the places of a structure's tensors; other leaves stay, variables as they are."""
    remaining = iter(values)
    leaves = tf.nest.flatten(structure, expand_composites=True)
    filled = [next(remaining) if is_tensor(leaf) else leaf for leaf in leaves]
    return released(tf.nest.pack_sequence_as(structure, filled, expand_composites=True))


def held(structure: Any) -> Any:
    """`structure` with its variables held."""
    return tf.nest.map_structure(
        lambda leaf: HeldVariable(leaf) if isinstance(leaf, tf.Variable) else leaf, structure
    )


def released(structure: Any) -> Any:
    """`structure` with the variables that are held in it."""
    return tf.nest.map_structure(
        lambda leaf: leaf.variable if isinstance(leaf, HeldVariable) else leaf, structure
    )


def holds_variables(structure: Any) -> bool:
    return any(isinstance(leaf, HeldVariable) for leaf in tf.nest.flatten(structure))


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf is a tensor or the spec of one."""
    return isinstance(leaf, (tf.Tensor, tf.TensorSpec))


def arguments_of(function: Any, example: Any) -> tuple[Any, ...]:
    """The example as positional arguments: a tuple is several, if the step takes as many. What can
    be an array, such as a pandas.DataFrame, is one.

    Raises MemtradeError where the step cannot be called with it.
    """
    example = tf.nest.map_structure(_as_array, example)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function without one to ask
        return example if isinstance(example, tuple) else (example,)
    why = ""
    ways = [(example,)]
    if isinstance(example, tuple):
        ways = [example, *ways[: len(example)]]  # none at all is not one
    for way in ways:
        try:
            signature.bind(*way)
        except TypeError as error:
            why = why or str(error)
        else:
            return way
    name = getattr(function, "__name__", "train_step")
    how = "Give its positional arguments, several as a tuple"
    by_name = [p for p in signature.parameters.values() if p.kind == p.KEYWORD_ONLY]
    if any(each.default is each.empty for each in by_name):
        how = "Wrap it in a function that takes all arguments by position"
    raise MemtradeError(f"{name}{signature} cannot be called with this example: {why}. {how}")


def _as_array(leaf: Any) -> Any:
    """As tf.function takes it."""
    known = (tf.Tensor, tf.Variable, tf.TensorSpec, *_COMPOSITES, *_ARRAYS, _EXTENSION, _PerReplica)
    if isinstance(leaf, known) or not hasattr(leaf, "__array__"):
        return leaf
    try:
        return np.asarray(leaf)
    except (TypeError, ValueError) as error:  # a KerasTensor, say, has no values
        kind = type(leaf).__name__
        rule = f"an example is made of tensors, arrays and tf.TensorSpecs, not {kind}"
        raise MemtradeError(rule) from error


def with_variables(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """`kwargs` with the defaults that hold variables: TensorFlow makes inputs of these as of what
    is given."""
    try:
        parameters = inspect.signature(function).parameters
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return kwargs
    defaults = {name: each.default for name, each in parameters.items() if name not in given}
    return kwargs | {n: value for n, value in defaults.items() if holds_variables(held(value))}


def specs_of(structure: Any) -> Any:
    """`structure` with specs in place of tensors and arrays, and variables held; Python values
    stay."""

    def spec(leaf: Any) -> Any:
        if isinstance(leaf, tf.Variable):
            return HeldVariable(leaf)
        if isinstance(leaf, (*_COMPOSITES, _EXTENSION, _PerReplica)):
            return tf.type_spec_from_value(leaf)
        if isinstance(leaf, (tf.Tensor, *_ARRAYS)):
            return tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype))
        return leaf

    return tf.nest.map_structure(spec, structure)


def given_in(structure: Any) -> list[Any]:
    """What `tensors_of(specs_of(structure))` are the specs of: tensors, arrays and specs, those of
    ragged and sparse tensors one by one."""
    leaves = tf.nest.flatten(held(structure), expand_composites=True)
    return [leaf for leaf in leaves if is_tensor(leaf) or isinstance(leaf, _ARRAYS)]


def tensors_of(structure: Any) -> list[Any]:
    """The tensors, or their specs, in a structure of arguments; ragged and sparse ones in parts."""
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return [leaf for leaf in leaves if is_tensor(leaf)]


def _is_taken_apart(leaf: Any) -> bool:
    """Whether it is the spec of several tensors, each with a shape of its own."""
    kinds = (_EXTENSION, _PerReplica)
    return isinstance(leaf, tf.TypeSpec) and issubclass(leaf.value_type, kinds)


def check_shapes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises UnsupportedGraphError, with the input's name, where a size is not known."""
    try:
        bound: Any = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {**dict(enumerate(args)), **kwargs}
    for path, leaf in named_leaves(bound):
        if isinstance(leaf, _COMPOSITES + _COMPOSITE_SPECS):
            continue  # their parts have no size before they come
        parts = tf.nest.flatten(leaf, expand_composites=True)
        for part in parts:
            if is_tensor(part) and not part.shape.is_fully_defined():
                raise UnsupportedGraphError(
                    f"input {path!r} has the unknown shape {part.shape}: a plan is for one size. "
                    "Batch with drop_remainder=True, or say the size with tf.ensure_shape"
                )
        if not _is_taken_apart(leaf) and (len(parts) != 1 or parts[0] is not leaf):
            raise UnsupportedGraphError(
                f"input {path!r} is a {type(leaf).__name__}, which has no fixed shape: "
                "a plan is for one size. Pass dense tensors, such as next(iterator)"
            )
