"""From a tf.function to a StepGraph: the one place that reads TensorFlow's graphs.

    step ──trace──► concrete function ──calls opened──► concrete function ──► StepGraph

The second one is the first where it calls nothing and its shapes are known.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import tensorflow as tf

from memtrade.collection import without_collection
from memtrade.errors import UnsupportedGraphError
from memtrade.findings import Finding
from memtrade.graph import GraphData, StepGraph
from memtrade.tf.alike import equal_results
from memtrade.tf.assigned import branches_in_place
from memtrade.tf.body_bytes import BodyBytes
from memtrade.tf.calls import Calls
from memtrade.tf.captured import captures, variable_spec
from memtrade.tf.definitions import Definitions, read_ops, simple_attrs
from memtrade.tf.findings import meeting_nodes, of_trace, refusals
from memtrade.tf.graft import graft
from memtrade.tf.inline import HANDED, Inlined, opens
from memtrade.tf.loss import Named, candidates, find_loss
from memtrade.tf.meetings import refuse_elsewhere
from memtrade.tf.nodes import awaited, reached
from memtrade.tf.origins import with_origins
from memtrade.tf.step import CHECKPOINTS, TrainStep
from memtrade.tf.sums import in_groups, is_later_group, parts_of
from memtrade.tf.unroll import shapes_kept, unrolled
from memtrade.tf.values import equal_constants, known_numbers, uniform_constants
from memtrade.tf.watched import learned_sizes


@dataclass(frozen=True)
class Trace:
    """A traced step: the same ops as TensorFlow's GraphDef and as a StepGraph; or the part of one
    that `device` ("CPU:1") does, whose graph is then that of the part alone."""

    step: TrainStep
    concrete: Any  # tf.types.experimental.ConcreteFunction, with its FuncGraph
    graph_def: tf.compat.v1.GraphDef
    graph: StepGraph
    device: str = ""


def trace(step: TrainStep) -> Trace:
    """Traces `step` for its specs. Raises UnsupportedGraphError for what cannot be rewritten."""
    return trace_concrete(step, step.function.get_concrete_function(*step.specs))


@without_collection()
def trace_concrete(step: TrainStep, concrete: Any) -> Trace:
    """The trace of a concrete function of `step.specs`, in their order."""
    traced = concrete
    concrete = in_groups(unrolled(opened(concrete, step.specs), step.specs), step.specs)
    concrete = branches_in_place(concrete, step.specs)
    data = with_origins(read_graph(step.name, concrete, step.laid, step.loss, step.example), traced)
    repeated = {data.inputs[i]: data.inputs[first] for i, first in step.repeated.items()}
    data = msgspec.structs.replace(data, behind=_behind(step, concrete), repeated=repeated)
    graph = StepGraph(data)
    if equal := equal_results(concrete, graph):
        graph = StepGraph(msgspec.structs.replace(data, equal=data.equal | equal))
    return Trace(step, concrete, concrete.graph.as_graph_def(), graph)


def _behind(step: TrainStep, concrete: Any) -> tuple[int, ...]:
    """`GraphData.behind`: of the variables that the step lays, those that it captures count."""
    captured = {id(outer) for _, outer in captures(concrete)}
    before = [0, *itertools.accumulate(int(id(each.handle) in captured) for each in step.laid)]
    return tuple(before[min(count, len(step.laid))] for count in step.behind)


def inspected(
    step: TrainStep, concrete: Any = None, arguments: Sequence[Any] = ()
) -> list[Finding]:
    """What is in `step`, whether or not it can be rewritten.

    Args:
        concrete: its concrete function, if it has been traced.
        arguments: the leaves of what it is called with.
    """
    if concrete is None:
        concrete = step.function.get_concrete_function(*step.specs)
    graph_def = concrete.graph.as_graph_def()
    return of_trace(graph_def, lambda: trace_concrete(step, concrete), arguments)


def opened(concrete: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """`concrete` with the functions that it calls inlined, for inputs of just these shapes.

    A function that was traced for open shapes (its input_signature says so) gets closed ones, and
    TensorFlow infers the others from them.
    """
    func_graph = concrete.graph
    closed = all(
        t.shape.as_list() == spec.shape.as_list()
        for t, spec in zip(func_graph.inputs, specs, strict=False)
    )
    graph_def = func_graph.as_graph_def()
    _refuse(graph_def)
    refuse_elsewhere(concrete)
    library = {each.signature.name: each for each in graph_def.library.function}
    if closed and not any(opens(node, library) for node in graph_def.node):
        return concrete
    inlined = Inlined(graph_def)
    return graft(
        concrete,
        inlined.graph_def,
        specs,
        results=[inlined.reference(t.name) for t in func_graph.outputs],
        effects=[inlined.effect(op.name) for op in func_graph.control_outputs],
        on_import=shapes_kept(func_graph),
    ).get_concrete_function()


def read_graph(
    name: str,
    concrete: Any,
    laid: Sequence[tf.Variable] = (),
    loss: Named = None,
    example: Sequence[tf.Tensor] | None = None,
) -> GraphData:
    """The graph of a concrete function as plain data, what it captures in the order of `laid`, what
    nothing else sizes as it is for an `example` of its batch.

    Shapes come from the function's own graph: an imported GraphDef has lost those behind
    variables' handles.
    """
    func_graph = concrete.graph
    operations = _alive(func_graph)
    graph_def = func_graph.as_graph_def()
    closed_over = captures(concrete)
    held = {inner.name: (0, spec) for inner, outer in closed_over if (spec := variable_spec(outer))}
    calls = Calls(graph_def, {name.partition(":")[0]: spec for name, (_, spec) in held.items()})
    definitions = Definitions(graph_def, calls)
    learned, watched = learned_sizes(concrete, operations, graph_def.library, held, example)
    attrs, stateful = _attrs(graph_def, calls, learned), _stateful(operations, calls)
    given = {inner.op.name for inner, _ in closed_over}
    ops, tensors, tensor_ids = read_ops(
        operations, definitions, attrs, learned.sizes, watched, captured=given, stateful=stateful
    )
    effects = {operation.name for operation in func_graph.control_outputs}
    place = {id(variable.handle): i for i, variable in enumerate(laid)}
    captured = sorted(closed_over, key=lambda pair: place.get(id(pair[1]), len(place)))

    def ids(made: Iterable[tf.Tensor]) -> tuple[int, ...]:
        return tuple(tensor_ids[t.name] for t in made)

    def living(made: Iterable[tf.Tensor]) -> tuple[int, ...]:
        return ids(t for t in made if t.name in tensor_ids)

    batch = func_graph.inputs[: len(func_graph.inputs) - len(closed_over)]
    inputs, outputs = ids(batch), ids(func_graph.outputs)
    returned = [ids(group) for group in candidates(concrete.structured_outputs, loss)]
    return GraphData(
        name=name,
        ops=tuple(ops),
        tensors=tuple(tensors),
        inputs=inputs,
        captures=ids(inner for inner, _ in captured),
        capture_bytes=tuple(_captured_bytes(outer) for _, outer in captured),
        outputs=outputs,
        control_outputs=tuple(op.id for op in ops if op.name in effects),
        loss=find_loss(
            ops, tensors, batch=inputs, returned=returned, outputs=outputs, named=loss is not None
        ),
        collection=living(func_graph.get_collection(CHECKPOINTS)),
        nodes=tuple(node for node, _ in definitions.places),
        functions=definitions.functions,
        values=known_numbers(operations, tensor_ids),
        equal=equal_constants(graph_def, ops),
        uniform=uniform_constants(graph_def, ops),
        gathered=tuple(map(living, filter(None, map(_gathered, func_graph.get_operations())))),
        sized={tensor_ids[name]: how for name, how in learned.how.items()},
        unsized=tuple(learned.unsized),
    )


def _our_attrs(node: Any) -> dict[str, Any]:
    identities = {"identities": list(node.attr[HANDED].list.i)} if HANDED in node.attr else {}
    return {**identities, **({"later_group": True} if is_later_group(node) else {})}


def _attrs(graph_def: Any, calls: Calls, learned: BodyBytes) -> dict[str, dict[str, Any]]:
    meeting = meeting_nodes(graph_def)
    return {
        node.name: {
            **simple_attrs(node),
            **calls.about(node),
            **meeting.get(node.name, {}),
            **_our_attrs(node),
            **learned.attrs.get(node.name, {}),
        }
        for node in graph_def.node
    }


def _stateful(operations: Sequence[tf.Operation], calls: Calls) -> set[str]:
    # Of a call, it depends on what is called, which the type says, too; but see `Calls.pure`.
    one_of = {operation.type: operation for operation in operations}
    kinds = {kind for kind, one in one_of.items() if one.op_def.is_stateful}
    return {each.name for each in operations if each.type in kinds} - calls.pure


def _alive(func_graph: Any) -> list[tf.Operation]:
    """The ops that lead to what the step returns or updates, and its inputs.

    TensorFlow's runtime prunes the others from a function (gradients leave some behind), but not
    once a control edge of a total order leads through them. They come in the order of creation,
    but for those that an earlier one was made to read later on (a loop's gradient does so).
    """
    roots = [t.op for t in (*func_graph.outputs, *func_graph.inputs)]
    roots.extend(func_graph.control_outputs)
    alive = reached(roots, awaited)
    ordered: dict[str, tf.Operation] = {}
    for operation in func_graph.get_operations():
        stack = [operation] if operation.name in alive else []
        while stack:
            missing = [each for each in awaited(stack[-1]) if each.name not in ordered]
            if missing and len(stack) <= len(alive):  # a longer way would go in circles
                stack.append(missing[0])
            else:
                done = stack.pop()
                ordered[done.name] = done
    return list(ordered.values())


def _gathered(operation: tf.Operation) -> list[tf.Tensor]:
    """What the step as it came hands on together at this op."""
    if operation.type == "IdentityN":
        return list(operation.inputs)
    graph: Any = operation.graph
    return [graph.get_tensor_by_name(name) for name in parts_of(operation)]


def _captured_bytes(captured: tf.Tensor) -> int:
    """Bytes of a captured constant, or of the variable behind a captured handle."""
    found = variable_spec(captured) if captured.dtype == tf.resource else captured
    if found is None or not found.shape.is_fully_defined() or not found.dtype.size:
        return 0
    return found.shape.num_elements() * found.dtype.size


def _refuse(graph_def: Any) -> None:
    """Raises UnsupportedGraphError for what would not be the same after a rewriting."""
    for found in refusals(graph_def):
        raise UnsupportedGraphError(f"op {found.where} {found.follows}")
