"""Shapes that tracing does not tell, as they are for one batch: the ops that lead to them are run.

Nothing else runs, and nothing that changes what is there: what comes of an iterator or a queue is
not watched.
"""

import gc
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from memtrade.graph import BOUND
from memtrade.op_types import DRAWING_TYPES, HARMLESS_TYPES, LOOP_TYPES
from memtrade.simulate.walk import MAX_SLICE_BYTES
from memtrade.tf.body_bytes import BodyBytes
from memtrade.tf.graft import grafted, ran_once
from memtrade.tf.inline import changing
from memtrade.tf.nodes import NodeDef, make_node, reached, readers, with_nodes
from memtrade.tf.sizes import learn_sizes

Shapes = dict[str, tuple[int, ...]]


def learned_sizes(
    concrete: Any,
    operations: Sequence[tf.Operation],
    library: Any,
    held: Mapping[str, tuple[int, tf.TensorSpec | None]],
    example: Sequence[Any] | None,
) -> tuple[BodyBytes, Shapes]:
    """What is known of sizes, and the shapes that had to be watched for that, but for those of what
    swaps slice: another batch's is another."""
    learned = learn_sizes(operations, library, held)
    vague = _vague(learned)
    constant = constant_shapes(concrete, vague) if vague else {}
    if constant:
        constant = inferred_shapes(concrete, constant, vague)
        learned = learn_sizes(operations, library, held, constant=constant)
    if not learned.unsized or example is None:
        return learned, {}
    watched = watched_shapes(concrete, example, _vague(learned))
    learned = learn_sizes(operations, library, held, watched, constant)
    return learned, {t: each for t, each in watched.items() if learned.sizes[t] <= MAX_SLICE_BYTES}


def _vague(learned: BodyBytes) -> set[str]:
    """The tensors that are bounded from above, or have no size at all."""
    bounded = {name for name, how in learned.how.items() if how == BOUND}
    return bounded.union(learned.unsized)


def constant_shapes(concrete: Any, names: Collection[str]) -> Shapes:
    """The shape of each of the tensors `names` that hangs on nothing but constants and shapes that
    are known, such as how many a mask lets through: the same for every batch."""
    varying = [
        operation
        for operation in concrete.graph.get_operations()
        if operation.type == "Placeholder" or operation.op_def.is_stateful
    ]
    behind = reached(varying, lambda op: [each for each in readers(op) if not _is_shape(each)])
    return _shapes(concrete, _tensors(concrete, names, but=behind), None)


def inferred_shapes(concrete: Any, known: Shapes, names: Collection[str]) -> Shapes:
    """`known`, and the shapes of the tensors `names` that TensorFlow infers from these: of a graph
    that has no more than leads to them."""

    def told(operation: tf.Operation) -> tf.TensorShape | None:
        """The shape of what it makes, where that is known without what it reads."""
        if len(operation.outputs) != 1:
            return None
        (made,) = operation.outputs
        if any(t.dtype == tf.resource for t in operation.inputs):  # the graph alone says none
            return made.shape
        return tf.TensorShape(known[made.name]) if made.name in known else None

    def before(operation: tf.Operation) -> list[tf.Operation]:
        is_told = _is_shape(operation) or told(operation) is not None
        return [] if is_told else [t.op for t in operation.inputs]

    graph, graph_def = concrete.graph, concrete.graph.as_graph_def()
    needed = reached((graph.get_tensor_by_name(name).op for name in names), before)
    nodes = [node for node in graph_def.node if node.name in needed]
    for node in nodes:
        operation = graph.get_operation_by_name(node.name)
        if _is_shape(operation):
            node.CopyFrom(_written_down(operation))
        elif (shape := told(operation)) is not None:
            dtype = operation.outputs[0].dtype
            node.CopyFrom(make_node("Placeholder", node.name, dtype=dtype, shape=shape))
        node.input[:] = [each for each in node.input if not each.startswith("^")]
        node.attr.pop("_class", None)  # beside which op it is to run: that may be left out
    try:
        return known | _static_shapes(with_nodes(graph_def, nodes), names)
    finally:
        gc.collect()  # with a graph goes what TensorFlow has computed to infer its shapes


def _static_shapes(graph_def: Any, names: Collection[str]) -> Shapes:
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    made = [t for op in graph.get_operations() for t in op.outputs if t.name in names]
    sure = [t for t in made if t.shape.is_fully_defined()]
    return {t.name: tuple(each or 0 for each in t.shape.as_list()) for t in sure}


def _is_shape(operation: tf.Operation) -> bool:
    """Whether this says a shape that is known without its being run."""
    return operation.type == "Shape" and operation.inputs[0].shape.is_fully_defined()


def _written_down(shape: tf.Operation) -> NodeDef:
    (told,) = shape.outputs
    return make_node("Const", shape.name, dtype=told.dtype, value=tf.get_static_value(told))


def watched_shapes(concrete: Any, batch: Sequence[Any], names: Collection[str]) -> Shapes:
    """The shape that each of the tensors `names` has for `batch`, where that can be watched.

    Args:
        concrete: a function of the batch that calls nothing.
        batch: tensors or arrays.
        names: of tensors of its graph.
    """
    if any(map(tf.is_symbolic_tensor, (*concrete.captured_inputs, *batch))):
        return {}
    changing = reached(_changing(concrete.graph), readers)
    return _shapes(concrete, _tensors(concrete, names, but=changing), batch)


def _tensors(concrete: Any, names: Collection[str], *, but: Collection[str]) -> list[tf.Tensor]:
    """The tensors `names` that have a shape of their own, and the lists of loops, without what the
    ops `but` make."""
    return [
        t
        for operation in concrete.graph.get_operations()
        if operation.name not in but
        for t in operation.outputs
        if t.name in names and (_is_list(t) or t.dtype not in (tf.variant, tf.resource))
    ]


def _is_list(t: tf.Tensor) -> bool:
    return t.dtype == tf.variant and t.op.type in LOOP_TYPES


def _shapes(concrete: Any, wanted: Sequence[tf.Tensor], batch: Sequence[Any] | None) -> Shapes:
    """`batch`: None where none of the `wanted` reads an input."""
    if not wanted:
        return {}
    with tf.init_scope():  # apply is called while a function is being traced
        asking = _asking(concrete, wanted, reads=batch is not None)
        found = ran_once(asking, batch or ())
        if not found:
            return {}
        return {
            t.name: tuple(map(int, np.ravel(shape))) for t, shape in zip(wanted, found, strict=True)
        }


def _asking(concrete: Any, wanted: Sequence[tf.Tensor], *, reads: bool) -> Any:
    """A concrete function that returns the shape of each of the `wanted`: of the batch, if these
    read inputs, else of nothing."""
    graph_def = concrete.graph.as_graph_def()
    inputs = list(concrete.inputs) if reads else []
    given = inputs[: len(inputs) - len(concrete.captured_inputs)]
    names = [t.op.name for t in inputs]
    needed = reached((t.op for t in wanted), _run_before)
    nodes = [node for node in graph_def.node if node.name in needed and node.name not in names]
    for node in nodes:
        operation = concrete.graph.get_operation_by_name(node.name)
        if _is_shape(operation):
            node.CopyFrom(_written_down(operation))
        elif (value := _just_assigned(operation)) is not None:
            node.CopyFrom(make_node("Identity", node.name, [value.name], T=value.dtype))
        node.input[:] = [each for each in node.input if not each.startswith("^")]
    asks = [_asked(f"memtrade/shape_{i}", t) for i, t in enumerate(wanted)]
    return grafted(
        with_nodes(graph_def, [*nodes, *asks]),
        [tf.TensorSpec(t.shape, t.dtype) for t in given],
        names=names,
        captured=lambda: concrete.captured_inputs if reads else (),
        structure=[tf.TensorSpec([None])] * len(asks),
        results=[node.name for node in asks],
        effects=[],
    ).get_concrete_function()


def _asked(name: str, t: tf.Tensor) -> NodeDef:
    """What says the shape of a tensor, or how many a list holds."""
    if _is_list(t):
        return make_node("TensorListLength", name, [t.name])
    return make_node("Shape", name, [t.name], T=t.dtype, out_type=tf.int64)


def _run_before(operation: tf.Operation) -> list[tf.Operation]:
    """What has to run before this, where nothing is assigned."""
    if _is_shape(operation):
        return []
    value = _just_assigned(operation)
    return [t.op for t in (operation.inputs if value is None else [value])]


def _just_assigned(read: tf.Operation) -> tf.Tensor | None:
    """What the step has assigned to the variable that this reads, just before: what it held until
    then may have no sense there, such as an average's first zeros below a fraction line."""
    if read.type != "ReadVariableOp":
        return None
    handle = read.inputs[0].name
    assigned = (
        each.inputs[1]
        for each in read.control_inputs
        if each.type == "AssignVariableOp" and each.inputs[0].name == handle
    )
    return next(assigned, None)


def _changing(graph: Any) -> list[tf.Operation]:
    """The ops that change something, themselves or in what they call."""
    harmless = HARMLESS_TYPES | DRAWING_TYPES
    names = changing(graph.as_graph_def(), harmless.__contains__)
    return [graph.get_operation_by_name(name) for name in names]
