"""What this process holds beside a step: other models' variables, and tensors that Python keeps."""

import gc
import os
import sys
import types
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from memtrade.explain.refusal import Beside, Counted
from memtrade.units import megabytes

# So many are named, and of those none that holds a smaller share.
_MOST_NAMED, _SMALL = 3, 0.01

# Of examples in one shape, so many are data and batches made ahead; more of them pile up.
_FEW_BATCHES = 3

# So many lists, dictionaries and attributes within each other are looked into.
_DEEP = 6

# Objects whose contents are listed at a time: all of them at once would take much memory.
_AT_ONCE = 1000


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
        concrete: the step's function; None where no step is known.
        ahead_bytes: of batches that Python does not see; negative where it sees the step's own.
    """
    own = {id(each) for each in concrete.captured_inputs} if concrete else ()
    inputs = concrete.inputs if concrete else ()
    examples = {(each.dtype, str(each.shape[1:])) for each in inputs if each.shape.rank}
    others = [v for v in _alive(tf.Variable) if id(v.handle) not in own and _is_on(v, device)]
    tensors = {id(t): t for t in _eager_tensors() if _is_on(t, device)}
    alike = Counter((t.dtype, str(t.shape)) for t in tensors.values() if _bytes(t))
    data_bytes = 0
    shapes: Counter[str] = Counter()  # of each, the bytes
    kept: dict[int, int] = {}
    for t in tensors.values():
        few = t.shape.rank and alike[t.dtype, str(t.shape)] <= _FEW_BATCHES
        if few and (t.dtype, str(t.shape[1:])) in examples:
            data_bytes += _bytes(t)
        elif _bytes(t):
            kept[id(t)] = _bytes(t)
            shapes[str(t.shape)] += _bytes(t)
    variable_bytes, tensor_bytes = sum(map(_bytes, others)), sum(kept.values())
    if variable_bytes >= tensor_bytes:
        where = ", ".join(_models_of(others))
    else:
        count = Counter(str(tensors[i].shape) for i in kept)
        largest = shapes.most_common(_MOST_NAMED)
        named = [shape for shape, size in largest if size > _SMALL * tensor_bytes]
        where = ", ".join(f"{count[shape]:,} of shape {shape}" for shape in named)
        where += f", most of them in {name!r}" if (name := _name_of(kept)) else ""
    return Beside(
        variable_bytes=variable_bytes,
        tensor_bytes=tensor_bytes,
        tensors=len(kept),
        where=where,
        data_bytes=max(0, data_bytes + ahead_bytes),
    )


def _name_of(kept: dict[int, int]) -> str:
    """The variable of the program through which most of the tensors' bytes are reached."""
    frame, names = sys._getframe(), dict(vars(sys.modules["__main__"]))
    while frame is not None:
        names.update(frame.f_locals if frame.f_globals.get("__name__") == "__main__" else {})
        frame = frame.f_back
    reached = {
        name: sum(kept.get(i, 0) for i in _reached(value))
        for name, value in names.items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    name = max(reached, key=lambda each: reached[each], default="")
    return name if reached.get(name, 0) > sum(kept.values()) / 2 else ""


def _reached(value: Any) -> set[int]:
    """What lies in a list, a dictionary or an attribute, and in what lies there."""
    seen: set[int] = set()
    new = [value]
    for _ in range(_DEEP):
        inside: list[Any] = []
        for each in new:
            if id(each) not in seen:
                seen.add(id(each))
                if isinstance(each, (list, tuple, set, deque)):
                    inside += each
                elif isinstance(each, dict):
                    inside += each.values()
                elif type(each).__module__ == "__main__":
                    inside += vars(each).values() if hasattr(each, "__dict__") else ()
        new = inside
    return seen


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
    kinds = _kinds(kind)
    return [each for each in gc.get_objects() if type(each) in kinds]


def _kinds(kind: type) -> set[type]:
    """A class and those derived from it. A type is looked up and no object is asked: one may
    pretend to be of a class, or do something when asked, and there are millions."""
    return {kind}.union(*map(_kinds, type.__subclasses__(kind)))


def _eager_tensors() -> Iterator[Any]:
    """Tensors in lists, dictionaries, frames and attributes. They are not themselves among what
    Python's collector lists, but what holds them is."""
    gc.collect()
    kinds, holders = _kinds(tf.Tensor), gc.get_objects()
    for begin in range(0, len(holders), _AT_ONCE):
        for each in gc.get_referents(*holders[begin : begin + _AT_ONCE]):
            if type(each) in kinds and hasattr(each, "numpy") and each.dtype.size:
                yield each


def _is_on(held: Any, device: str) -> bool:
    return (getattr(held, "backing_device", "") or held.device).endswith(device)


def _bytes(held: Any) -> int:
    shape, dtype = held.shape, tf.as_dtype(held.dtype)
    return (shape.num_elements() or 0) * (dtype.size or 0) if shape.rank is not None else 0
