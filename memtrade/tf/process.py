"""What this process holds beside a step: other models' variables, and tensors that Python keeps."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from memtrade.explain.cause import Beside, Counted
from memtrade.units import megabytes

# So many are named.
_MOST_NAMED = 3

# Of examples in one shape, so many are data and batches made ahead; more of them pile up.
_FEW_BATCHES = 3


def models_alive() -> list[Any]:
    """The compiled Keras models of this process."""
    keras = sys.modules.get("keras")
    if keras is None:
        return []
    return [m for m in _alive(keras.Model) if m.compiled and m.optimizer is not None]


def counted(device: str) -> Counted | None:
    """What the allocator of a device ("GPU:0") says; None of a CPU that is no arena: TensorFlow's
    allocator there counts some of its requests, or none."""
    if device.startswith("CPU") and os.environ.get("TF_CPU_ALLOCATOR_USE_BFC") != "true":
        return None
    said = tf.config.experimental.get_memory_info(device)
    return Counted(said["current"], said["peak"])


def beside_step(concrete: Any, device: str, *, ahead_bytes: int = 0) -> Beside:
    """What Python can still reach on a device, but for what a step closes over.

    Args:
        ahead_bytes: of batches that Python does not see; negative where it sees the step's own.
    """
    own = {id(each) for each in concrete.captured_inputs}
    examples = {(each.dtype, str(each.shape[1:])) for each in concrete.inputs if each.shape.rank}
    others = [v for v in _alive(tf.Variable) if id(v.handle) not in own and _is_on(v, device)]
    tensors = {id(t): t for t in _eager_tensors() if _is_on(t, device)}
    alike = Counter((t.dtype, str(t.shape)) for t in tensors.values() if _bytes(t))
    data_bytes = tensor_bytes = 0
    shapes: Counter[str] = Counter()
    for t in tensors.values():
        few = t.shape.rank and alike[t.dtype, str(t.shape)] <= _FEW_BATCHES
        if few and (t.dtype, str(t.shape[1:])) in examples:
            data_bytes += _bytes(t)
        elif _bytes(t):
            tensor_bytes += _bytes(t)
            shapes[str(t.shape)] += 1
    variable_bytes = sum(map(_bytes, others))
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
        data_bytes=max(0, data_bytes + ahead_bytes),
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


def _is_on(held: Any, device: str) -> bool:
    return (getattr(held, "backing_device", "") or held.device).endswith(device)


def _bytes(held: Any) -> int:
    shape, dtype = held.shape, tf.as_dtype(held.dtype)
    return (shape.num_elements() or 0) * (dtype.size or 0) if shape.rank is not None else 0
