"""A step whose widest tensors are never whole: what makes and reads them runs part by part.

    x ─ conv ─ norm ─ relu ─ conv ─ pool ─ y          as it came

    x[0:2] ─ conv ─ norm ─ relu ─ conv ─ pool ─┐      in parts: all of it for the first examples,
    x[2:4] ─ conv ─ norm ─ relu ─ conv ─ pool ─┴ y    then for the next ones

Where each example of an op's output is made of the same example of its inputs (`memtrade.tf.rows`),
the op may run on some examples at a time. A part of a tensor is a tensor: kept, recomputed or
swapped by itself, and read by the same part of the backward pass. What is narrow is whole again;
what sums over the batch (filters' gradients, a loss) is added up part by part, equal within
rounding. After TSPLIT (Nie et al., ICDE 2022). O(ops x parts).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.tf.graft import graft
from memtrade.tf.nodes import Constant, NodeInput, Writer, with_nodes
from memtrade.tf.rows import Rowwise, first_size, ways_of

# Of the widest, tensors with less than this share stay whole.
_WIDE = 1 / 3

_SHAPES = ("Shape", "ShapeN", "Size")


def chosen_ways(graph: Any, batch: Sequence[tf.Tensor]) -> dict[str, Rowwise]:
    """By name, the ops to run in parts: those that make or read what is wide, and what leads from
    one of them to another without weights, such as a norm's statistics.

    Args:
        graph: a FuncGraph whose shapes are known.
        batch: those of its inputs that count examples in their first dimension.
    """
    operations = graph.get_operations()
    ways = ways_of(operations, batch)
    least = _WIDE * _widest(operations, ways)
    wide = {
        op.name
        for op in operations
        if op.name in ways and any(_bytes(t) >= least for t in ways[op.name].divided(op))
    }
    light = {name for name, way in ways.items() if not way.heavy and not way.total}
    behind, before = set(wide), set(wide)
    for op in operations:
        if op.name in light and any(t.op.name in behind for t in op.inputs):
            behind.add(op.name)
    for op in reversed(operations):
        readers = (each.name for t in op.outputs for each in t.consumers())
        if op.name in light and any(name in before for name in readers):
            before.add(op.name)
    return {name: way for name, way in ways.items() if name in behind & before}


def split_by_example(
    concrete: Any,
    specs: Sequence[tf.TensorSpec],
    ways: Mapping[str, Rowwise],
    ranges: Sequence[tuple[int, int]],
) -> Any:
    """A tf.function of `specs` that does as `concrete` does, these ops in parts.

    Args:
        ranges: first and last example, exclusive, of each part.
    """
    made = _Parts(concrete.graph, ways, ranges)
    for op in concrete.graph.get_operations():
        made.add(op)
    results = [made.whole(t) for t in concrete.graph.outputs]
    graph_def = with_nodes(made.graph_def, made.writer.nodes)
    return graft(concrete, graph_def, specs, results=results)


def _widest(operations: Sequence[tf.Operation], ways: Mapping[str, Rowwise]) -> int:
    """The bytes of the largest tensor that may come in parts."""
    having = [op for op in operations if op.name in ways]
    return max((_bytes(t) for op in having for t in ways[op.name].divided(op)), default=0)


def _bytes(t: tf.Tensor) -> int:
    return (t.shape.num_elements() or 0) * t.dtype.size


class _Parts:
    """The nodes, while they are made. Ops in parts wait until somebody needs one of their results
    whole, and run then: all of them for the first part, all for the second. Or sooner, before the
    sums that they hold meanwhile get larger than a part of what is wide."""

    def __init__(self, graph: Any, ways: Mapping[str, Rowwise], ranges: Sequence[tuple[int, int]]):
        self.ways, self.ranges = ways, ranges
        self.graph_def = graph.as_graph_def()
        self._node_of = {node.name: node for node in self.graph_def.node}
        self.writer = Writer({}, self._node_of)
        self._waiting: dict[str, tf.Operation] = {}
        self._summed_bytes = 0  # of what these add up: held from the first part to the last
        self._most_summed = _widest(graph.get_operations(), ways) // len(ranges)
        self._nodes_of: dict[str, list[str]] = {}  # an op's name -> the nodes of its parts
        self._parts: dict[str, list[str]] = {}  # a tensor's name -> its parts
        self._slices: dict[tuple[str, int], str] = {}  # of a whole tensor's
        self._whole: dict[str, str] = {}  # the same -> what it is called now

    def add(self, op: tf.Operation) -> None:
        if op.name in self.ways:
            self._run_before([*self._read_whole(op), *op.control_inputs])
            self._waiting[op.name] = op
            if self.ways[op.name].total:
                self._summed_bytes += sum(map(_bytes, op.outputs))
            if self._summed_bytes > self._most_summed:
                self._run()
        elif op.type in _SHAPES and all(t.shape.is_fully_defined() for t in op.inputs):
            self._add_shapes(op)
        else:
            self._run_before(op.control_inputs)
            self._copy(op, op.name, [self.whole(t) for t in op.inputs], own_name=True)

    def whole(self, t: tf.Tensor) -> str:
        """The reference of all of it; written down where it is wanted for the first time."""
        self._run_before([t.op])
        if t.name not in self._whole and t.name in self._parts:
            inputs = [*self._parts[t.name], Constant(np.int32(0))]
            attrs = {"T": t.dtype, "N": len(self._parts[t.name]), "Tidx": tf.int32}
            self._whole[t.name] = self._make(t.op, "ConcatV2", f"{_bare(t)}/whole", inputs, **attrs)
        return self._whole.get(t.name, t.name)

    def _read_whole(self, op: tf.Operation) -> Iterable[tf.Operation]:
        """Who makes what the op needs before its first part can run."""
        way = self.ways[op.name]
        for i, t in enumerate(op.inputs):
            made_by = self.ways.get(t.op.name)
            if made_by is not None and (i not in way.rows or made_by.total) and i != way.told:
                yield t.op

    def _run_before(self, ops: Iterable[tf.Operation]) -> None:
        if any(op.name in self._waiting for op in ops):
            self._run()

    def _run(self) -> None:
        waiting, self._waiting, self._summed_bytes = self._waiting, {}, 0
        for part in range(len(self.ranges)):
            for op in waiting.values():
                self._run_part(op, part)

    def _run_part(self, op: tf.Operation, part: int) -> None:
        way = self.ways[op.name]
        inputs: list[NodeInput] = []
        for i, t in enumerate(op.inputs):
            if i == way.told:
                shape = [self._rows(op.outputs[0], part)[1], *op.outputs[0].shape.as_list()[1:]]
                inputs.append(Constant(np.asarray(shape, t.dtype.as_numpy_dtype)))
            else:
                inputs.append(self._part_of(t, part) if i in way.rows else self.whole(t))
        name = self._copy(op, f"{op.name}/part{part}", inputs)
        self._nodes_of.setdefault(op.name, []).append(name)
        for i, t in enumerate(op.outputs):
            made = f"{name}:{i}" if i else name
            if way.total:
                self._add_up(op, t, made, part)
            else:
                self._parts.setdefault(t.name, []).append(made)

    def _part_of(self, t: tf.Tensor, part: int) -> str:
        """Of a tensor that is whole a slice, which is a view."""
        if t.name in self._parts:
            return self._parts[t.name][part]
        if (t.name, part) not in self._slices:
            first, count = self._rows(t, part)
            bounds = [Constant(np.asarray([each], np.int32)) for each in (first, first + count, 1)]
            inputs, name = [self.whole(t), *bounds], f"{_bare(t)}/rows{part}"
            sliced = self._make(t.op, "StridedSlice", name, inputs, T=t.dtype, Index=tf.int32)
            self._slices[t.name, part] = sliced
        return self._slices[t.name, part]

    def _add_up(self, op: tf.Operation, t: tf.Tensor, made: str, part: int) -> None:
        if self.ways[op.name].averaged:
            first, end = self.ranges[part]
            share = (end - first) / self.ranges[-1][1]
            weighted = [made, Constant(np.asarray(share, t.dtype.as_numpy_dtype))]
            made = self._make(op, "Mul", f"{op.name}/weighted{part}", weighted, T=t.dtype)
        if part:
            summed = [self._whole[t.name], made]
            made = self._make(op, "AddV2", f"{op.name}/sum{part}", summed, T=t.dtype)
        self._whole[t.name] = made

    def _add_shapes(self, op: tf.Operation) -> None:
        for i, t in enumerate(op.outputs):
            shape = op.inputs[i].shape
            value = shape.num_elements() if op.type == "Size" else shape.as_list()
            self._whole[t.name] = self.writer.constant(np.asarray(value, t.dtype.as_numpy_dtype))

    def _rows(self, t: tf.Tensor, part: int) -> tuple[int, int]:
        """First row of the part, and how many it has."""
        first, end = self.ranges[part]
        each = first_size(t.shape) // self.ranges[-1][1]
        return first * each, (end - first) * each

    def _copy(
        self, op: tf.Operation, name: str, inputs: Sequence[NodeInput], *, own_name: bool = False
    ) -> str:
        """The op on these; behind all parts of what it waits for."""
        waits = [name for w in op.control_inputs for name in self._nodes_of.get(w.name, [w.name])]
        node = self._node_of[op.name]
        return self.writer.add(node, name, inputs, dict.fromkeys(waits), own_name=own_name)

    def _make(
        self, op: tf.Operation, kind: str, name: str, inputs: Sequence[NodeInput], **attrs: Any
    ) -> str:
        return self.writer.make(kind, name, inputs, device=op.device, **attrs)


def _bare(t: tf.Tensor) -> str:
    """Of a tensor a name for nodes."""
    return t.op.name if t.value_index == 0 else f"{t.op.name}/{t.value_index}"
