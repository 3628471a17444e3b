"""What this process holds beside a step: other models' variables, and tensors that Python keeps."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from memtrade.explain.cause import Beside
from memtrade.units import megabytes

# So many are named.
_MOST_NAMED = 3


def models_alive() -> list[Any]:
    """The compiled Keras models of this process."""
    keras = sys.modules.get("keras")
    if keras is None:
        return []
    return [m for m in _alive(keras.Model) if m.compiled and m.optimizer is not None]


def beside_step(captured: Iterable[Any]) -> Beside:
    """What Python can still reach, but for what a step captures (`captured`: its handles)."""
    own = {id(each) for each in captured}
    others = [v for v in _alive(tf.Variable) if id(v.handle) not in own]
    tensors = {id(t): t for t in _eager_tensors()}
    sizes = {key: _bytes(t) for key, t in tensors.items()}
    shapes = Counter(str(t.shape) for key, t in tensors.items() if sizes[key])
    tensor_bytes, variable_bytes = sum(sizes.values()), sum(map(_bytes, others))
    if variable_bytes >= tensor_bytes:
        where = ", ".join(_models_of(others))
    else:
        named = shapes.most_common(_MOST_NAMED)
        where = ", ".join(f"{count:,} of shape {shape}" for shape, count in named)
    return Beside(
        variable_bytes=variable_bytes,
        tensor_bytes=tensor_bytes,
        tensors=sum(shapes.values()),
        where=where,
    )


def _models_of(variables: list[Any]) -> Iterator[str]:
    """Which models they belong to, the largest first."""
    left = {id(v) for v in variables}
    found = []
    for model in models_alive():
        own = [*model.variables, *model.optimizer.variables]
        size = sum(_bytes(v.value) for v in own if id(v.value) in left)
        if size:
            found.append((size, model.name))
    for size, name in sorted(found, reverse=True)[:_MOST_NAMED]:
        yield f"model {name!r}: {megabytes(size)} MB"


def _alive(kind: type) -> list[Any]:
    # Asked of the type: an object may pretend to be of a class, or do something when asked.
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def _eager_tensors() -> Iterator[Any]:
    """Tensors in lists, dictionaries, frames and attributes. They are not themselves among what
    Python's collector lists, but what holds them is."""
    gc.collect()
    for holder in gc.get_objects():
        for each in gc.get_referents(holder):
            if issubclass(type(each), tf.Tensor) and hasattr(each, "numpy") and each.dtype.size:
                yield each


def _bytes(held: Any) -> int:
    shape, dtype = held.shape, tf.as_dtype(held.dtype)
    return (shape.num_elements() or 0) * (dtype.size or 0) if shape.rank is not None else 0
