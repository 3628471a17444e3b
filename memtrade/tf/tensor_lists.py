"""Lists of tensors whose length and indices tracing knows, taken apart into their elements.

    TensorListSetItem(list, 3, x) ... TensorListGetItem(list, 3)      x
    TensorListFromTensor(t)       ... TensorListGetItem(list, 3)      t[3]
    TensorListPushBack(list, x)   ... TensorListPopBack(list)         x
    TensorListStack(list)                                             Pack(of its elements)

A list that an op reads which is none of these is written after all, by the ops that it came by.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from memtrade.tf.nodes import KNOWN_TYPES, Constant, Late, NodeDef, NodeInput, Writer

Outputs = list[NodeInput] | None
Made = tuple[NodeDef, str, Sequence[NodeInput]]  # an op, the name for it, and its inputs
Updates = dict[int, NodeInput | None]  # None where there is no item any more


class TensorList(Late):
    """A list as the ops that made it left it; it never changes.

    Versions of a list share one dictionary of items. It is with one of them, and the others know by
    what they differ (Baker's persistent arrays): a loop's list takes as long as it has elements.

    Attributes:
        shape: of elements, as the list was told.
        made: the op that made it.
        loop: the loop that it was made in.
    """

    def __init__(self, length: int, dtype: tf.DType, shape: NodeInput, made: Made, loop: str):
        self.length, self.dtype, self.shape = length, dtype, shape
        self.made, self.loop = made, loop
        self._items: dict[int, NodeInput] | None = {}
        self._differs: tuple[TensorList, Updates] | None = None

    @property
    def items(self) -> dict[int, NodeInput]:
        """By their places; one without was never written to."""
        way: list[TensorList] = [self]
        while way[-1]._differs is not None:
            way.append(way[-1]._differs[0])
        owner = way.pop()
        items = owner._items
        assert items is not None
        for each in reversed(way):
            assert each._differs is not None
            updates = each._differs[1]
            owner._differs, owner._items = (each, {i: items.get(i) for i in updates}), None
            for i, value in updates.items():
                if value is None:
                    items.pop(i, None)
                else:
                    items[i] = value
            each._differs, each._items = None, items
            owner = each
        return items

    def changed(self, made: Made, loop: str, updates: Updates, length: int) -> TensorList:
        new = TensorList(length, self.dtype, self.shape, made, loop)
        new._differs, new._items = (self, updates), None
        return new

    def _write(self, writer: Writer) -> str:
        # A long chain of changes, the first one first: Python's stack is short.
        chain: list[TensorList] = [self]
        while (before := chain[-1].made[2]) and isinstance(before[0], TensorList):
            if before[0].reference:
                break
            chain.append(before[0])
        for each in reversed(chain):
            each.reference = writer.add(*each.made)
        return self.reference


class Optional(Late):
    """What one of two branches hands to its gradient."""

    def __init__(self, made: Made):
        self.made = made

    def _write(self, writer: Writer) -> str:
        return writer.add(*self.made)


class RowOf(Late):
    """Row `index` of a tensor."""

    def __init__(self, source: str, index: int, dtype: tf.DType):
        self.source, self.index, self.dtype = source, index, dtype

    def _write(self, writer: Writer) -> str:
        ends = [Constant(np.array([i], np.int32)) for i in (self.index, self.index + 1, 1)]
        name = f"{self.source.replace(':', '_')}/row{self.index}"
        return writer.make(
            "StridedSlice", name, [self.source, *ends], T=self.dtype, Index=tf.int32,
            shrink_axis_mask=1, begin_mask=0, end_mask=0, ellipsis_mask=0, new_axis_mask=0,
        )  # fmt: skip


class Zeros(Late):
    """Zeros, of the shape of another tensor or of a known one."""

    def __init__(self, like: NodeInput, dtype: tf.DType):
        self.like, self.dtype = like, dtype

    def _write(self, writer: Writer) -> str:
        zero = writer.constant(np.zeros((), self.dtype.as_numpy_dtype))
        if isinstance(self.like, Constant):
            return writer.filled(self.like, zero, self.dtype)
        return writer.make("ZerosLike", "zeros", [self.like], T=self.dtype)


class Lists:
    """The ops that make and read lists."""

    def __init__(self, writer: Writer):
        self.writer = writer
        self.loop = ""  # the loop that is being unrolled

    def outputs(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        """What stands for the outputs of `node`, which would be called `name`; None where it has
        to be written."""
        handler = _HANDLERS.get(node.op)
        return handler(self, node, name, inputs) if handler else None

    def _made(
        self, node: NodeDef, name: str, inputs: Sequence[NodeInput], length: int
    ) -> TensorList:
        dtype = tf.as_dtype(node.attr["element_dtype"].type)
        shape = inputs[1] if node.op == "TensorListFromTensor" else inputs[0]
        return TensorList(length, dtype, shape, (node, name, inputs), self.loop)

    def _empty(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        return [self._made(node, name, inputs, 0)]

    def _reserve(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        length = _number(inputs[1])
        return None if length is None else [self._made(node, name, inputs, length)]

    def _from_tensor(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        known = inputs[0]
        if isinstance(known, Constant) and known.array.ndim:
            made = self._made(node, name, inputs, len(known.array))
            made.items.update({i: Constant(each) for i, each in enumerate(known.array)})
            return [made]
        source = self.writer.reference(known)
        rows = self.writer.rows.get(source)
        if rows is None or self.writer.dry:
            return None
        made = self._made(node, name, inputs, rows)
        made.items.update({i: RowOf(source, i, made.dtype) for i in range(rows)})
        return [made]

    def _push_back(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        before, item = inputs
        if not isinstance(before, TensorList):
            return None
        updates: Updates = {before.length: item}
        return [before.changed((node, name, inputs), self.loop, updates, before.length + 1)]

    def _set_item(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        before, place, item = inputs
        index = _number(place)
        if not isinstance(before, TensorList) or index is None or not 0 <= index < before.length:
            return None
        return [before.changed((node, name, inputs), self.loop, {index: item}, before.length)]

    def _pop_back(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        before = inputs[0]
        if not isinstance(before, TensorList) or not before.length:
            return None
        item = self._item(before, before.length - 1, inputs[1])
        last: Updates = {before.length - 1: None}
        shorter = before.changed((node, name, inputs), self.loop, last, before.length - 1)
        return None if item is None else [shorter, item]

    def _get_item(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        before, place, shape = inputs
        index = _number(place)
        if not isinstance(before, TensorList) or index is None or not 0 <= index < before.length:
            return None
        item = self._item(before, index, shape)
        return None if item is None else [item]

    def _length(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        source = inputs[0]
        if not isinstance(source, TensorList):
            return None
        return [Constant(np.asarray(source.length, np.int32))]

    def _element_shape(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        source = inputs[0]
        if not isinstance(source, TensorList) or not isinstance(source.shape, Constant):
            return None
        dtype = tf.as_dtype(node.attr["shape_type"].type).as_numpy_dtype
        return [Constant(source.shape.array.astype(dtype))]

    def _stack(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        source, shape = inputs
        if not isinstance(source, TensorList) or not source.length or self.writer.dry:
            return None
        items = [self._item(source, i, shape) for i in range(source.length)]
        whole = _whole(items)
        if whole and self.writer.rows.get(whole) == len(items):
            return [whole]
        present = [each for each in items if each is not None]
        if source.dtype == tf.variant or len(present) < len(items):
            return None
        made = self.writer.make("Pack", name, present, N=len(items), T=source.dtype, axis=0)
        self.writer.rows[made] = len(items)
        return [made]

    def _optional(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        return [Optional((node, name, inputs))]

    def _optional_value(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        source = inputs[0]
        if not isinstance(source, Optional) or source.made[0].op == "OptionalNone":
            return None
        return list(source.made[2])

    def _zeros_like(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        source = inputs[0]
        if not isinstance(source, TensorList) or _nested(source):
            return None
        zeros: Updates = {i: Zeros(each, source.dtype) for i, each in source.items.items()}
        return [source.changed((node, name, inputs), self.loop, zeros, source.length)]

    def _add(self, node: NodeDef, name: str, inputs: Sequence[NodeInput]) -> Outputs:
        """Element by element, in TensorFlow's order: in pairs, then pairs of these, and so on."""
        lists = [each for each in inputs if isinstance(each, TensorList)]
        if not lists or len(lists) < len(inputs) or any(map(_nested, lists)):
            return None
        if len({each.length for each in lists}) > 1 or self.writer.dry:
            return None
        made = (node, name, inputs)
        step, count = 1, len(lists)
        while step < count:
            for i in range(step, count, 2 * step):
                lists[i - step] = self._sum(lists[i - step], lists[i], made)
            last = range(step, count, 2 * step)[-1] + 2 * step
            if last == count:
                lists[0] = self._sum(lists[0], lists[last - step], made)
                count -= step
            step *= 2
        return [lists[0]]

    def _sum(self, left: TensorList, right: TensorList, made: Made) -> TensorList:
        """What one of them has alone is handed on as it is."""
        larger, smaller = (left, right) if len(left.items) >= len(right.items) else (right, left)
        updates: Updates = {}
        for i, item in sorted(dict(smaller.items).items()):
            other = larger.items.get(i)
            if other is None:
                updates[i] = item
            else:
                pair = (other, item) if larger is left else (item, other)
                updates[i] = self._plus(*pair, left.dtype, f"{made[1]}/{i}")
        return larger.changed(made, self.loop, updates, larger.length)

    def _plus(self, left: NodeInput, right: NodeInput, dtype: tf.DType, name: str) -> NodeInput:
        if isinstance(left, Zeros) and isinstance(right, Zeros):
            return left
        # A sum with zeros is still one: 0 - 0 is +0. But there is no need for all the zeros.
        zero = self.writer.constant(np.zeros((), dtype.as_numpy_dtype))
        terms = [zero if isinstance(each, Zeros) else each for each in (left, right)]
        return self.writer.make("AddV2", name, terms, T=dtype)

    def _item(self, source: TensorList, index: int, shape: NodeInput) -> NodeInput | None:
        """What is at a place; zeros where nothing was written."""
        if index in source.items:
            return source.items[index]
        if not (source.dtype.is_floating or source.dtype in KNOWN_TYPES):
            return None
        for each in (shape, source.shape):
            if isinstance(each, Constant) and each.array.ndim == 1 and (each.array >= 0).all():
                return Zeros(Constant(each.array.astype(np.int32)), source.dtype)
        other = next(iter(source.items.values()), None)
        return None if other is None else Zeros(other, source.dtype)


_HANDLERS = {
    "AddN": Lists._add,
    "AddV2": Lists._add,
    "EmptyTensorList": Lists._empty,
    "OptionalFromValue": Lists._optional,
    "OptionalGetValue": Lists._optional_value,
    "OptionalNone": Lists._optional,
    "TensorListElementShape": Lists._element_shape,
    "TensorListFromTensor": Lists._from_tensor,
    "TensorListGetItem": Lists._get_item,
    "TensorListLength": Lists._length,
    "TensorListPopBack": Lists._pop_back,
    "TensorListPushBack": Lists._push_back,
    "TensorListReserve": Lists._reserve,
    "TensorListSetItem": Lists._set_item,
    "TensorListStack": Lists._stack,
    "ZerosLike": Lists._zeros_like,
}


def _number(value: NodeInput) -> int | None:
    return int(value.array) if isinstance(value, Constant) and value.array.ndim == 0 else None


def _nested(source: TensorList) -> bool:
    return source.dtype == tf.variant


def _whole(items: Sequence[NodeInput | None]) -> str:
    """The tensor that `items` are all rows of, from the first on; "" if they are not."""
    sources = {each.source if isinstance(each, RowOf) else "" for each in items}
    if len(sources) > 1 or any(isinstance(e, RowOf) and e.index != i for i, e in enumerate(items)):
        return ""
    return sources.pop()
