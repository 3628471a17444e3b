"""What the body of a loop or a branch takes while it runs: it is walked as a little graph."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from memtrade.facts.kernel import END
from memtrade.graph import GraphData, StepGraph
from memtrade.op_types import BODY_TYPES, READ_TYPES
from memtrade.plan import Action
from memtrade.simulate.memory import ROOMY_BYTES, Simulator
from memtrade.simulate.program import Linker
from memtrade.target import ARENA, profile_target
from memtrade.tf.bodies import Body, original
from memtrade.tf.definitions import Definitions, read_ops
from memtrade.tf.nodes import awaited, reached
from memtrade.tf.values import equal_constants, known_numbers, uniform_constants


@dataclass
class BodyBytes:
    """Of tensors by name: bytes, how they are known, and what lists hold.

    Attributes:
        attrs: of loops and branches by name, what a StepGraph says of them: their scratch, what
            their bodies keep for good and compute before the first step, what they do with
            variables (`memtrade.facts.variables.touched`), which of a loop's outputs are its
            inputs, and what other iterations take that TensorFlow may run at once; of branches,
            what they take as arguments go (`Request.relief`).
    """

    sizes: dict[str, int] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    contents: dict[str, tf.TensorSpec] = field(default_factory=dict)
    attrs: dict[str, dict[str, Any]] = field(default_factory=dict)
    unsized: dict[str, None] = field(default_factory=dict)  # a set that keeps its order


def shared_bytes(body: Body, learned: BodyBytes, result: tf.Tensor, held: set[str]) -> int:
    """Of what a loop's body appends to a list: what another list or a variable holds, too, or never
    changes.

    Args:
        held: names of what lists were found to hold so far; extended.
    """
    shared, t, hidden = 0, original(result), body.contents.values()
    while t.op.type in ("TensorListPushBack", "TensorListSetItem"):
        item = _carried(body, t.op.inputs[1 if t.op.type == "TensorListPushBack" else 2])
        if (
            item.name in held
            or item.op.name in hidden
            or any(item is each for each in body.arguments)
        ):
            shared += learned.sizes[item.name]
        held.add(item.name)
        t = original(t.op.inputs[0])
    return shared


def _carried(body: Body, t: tf.Tensor) -> tf.Tensor:
    """The tensor itself; of what an iteration got from the one before, the one made there."""
    for _ in body.arguments:
        t = original(t)
        number = next((i for i, each in enumerate(body.arguments) if each is t), None)
        if number is None or original(body.results[number]) is t:
            break
        t = body.results[number]
    return t


def handed_on(body: Body) -> tuple[int, ...]:
    """Which of a loop's results are the arguments that they began with, in their buffers."""
    pairs = zip(body.arguments, body.results, strict=True)
    return tuple(i for i, (given, made) in enumerate(pairs) if original(made) is original(given))


def _content(t: tf.Tensor) -> tf.Tensor:
    """What a branch hands on for the gradient: in an Optional, as the other one has nothing."""
    t = original(t)
    return original(t.op.inputs[0]) if t.op.type == "OptionalFromValue" else t


def held_twice(body: Body) -> set[int]:
    """Which of a branch's results are Optionals of what it hands on anyway, or of what was there
    before: an argument, or a variable's value."""
    held = {original(each).name for each in body.arguments}
    held.update(original(t).name for t in body.results if t.dtype != tf.variant)
    hidden, found = set(body.contents.values()), set()
    for i, t in enumerate(body.results):
        if t.dtype == tf.variant:
            content = _content(t)
            if content.name in held or content.op.name in hidden:
                found.add(i)
            held.add(content.name)
    return found


def handed_bytes(body: Body, learned: BodyBytes) -> int:
    """Of the results, what the body itself has made."""
    made = {t.name: t for t in map(_content, body.results) if t.dtype != tf.variant}
    given = {original(each).name for each in body.arguments}
    hidden = body.contents.values()
    return sum(
        learned.sizes[name]
        for name, t in made.items()
        if name not in given and t.op.name not in hidden
    )


def _touched(
    operations: Sequence[tf.Operation], body: Body, learned: BodyBytes
) -> frozenset[tuple[int, str]]:
    """See `Taken.touched`."""
    places = {each.op.name: i for i, each in enumerate(body.arguments)}
    done: list[tuple[tf.Tensor, str]] = []
    for operation in operations:
        if operation.type in BODY_TYPES:
            inner = learned.attrs.get(operation.name, {}).get("touched", ())
            done += ((operation.inputs[i], type_) for i, type_ in inner)
        elif operation.type not in READ_TYPES:
            handles = (t for t in operation.inputs if t.dtype == tf.resource)
            done += ((t, operation.type) for t in handles)
    known = ((places.get(original(t).op.name), type_) for t, type_ in done)
    return frozenset((place, type_) for place, type_ in known if place is not None)


def leading_to(body: Body) -> list[tf.Operation]:
    """The ops that make the body's results, or have effects."""
    operations = body.graph.get_operations()
    effects = [operation for operation in operations if operation.op_def.is_stateful]
    alive = reached([*(t.op for t in body.results), *effects], awaited)
    return [each for each in operations if each.name in alive]


class Taken(NamedTuple):
    """What a body takes, in bytes.

    Attributes:
        peak_bytes: most in use beside the arguments (lists are counted where they are handed on)
            and beside what constants take.
        kept_bytes: of each constant that is there for good once the step has run.
        folding_bytes: of each that the runtime computes of them before, merged or not.
        looked_at_bytes: of each that shape functions ask for: graphs keep these. The step as it was
            traced has a graph of the body, and a rewritten one only its nodes.
        relief: order after order, most in use until an argument's last reader has run, and the
            number of that argument; last of each, what is in use after the last of them, and END.
        touched: the numbers of arguments that are handles, and the types of ops that they are
            given to, but for reads.
    """

    peak_bytes: int
    kept_bytes: tuple[int, ...]
    folding_bytes: tuple[int, ...]
    looked_at_bytes: tuple[int, ...]
    relief: tuple[tuple[int, int], ...]
    touched: frozenset[tuple[int, str]]


class Drawn(NamedTuple):
    """A body, its tensors' sizes, and what it takes."""

    body: Body
    learned: BodyBytes
    taken: Taken


def body_bytes(operations: Sequence[tf.Operation], body: Body, learned: BodyBytes) -> Taken:
    graph = _as_step(operations, body, learned)
    simulator = Simulator(graph, profile_target(ARENA))
    as_written = tuple(Action("run", op_id) for op_id in range(len(graph.ops)))
    orders = as_written, simulator.actions(())
    walked = [simulator.memory(each, limit_bytes=ROOMY_BYTES, series=True) for each in orders]
    ahead_bytes = 0, simulator.ahead_bytes
    in_use = [
        [bytes_ + ahead - each.persistent_bytes for bytes_ in each.in_use_bytes or (0,)]
        for each, ahead in zip(walked, ahead_bytes, strict=True)
    ]
    own, inner = _constants(graph, simulator.linker), learned.attrs.values()
    return Taken(
        max(map(max, in_use)),
        **{
            name: sizes + tuple(size for each in inner for size in each[name])
            for name, sizes in own.items()
        },
        relief=tuple(
            each
            for order, series in zip(orders, in_use, strict=True)
            for each in _relief(order, series, body, graph)
        ),
        touched=_touched(operations, body, learned),
    )


def attrs_of(
    bodies: Sequence[Drawn],
    scratch_bytes: int,
    *,
    first: int = 0,
    handed: tuple[int, ...] = (),
    ahead_bytes: int = 0,
    relief: tuple[tuple[int, int], ...] = (),
) -> dict[str, Any]:
    """See `BodyBytes.attrs`. `first`: the input that bodies begin with."""
    touched = sorted({(first + i, type_) for each in bodies for i, type_ in each.taken.touched})
    made = {
        "scratch_bytes": scratch_bytes,
        "kept_bytes": sum((each.taken.kept_bytes for each in bodies), ()),
        "folding_bytes": sum((each.taken.folding_bytes for each in bodies), ()),
        "looked_at_bytes": sum((each.taken.looked_at_bytes for each in bodies), ()),
        "handed": handed,
        "ahead_bytes": ahead_bytes,
        "relief": relief,
    }
    # A graph's fingerprint has all of this: where there is none, plans saved before still fit.
    return made | ({"touched": tuple(touched)} if touched else {})


def _constants(graph: StepGraph, linker: Linker) -> dict[str, tuple[int, ...]]:
    """See `Taken`: what its attributes of these names say of the body itself."""
    (_, constants), sizes = linker.unplanned, linker.sizes
    held = dict.fromkeys(t for op in graph.ops if op.type == "Const" for t in op.outputs)
    own = held if constants.folding_bytes else ()
    made = dict.fromkeys(t for t in constants.folded.values() if t not in held)
    lasting = [t for t in held if t in constants.lasting]
    return {
        "kept_bytes": tuple(sizes[t] for t in (*lasting, *made)),
        "folding_bytes": (*constants.folding_bytes, *(sizes[t] for t in own)),
        "looked_at_bytes": tuple(sizes[t] for t in constants.looked_at),
    }


def _relief(
    order: Sequence[Action], in_use: Sequence[int], body: Body, graph: StepGraph
) -> Iterator[tuple[int, int]]:
    """See `Taken.relief`. What nobody reads goes last."""
    reads = ((index, graph.ops[action.id].inputs) for index, action in enumerate(order))
    last = {graph.root[t]: index for index, inputs in reads for t in inputs}
    ids = {graph.label(t.id): t.id for t in graph.tensors}
    read = [(last.get(ids.get(each.name, -1)), i) for i, each in enumerate(body.arguments)]
    ends = sorted((end, number) for end, number in read if end is not None)
    begin = 0
    for end, number in ends:
        yield max(in_use[begin : end + 1], default=0), number
        begin = max(begin, end + 1)
    yield max(in_use[begin:], default=0), END


def _as_step(operations: Sequence[tf.Operation], body: Body, learned: BodyBytes) -> StepGraph:
    """The body as a little step, its arguments as the batch."""
    graph_def = body.graph.as_graph_def()
    definitions = Definitions(graph_def)
    attrs: dict[str, dict[str, Any]] = {}
    sizes: dict[str, int] = {}
    hidden = set(body.contents.values())
    for operation in operations:
        taken = learned.attrs.get(operation.name)
        attrs[operation.name] = {"scratch_bytes": taken["scratch_bytes"]} if taken else {}
        held = operation.name in hidden or operation.type == "OptionalGetValue"
        for t in operation.outputs:
            sizes[t.name] = 0 if held or t.dtype == tf.variant else learned.sizes[t.name]
    ops, tensors, ids = read_ops(operations, definitions, attrs, sizes, {})
    arguments = tuple(ids[t.name] for t in body.arguments if t.name in ids)
    results = tuple(ids[_content(t).name] for t in body.results)
    return StepGraph(
        GraphData(
            "body",
            tuple(ops),
            tuple(tensors),
            inputs=arguments,
            captures=(),
            capture_bytes=(),
            outputs=results,
            control_outputs=(),
            loss=results[0] if results else 0,
            collection=(),
            nodes=tuple(node for node, _ in definitions.places),
            values=known_numbers(operations, ids),
            equal=equal_constants(graph_def, ops),
            uniform=uniform_constants(graph_def, ops),
        )
    )
