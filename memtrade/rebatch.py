"""The graph of a step at any batch size, from its graphs at two: no tracing, milliseconds.

The idea. The same model traced at two batch sizes has the same ops; only dimensions differ, and
each is affine in the batch: d(b) = p b + q. Two traces fix p and q. (A part of the batch is an
eighth of it: p need not be whole, but what follows must be.)

Checked: the same ops, types, edges and attributes. Assumed: dimensions are affine, that is, none is
a power of the batch, or rounded. `tests/tf/test_rebatch.py` holds that for every model here,
against real traces. At batch 1 TensorFlow sums gradients of broadcasts over fewer axes: there the
lists of these axes, some bytes each, are not those of a trace.
"""

import contextlib
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import Op, StepGraph, Tensor, repeats

_NUMBER = re.compile(r"_?\d+")


class Rebatcher:
    """Makes the graph of `first`'s model at other batch sizes.

    Raises:
        UnsupportedGraphError: on construction, where the two are not the same but for dimensions.
    """

    def __init__(self, first: StepGraph, first_batch: int, second: StepGraph, second_batch: int):
        if first_batch == second_batch:
            raise ValueError(f"two different batch sizes are needed, not {first_batch} twice")
        self._first, self._second = first, second
        self._at = (first_batch, second_batch)
        a, b = first.data, second.data
        if len(a.ops) != len(b.ops):
            raise self._differs(f"its number of ops ({len(a.ops)} and {len(b.ops)})")
        for name in ("inputs", "captures", "outputs", "control_outputs", "loss", "collection"):
            if getattr(a, name) != getattr(b, name):
                raise self._differs(f"its list of {name}")
        for one, other in zip(a.ops, b.ops, strict=True):
            # As in the fingerprint: names of placeholders follow from the way of tracing.
            if one.type != "Placeholder" and bare(one.name) != bare(other.name):
                raise self._differs(f"op {one.name} ({other.name})")
            alike = (one.type, one.inputs, one.controls, one.outputs, one.stateful)
            if alike != (other.type, other.inputs, other.controls, other.outputs, other.stateful):
                raise self._differs(f"op {one.name}")
            if one.attrs.keys() != other.attrs.keys():
                raise self._differs(f"the attributes of {one.name}")
        for one, other in zip(a.tensors, b.tensors, strict=True):
            ranks = [None if t.shape is None else len(t.shape) for t in (one, other)]
            if ranks[0] != ranks[1] or one.dtype != other.dtype:
                raise self._differs(f"the rank of {first.label(one.id)}")

    @property
    def grows_constants(self) -> bool:
        """Whether there is a constant that grows with the batch. TensorFlow makes zeros of up to
        1,000 elements as constants, and larger ones by ops: then other sizes have another graph."""
        a, b = self._first.data, self._second.data
        constants = [t for op in a.ops if op.type == "Const" for t in op.outputs]
        return any(a.tensors[t].shape != b.tensors[t].shape for t in constants)

    def at(self, batch: int) -> StepGraph:
        """The graph at `batch`, 1 or more."""
        if batch < 1:
            raise ValueError(f"a batch has at least one example, not {batch}")
        a, b = self._first.data, self._second.data
        pairs = zip(a.capture_bytes, b.capture_bytes, strict=True)
        tensors = tuple(
            self._tensor(*pair, batch) for pair in zip(a.tensors, b.tensors, strict=True)
        )
        values = self._values(batch)
        return StepGraph(
            msgspec.structs.replace(
                a,
                ops=tuple(self._op(*pair, batch) for pair in zip(a.ops, b.ops, strict=True)),
                tensors=tensors,
                capture_bytes=tuple(self._affine(x, y, batch, "a captured size") for x, y in pairs),
                values=values,
                equal=self._equal(tensors, values),
                uniform=dict(a.uniform.items() & b.uniform.items()),
            )
        )

    def _equal(
        self, tensors: Sequence[Tensor], values: Mapping[int, tuple[int, ...]]
    ) -> dict[int, int]:
        """Constants that hold the same as one before them: by their values or, where these are not
        known, because they do at both sizes."""
        a, b = self._first.data, self._second.data

        def held(t: int) -> Hashable:
            known = values.get(t, (a.equal.get(t, t), b.equal.get(t, t)))
            return t in values, tensors[t].dtype, tensors[t].shape, known

        constants = [op.outputs[0] for op in a.ops if op.type == "Const"]
        return repeats((t, held(t)) for t in constants)

    def _values(self, batch: int) -> dict[int, tuple[int, ...]]:
        """The known numbers; those that are on no line (a width of -1, a mask) are not known."""
        found = {}
        for t, one in self._first.data.values.items():
            other = self._second.data.values.get(t, ())
            if len(one) == len(other):
                with contextlib.suppress(UnsupportedGraphError):
                    found[t] = self._shape(one, other, batch, self._first.label(t))
        return found

    def _op(self, one: Op, other: Op, batch: int) -> Op:
        if one.attrs == other.attrs:
            return one
        attrs = {
            key: self._value(value, other.attrs[key], batch, f"{key} of {one.name}")
            for key, value in one.attrs.items()
        }
        # The definition that the op was traced with says another batch.
        return msgspec.structs.replace(one, attrs=attrs, node=-1)

    def _value(self, x: Any, y: Any, batch: int, what: str) -> Any:
        """An attribute: the same at both, or made of whole numbers."""
        if x == y:
            return x
        if type(x) is int and type(y) is int:
            return self._affine(x, y, batch, what)
        if isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
            return [self._value(*each, batch, what) for each in zip(x, y, strict=True)]
        raise self._differs(what)

    def _tensor(self, one: Tensor, other: Tensor, batch: int) -> Tensor:
        if one.shape == other.shape or one.shape is None or other.shape is None:
            return one
        what = self._first.label(one.id)
        shape = self._shape(one.shape, other.shape, batch, what)
        return msgspec.structs.replace(
            one, shape=shape, size_bytes=math.prod(shape) * _item_bytes(one)
        )

    def _shape(
        self, one: Sequence[int], other: Sequence[int], batch: int, what: str
    ) -> tuple[int, ...]:
        return tuple(self._affine(*pair, batch, what) for pair in zip(one, other, strict=True))

    def _affine(self, x: int, y: int, batch: int, what: str) -> int:
        """The value at `batch` on the line through (first batch, x) and (second batch, y)."""
        first, second = self._at
        grown, rest = divmod((y - x) * (batch - first), second - first)
        value = x + grown
        if rest or value < 0:
            raise self._differs(what)
        return value

    def _differs(self, what: str) -> UnsupportedGraphError:
        first, second = self._at
        return UnsupportedGraphError(
            f"{self._first.name} cannot be had at other batch sizes without tracing it: {what} "
            f"differs between batch {first} and batch {second} by more than dimensions that grow "
            "with the batch"
        )


def bare(name: str) -> str:
    """Without the numbers that tell names apart: which ones, depends on what was traced before."""
    return _NUMBER.sub("", name)


def _item_bytes(tensor: Tensor) -> int:
    """Of one value; 0 for what has no size (resources, strings) or no values."""
    count = math.prod(tensor.shape or ())
    return tensor.size_bytes // count if count else 0
