"""Nested arguments and results: their leaves by name, and values put back into their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf


def named_leaves(structure: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings and sequences with their paths, such as "0/loss"."""
    if isinstance(structure, Mapping):
        children = structure.items()
    elif isinstance(structure, tuple) and hasattr(structure, "_fields"):
        children = zip(structure._fields, structure, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(structure, (tuple, list)):
        children = enumerate(structure)
    else:
        yield path, structure
        return
    for key, child in children:
        yield from named_leaves(child, f"{path}/{key}" if path else str(key))


def packed(structure: Any, values: Sequence[Any]) -> Any:
    """`values` in the places of a structure's tensors; other leaves stay."""
    remaining = iter(values)
    leaves = tf.nest.flatten(structure, expand_composites=True)
    filled = [next(remaining) if is_tensor(leaf) else leaf for leaf in leaves]
    return tf.nest.pack_sequence_as(structure, filled, expand_composites=True)


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf is a tensor or the spec of one."""
    return isinstance(leaf, (tf.Tensor, tf.TensorSpec))
