"""Bytes of what tracing alone does not size: masks, lists of tensors, loops and branches.

    unknown rows      `boolean_mask`, `where`: no more than their input has, and so on from there
    a list            element bytes times the loop's trip count
    a loop, a branch  its body, walked as a little graph: what it takes while it runs

Bounds are from above. What has none has the size that was *watched* on an example batch, where
there is one; else it stays *unsized*: it counts as nothing, a prediction with it says "at least",
and a budget is refused.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from memtrade.facts import reuse
from memtrade.facts.kernel import END
from memtrade.graph import BOUND, TRIP_COUNT, WATCHED
from memtrade.op_types import (
    ALIAS_TYPES,
    BRANCH_TYPES,
    LOOP_TYPES,
    PYTHON_TYPES,
    RESERVING_TYPES,
)
from memtrade.simulate.walk import STRING_BYTES
from memtrade.tf.bodies import Argument, draw_body
from memtrade.tf.body_bytes import (
    BodyBytes,
    Drawn,
    attrs_of,
    body_bytes,
    handed_bytes,
    handed_on,
    held_twice,
    leading_to,
    shared_bytes,
)
from memtrade.tf.functions import chosen_functions
from memtrade.tf.nodes import Constant
from memtrade.tf.trips import trip_count
from memtrade.tf.values import known_constants

Library = Any  # tf.compat.v1.FunctionDefLibrary, a protobuf class that type checkers cannot see

# Vectors of shapes and the like have so few elements, whatever they are.
_FEW = 64

# Ops whose output has no more rows than that of its inputs that has most.
_ROW_NAMES = """
    All Any ArgMax ArgMin BatchMatMulV2 BiasAdd Cast Conv2D Equal FusedBatchNormGradV3
    FusedBatchNormV3 GatherNd GatherV2 Greater GreaterEqual IsFinite Less LessEqual LogicalAnd
    LogicalNot LogicalOr MatMul NotEqual OneHot ResourceGather SelectV2
    SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits Transpose
"""
_ROW_BY_ROW = frozenset(_ROW_NAMES.split()) | frozenset(reuse().tried) | reuse().passing
# Ops whose output is as large as the tensor whose shape they are given, and where they read it.
_SHAPED = {"BroadcastTo": 1, "Fill": 0, "Tile": 1}
# What inputs are called that say how much an op makes.
_TELLING = frozenset(
    {"depth", "dims", "limit", "nbins", "num", "num_samples", "num_segments", "output_shape",
     "paddings", "shape", "size"}
)  # fmt: skip
# Ops that copy a tensor's parts into a list, which is given before it if it is there.
_LISTING = frozenset(
    {"TensorListFromTensor", "TensorListScatter", "TensorListScatterIntoExistingList",
     "TensorListScatterV2", "TensorListSplit"}
)  # fmt: skip
# Ops whose output is a shape, of unknown rank.
_SHAPES = frozenset({"Shape", "TensorListElementShape", "VariableShape"})
# Ops whose output is a part of what they read, and where they read it.
_PARTS = {"Slice": 0, "Split": 1, "SplitV": 0, "StridedSlice": 0, "Unpack": 0}


def learn_sizes(
    operations: Sequence[tf.Operation],
    library: Library,
    known: Mapping[str, tuple[int, tf.TensorSpec | None]],
    watched: Mapping[str, Sequence[int]] | None = None,
    constant: Mapping[str, Sequence[int]] | None = None,
) -> BodyBytes:
    """The sizes of all outputs of `operations`, which stand in a topological order.

    Args:
        known: of inputs that hold tensors (variables, lists): bytes, and what they hold.
        watched: shapes of tensors for one batch, for those that nothing else sizes; of a list, how
            many it holds.
        constant: shapes of tensors for any batch.
    """
    return _Sizes(library, known, watched or {}, constant or {}).learn(operations)


class _Sizes:
    def __init__(
        self,
        library: Library,
        known: Mapping[str, tuple[int, tf.TensorSpec | None]],
        watched: Mapping[str, Sequence[int]],
        constant: Mapping[str, Sequence[int]],
    ):
        self.library = library
        self.known, self.watched, self.constant = known, watched, constant
        self.found = BodyBytes()
        self.trips: dict[str, int] = {}  # of loops, by the names of their outputs
        self.hanging: set[str] = set()  # outputs of loops whose trips were watched
        self.operations: Sequence[tf.Operation] = ()

    def learn(self, operations: Sequence[tf.Operation]) -> BodyBytes:
        self.operations = operations
        for operation in operations:
            outputs: Sequence[tf.Tensor] = operation.outputs
            if operation.type in LOOP_TYPES:
                self._loop(operation)
            elif operation.type in BRANCH_TYPES:
                self._branch(operation)
            for t in outputs:
                if t.name not in self.found.sizes:
                    self._size(operation, t)
        return self.found

    def _set(
        self, t: tf.Tensor, size: int | None, how: str, content: tf.TensorSpec | None = None
    ) -> None:
        if size is None:
            self.found.unsized[t.name] = None
        elif how:
            self.found.how[t.name] = how
        self.found.sizes[t.name] = size or 0
        if content is not None:
            self.found.contents[t.name] = content

    def _size(self, operation: tf.Operation, t: tf.Tensor) -> None:
        if t.name in self.known:
            size, content = self.known[t.name]
            self._set(t, size, "", content)
        elif t.dtype == tf.variant:
            self._list(operation, t)
        elif t.dtype == tf.string and operation.type == "Const":
            self._set(t, t.shape.num_elements() * STRING_BYTES, "")
        elif t.dtype in (tf.resource, tf.string):
            self._set(t, 0, "")
        elif t.shape.is_fully_defined():
            self._set(t, t.shape.num_elements() * t.dtype.size, "")
        elif t.name in self.constant:
            self._set(t, math.prod(self.constant[t.name]) * t.dtype.size, "")
        else:
            if t.name in self.watched:
                elements, how = math.prod(self.watched[t.name]), WATCHED
            else:
                elements, how = self._most_elements(operation, t), BOUND
            self._set(t, None if elements is None else elements * t.dtype.size, how)

    # Tensors with unknown shapes

    def _most_elements(self, operation: tf.Operation, t: tf.Tensor) -> int | None:
        inputs: Sequence[tf.Tensor] = operation.inputs
        if operation.type in RESERVING_TYPES:
            return 0
        if operation.type in PYTHON_TYPES:
            ensured = (op.outputs[0].shape for op in t.consumers() if op.type == "EnsureShape")
            return next((shape.num_elements() for shape in ensured), None)
        if operation.type == "Where":
            rank = inputs[0].shape.rank
            elements = self._elements(inputs[0])
            return None if rank is None or elements is None else rank * elements
        if operation.type == "TensorListConcatV2" and t.value_index:  # how long each part is
            return self._length(inputs[0])
        if operation.type in ("TensorListStack", "TensorListConcatV2", "TensorListGather"):
            return self._elements(inputs[0], t.dtype)
        if operation.type in _SHAPED:
            return self._elements_shaped_as(operation.type, inputs)
        if operation.type == "Reshape" or operation.type in ALIAS_TYPES:
            return self._elements(inputs[0])
        if operation.type in _PARTS:
            return self._elements(inputs[_PARTS[operation.type]])
        if operation.type == "ConcatV2":
            parts = [self._elements(each) for each in inputs[:-1]]
            return sum(each for each in parts if each is not None) if None not in parts else None
        if operation.type in _ROW_BY_ROW:
            return self._rows_times(inputs, t.shape)
        if operation.type in _SHAPES:
            return _FEW
        if operation.type == "Range":
            return self._counted(inputs[1])
        if operation.type in ("TensorListGetItem", "TensorListPopBack") and t.dtype == tf.int32:
            content = self.found.contents.get(inputs[0].name)
            return _FEW if content and content.shape.rank == 1 else None
        elements = [self._elements(each) for each in inputs]
        few = all(count is not None and count <= _FEW for count in elements)
        told = any(each.name in _TELLING for each in operation.op_def.input_arg)
        return _FEW if inputs and few and not told and t.dtype in (tf.int32, tf.int64) else None

    def _bytes(self, *tensors: tf.Tensor) -> int | None:
        """Of all of them; None where one has no size."""
        names = [t.name for t in tensors]
        if any(n in self.found.unsized or n not in self.found.sizes for n in names):
            return None
        return sum(self.found.sizes[n] for n in names)

    def _elements(self, t: tf.Tensor, dtype: tf.DType | None = None) -> int | None:
        """`dtype`: of what is in a list."""
        size_bytes, each_bytes = self._bytes(t), (dtype or t.dtype).size
        return size_bytes // each_bytes if size_bytes is not None and each_bytes else None

    def _elements_shaped_as(self, kind: str, inputs: Sequence[tf.Tensor]) -> int | None:
        """Where the shape is another tensor's; in the gradient of a sum, divided by the sum's."""
        shape, times = inputs[_SHAPED[kind]], 1
        if kind == "Tile":
            times = self._elements(inputs[0])
        while shape.op.type in ("Cast", "FloorDiv", "Identity", "Maximum"):
            times = 1 if shape.op.type == "FloorDiv" else times
            shape = shape.op.inputs[0]
        elements = None
        if shape.op.type == "Shape":
            elements = self._elements(shape.op.inputs[0])
        elif shape.op.type == "VariableShape":
            content = self.found.contents.get(shape.op.inputs[0].name)
            elements = content.shape.num_elements() if content else None
        return None if elements is None or times is None else elements * times

    def _counted(self, number: tf.Tensor) -> int | None:
        """The most that a number can be that is a rank, or a dimension of some tensor."""
        while number.op.type in ("Cast", "Identity", "StridedSlice"):
            number = number.op.inputs[0]
        if number.op.type == "Rank":
            return _FEW
        return self._elements(number.op.inputs[0]) if number.op.type in ("Shape", "Size") else None

    def _rows_times(self, inputs: Sequence[tf.Tensor], shape: tf.TensorShape) -> int | None:
        """For one unknown dimension: the most that any input has in its own."""
        if shape.rank is None or shape.as_list().count(None) != 1:
            return None
        rows = []
        for each in inputs:
            if each.shape.rank is None:
                return None
            dims = each.shape.as_list()
            if None in dims:
                elements = self._elements(each)
                if elements is None or dims.count(None) != 1:
                    return None
                rows.append(elements // max(1, _product(dims)))
        return max(rows) * _product(shape.as_list()) if rows else None

    # Lists

    def _length(self, held: tf.Tensor) -> int:
        """How many elements a list has."""
        content = self.found.contents.get(held.name)
        each = content.shape.num_elements() if content else None
        return (self._elements(held, content.dtype) or 0) // each if content and each else _FEW

    def _list(self, operation: tf.Operation, t: tf.Tensor) -> None:
        inputs: Sequence[tf.Tensor] = operation.inputs
        if operation.type in ("EmptyTensorList", "OptionalNone", "TensorListReserve"):
            self._set(t, 0, "")
        elif operation.type in _LISTING:
            held = inputs[: 1 + (inputs[0].dtype == tf.variant)]
            rows = held[-1].shape.rank and operation.type != "TensorListSplit"
            content = tf.TensorSpec(held[-1].shape[1:], held[-1].dtype) if rows else None
            self._set(t, self._bytes(*held), BOUND, content)
        elif operation.type in ("TensorListPushBack", "TensorListSetItem"):
            item = inputs[1 if operation.type == "TensorListPushBack" else 2]
            shape = tf.TensorShape([None]) if item.op.type in _SHAPES else item.shape
            content = tf.TensorSpec(shape, item.dtype)
            self._set(t, self._bytes(inputs[0], item), TRIP_COUNT, content)
        elif operation.type == "OptionalFromValue":
            content = tf.TensorSpec(inputs[0].shape, inputs[0].dtype)
            self._set(t, self._bytes(*inputs), BOUND, content)
        elif inputs and inputs[0].dtype == tf.variant:  # PopBack, Identity, ZerosLike, AddN
            content = self.found.contents.get(inputs[0].name)
            held = inputs if operation.type == "TensorListConcatLists" else inputs[:1]
            self._set(t, self._bytes(*held), BOUND, content)
        else:
            self._set(t, None, "")

    # Bodies

    def _arguments(self, inputs: Iterable[tf.Tensor]) -> list[Argument]:
        contents = self.found.contents
        return [Argument(t.dtype, t.shape, contents.get(t.name)) for t in inputs]

    def _body(self, function: str, inputs: Sequence[tf.Tensor]) -> Drawn:
        body = draw_body(self.library, function, self._arguments(inputs))
        known: dict[str, tuple[int, tf.TensorSpec | None]] = dict.fromkeys(body.contents, (0, None))
        for inner, outer in zip(body.arguments, inputs, strict=True):
            if outer.dtype in (tf.variant, tf.resource):
                known[inner.name] = 0, self.found.contents.get(outer.name)
            elif not outer.shape.is_fully_defined():
                known[inner.name] = self.found.sizes[outer.name], None
        operations = leading_to(body)
        learned = learn_sizes(operations, self.library, known)
        return Drawn(body, learned, body_bytes(operations, body, learned))

    def _loop(self, operation: tf.Operation) -> None:
        inputs, outputs = list(operation.inputs), list(operation.outputs)
        drawn = self._body(operation.get_attr("body").name, inputs)
        body, learned = drawn.body, drawn.learned
        trips, how = self._trip_count(operation, inputs)
        if trips is None:
            trips, how = self._watched_trips(inputs, outputs), WATCHED
            self.hanging.update(t.name for t in outputs if trips is not None)
        asked = self._body(operation.get_attr("cond").name, inputs)
        abreast = operation.get_attr("parallel_iterations")
        abreast = abreast if trips is None else min(abreast, trips)
        if any(t.name in self.hanging for t in inputs):
            abreast = 1  # a gradient's loop waits in each iteration for the one before
        self.found.attrs[operation.name] = attrs_of(
            [drawn, asked],
            max(drawn.taken.peak_bytes, asked.taken.peak_bytes),
            handed=handed_on(body),
            ahead_bytes=drawn.taken.peak_bytes * max(0, abreast - 1),
        )
        self.found.unsized |= {f"{operation.name}/{name}": None for name in learned.unsized}
        held: set[str] = set()
        for before, after, result in zip(inputs, outputs, body.results, strict=True):
            self.trips[after.name] = trips or 0
            growth, start = learned.sizes[result.name], self.found.sizes[before.name]
            if after.dtype == tf.variant:
                growth -= shared_bytes(body, learned, result, held)
            content = learned.contents.get(result.name) or self.found.contents.get(before.name)
            if after.dtype == tf.resource:
                self._set(after, 0, "", content)
            elif after.dtype == tf.variant:
                known = not growth or trips is not None
                size = start + growth * (trips or 0) if known else None
                self._set(after, size, how, content)
            else:
                self._set(after, max(start, growth), "")

    @functools.cached_property
    def constants(self) -> dict[str, Constant]:
        return known_constants(self.operations)

    def _trip_count(self, operation: tf.Operation, inputs: Any) -> tuple[int | None, str]:
        """From its condition; of a loop's gradient, from the loop's."""
        function = operation.get_attr("cond").name
        condition = draw_body(self.library, function, self._arguments(inputs))
        position = {t.name: i for i, t in enumerate(condition.arguments)}

        def value(t: tf.Tensor) -> int | None:
            outer = inputs[position[t.name]] if t.name in position else t
            if outer.name in self.trips:
                return self.trips[outer.name]
            found = tf.get_static_value(outer)
            if found is None and outer.name in self.constants:  # AutoGraph computes a range's limit
                found = self.constants[outer.name].array
            return int(found) if found is not None and found.ndim == 0 and found >= 0 else None

        return trip_count(condition.results[0], value, self.library)

    def _watched_trips(
        self, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
    ) -> int | None:
        """For one batch, of a loop that has a gradient: for that it fills lists, each time."""
        lengths = [
            math.prod(self.watched[after.name])
            for before, after in zip(inputs, outputs, strict=True)
            if after.name in self.watched and before.op.type == "EmptyTensorList"
        ]
        return max(lengths, default=None)

    def _branch(self, operation: tf.Operation) -> None:
        functions = chosen_functions(operation.node_def)
        drawn = [self._body(f.name, list(operation.inputs)[1:]) for f in functions]
        # What a branch hands on is asked for as the op's own outputs.
        handed = [handed_bytes(each.body, each.learned) for each in drawn]
        peaks = (each.taken.peak_bytes - own for each, own in zip(drawn, handed, strict=True))
        relief = tuple(
            (most_bytes - own, END if number == END else number + 1)  # behind the predicate
            for each, own in zip(drawn, handed, strict=True)
            for most_bytes, number in each.taken.relief
        )
        peak_bytes = max(0, *peaks)
        self.found.attrs[operation.name] = attrs_of(drawn, peak_bytes, first=1, relief=relief)
        twice = [held_twice(each.body) for each in drawn]
        for i, t in enumerate(operation.outputs):
            results = [(each.learned, each.body.results[i].name) for each in drawn]
            sized = all(name not in learned.unsized for learned, name in results)
            sizes = [learned.sizes[name] for learned, name in results]
            size = max(0 if i in held else each for each, held in zip(sizes, twice, strict=True))
            contents = [learned.contents.get(name) for learned, name in results]
            content = next((each for each in contents if each), None)
            if not sized and t.name in self.watched:
                self._set(t, math.prod(self.watched[t.name]) * t.dtype.size, WATCHED, content)
            else:
                self._set(t, size if sized else None, BOUND, content)


def _product(dims: Sequence[int | None]) -> int:
    return math.prod(size for size in dims if size is not None)
