"""From a tf.function to a StepGraph: the one place that reads TensorFlow's graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import GraphData, Op, StepGraph, Tensor
from memtrade.tf.step import CHECKPOINTS, TrainStep


@dataclass(frozen=True)
class Trace:
    """A traced step: the same ops as TensorFlow's GraphDef and as a StepGraph."""

    step: TrainStep
    concrete: Any  # tf.types.experimental.ConcreteFunction, with its FuncGraph
    graph_def: tf.compat.v1.GraphDef
    graph: StepGraph


def trace(step: TrainStep) -> Trace:
    """Traces `step` for its specs. Raises UnsupportedGraphError for what cannot be rewritten."""
    concrete = step.function.get_concrete_function(*step.specs)
    graph = StepGraph(read_graph(step.name, concrete))
    return Trace(step, concrete, concrete.graph.as_graph_def(), graph)


def read_graph(name: str, concrete: Any) -> GraphData:
    """The graph of a concrete function as plain data.

    Shapes come from the function's own graph: an imported GraphDef has lost those behind
    variables' handles.
    """
    func_graph = concrete.graph
    operations = _alive(func_graph)
    op_ids = {operation.name: i for i, operation in enumerate(operations)}
    attrs = {node.name: _simple_attrs(node) for node in func_graph.as_graph_def().node}
    is_stateful = _StatefulTypes()
    ops: list[Op] = []
    tensors: list[Tensor] = []
    tensor_ids: dict[str, int] = {}
    for op_id, operation in enumerate(operations):
        outputs = []
        for index, output in enumerate(operation.outputs):
            tensor = _read_tensor(len(tensors), op_id, index, output)
            tensor_ids[output.name] = tensor.id
            tensors.append(tensor)
            outputs.append(tensor.id)
        ops.append(
            Op(
                id=op_id,
                name=operation.name,
                type=operation.type,
                inputs=tuple(tensor_ids[t.name] for t in operation.inputs),
                # TensorFlow keeps them in a set: sorted, so that the same step is the same data.
                controls=tuple(sorted(op_ids[op.name] for op in operation.control_inputs)),
                outputs=tuple(outputs),
                stateful=is_stateful(operation),
                attrs=attrs[operation.name],
            )
        )
    batch = len(func_graph.inputs) - len(concrete.captured_inputs)
    return GraphData(
        name=name,
        ops=tuple(ops),
        tensors=tuple(tensors),
        inputs=tuple(tensor_ids[t.name] for t in func_graph.inputs[:batch]),
        captures=tuple(tensor_ids[t.name] for t in func_graph.inputs[batch:]),
        capture_bytes=tuple(_captured_bytes(t) for t in concrete.captured_inputs),
        outputs=tuple(tensor_ids[t.name] for t in func_graph.outputs),
        control_outputs=tuple(sorted(op_ids[op.name] for op in func_graph.control_outputs)),
        loss=tensor_ids[_find_loss(func_graph).name],
        collection=tuple(
            tensor_ids[t.name]
            for t in func_graph.get_collection(CHECKPOINTS)
            if t.name in tensor_ids
        ),
    )


def _alive(func_graph: Any) -> list[tf.Operation]:
    """The ops that lead to what the step returns or updates, and its inputs.

    TensorFlow's runtime prunes the others from a function (gradients leave some behind), but not
    once a control edge of a total order leads through them.
    """
    stack = [t.op for t in (*func_graph.outputs, *func_graph.inputs)]
    stack.extend(func_graph.control_outputs)
    alive = {operation.name for operation in stack}
    while stack:
        operation = stack.pop()
        for before in (*(t.op for t in operation.inputs), *operation.control_inputs):
            if before.name not in alive:
                alive.add(before.name)
                stack.append(before)
    return [operation for operation in func_graph.get_operations() if operation.name in alive]


def _read_tensor(tensor_id: int, op_id: int, index: int, output: tf.Tensor) -> Tensor:
    shape = None
    if output.shape.is_fully_defined():
        shape = tuple(size for size in output.shape.as_list() if size is not None)
    sized = shape is not None and output.dtype not in (tf.resource, tf.variant, tf.string)
    size_bytes = math.prod(shape or ()) * output.dtype.size if sized else 0
    return Tensor(tensor_id, op_id, index, output.dtype.name, shape, size_bytes)


def _find_loss(func_graph: Any) -> tf.Tensor:
    """The first floating-point scalar that the step returns."""
    for output in func_graph.outputs:
        if output.dtype.is_floating and output.shape.rank == 0:
            return output
    raise UnsupportedGraphError(
        f"no loss found: the step {func_graph.name} returns no floating-point scalar. "
        "Return the loss, alone or in a structure"
    )


def _captured_bytes(captured: tf.Tensor) -> int:
    """Bytes of a captured constant, or of the variable behind a captured handle."""
    if captured.dtype != tf.resource:
        return _read_tensor(0, 0, 0, captured).size_bytes
    # The handle's shape_and_type is what TensorFlow itself infers variables' shapes from; there
    # is no public accessor. tests/tf/test_extract.py notices when it moves.
    data = captured._handle_data
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return 0
    shape = tf.TensorShape(data.shape_and_type[0].shape)
    if not shape.is_fully_defined():
        return 0
    return shape.num_elements() * tf.as_dtype(data.shape_and_type[0].dtype).size


class _StatefulTypes:
    """Whether an op type is stateful, asked once per type.

    A call's statefulness depends on the function that it calls: TensorFlow says it in the type
    (PartitionedCall against StatefulPartitionedCall).
    """

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def __call__(self, operation: tf.Operation) -> bool:
        if operation.type not in self._known:
            self._known[operation.type] = operation.op_def.is_stateful
        return self._known[operation.type]


def _simple_attrs(node: Any) -> dict[str, Any]:
    """The attributes that cost models read: numbers, strings, types and lists of them."""
    simple: dict[str, Any] = {}
    for key, value in node.attr.items():
        kind = value.WhichOneof("value")
        if key.startswith("_") or kind is None:
            continue
        if kind in ("i", "f", "b"):
            simple[key] = getattr(value, kind)
        elif kind == "s":
            simple[key] = value.s.decode(errors="replace")
        elif kind == "type":
            simple[key] = tf.as_dtype(value.type).name
        elif kind == "list" and value.list.i:
            simple[key] = list(value.list.i)
    return simple
