"""What a graph keeps of the values that it infers shapes with.

TensorFlow's shape functions ask for the values of inputs, `facts/shipped/shapes.toml` says which.
Whatever is made of constants alone, and of shapes that are known, is computed for that, and kept if
it is small. Where a value is read as a shape, so are the parts that it is put together of, those
that are known:

    Const ─► Cast ─► Add ─► Range        Range asks for the sum, and a graph keeps that alone
    number of examples, Const ─► Pack ─► Reshape      Reshape asks for the shape, whatever is known
                                                      of it: the Const is kept
"""

from collections.abc import Iterator

from memtrade.facts import looked_at, read_as_shapes, reuse
from memtrade.graph import Op, StepGraph, once_per_graph
from memtrade.op_types import BODY_TYPES, CALL_TYPES, NEVER_FOLDED_TYPES
from memtrade.simulate.spared import Spared, nothing_spared

_KEPT_BYTES = 1024  # the largest value
_WHOLE = ("int32", "int64")
_OF_ANY_NUMBERS = "Range"  # of the types that ask for values, the only one
_SHAPES = ("Shape", "ShapeN", "VariableShape")  # which are shapes already
_OF_SHAPES = ("Rank", "Shape", "Size")
_UNKNOWN = frozenset({*BODY_TYPES, *CALL_TYPES, *NEVER_FOLDED_TYPES})


def looked_at_values(graph: StepGraph, without: Spared) -> tuple[int, ...]:
    """The tensors whose values a graph keeps, in their order."""
    found: set[int] = set()
    for op in graph.ops:
        if op.id in without.left_out:
            continue
        read, shapes = without.inputs(op), read_as_shapes().get(op.type, ())
        for place in _asked(op, graph):
            values = [read[place]]
            if place in shapes:
                values += _parts(read[place], graph, without)
            whole = (t for t in values if graph.tensors[t].dtype in _WHOLE)
            found.update(values if op.type == _OF_ANY_NUMBERS else whole)
    known = _known(graph)
    return tuple(
        t
        for t in sorted(found)
        if known[(made := graph.tensors[t]).op] and made.size_bytes <= _KEPT_BYTES
    )


@once_per_graph
def looked_at_as_it_came(graph: StepGraph) -> tuple[int, ...]:
    """The same of the step as it came."""
    return looked_at_values(graph, nothing_spared(graph))


@once_per_graph
def _known(graph: StepGraph) -> list[bool]:
    """Of each op, whether TensorFlow computes what it makes where someone asks for it. O(edges)."""
    known = graph.folding.computed[:]
    for op in graph.ops:
        if op.type in _OF_SHAPES:
            known[op.id] |= graph.tensors[op.inputs[0]].shape is not None and (
                op.inputs[0] not in graph.data.sized
            )
        elif op.inputs and not op.stateful and op.type not in _UNKNOWN:
            known[op.id] |= all(known[graph.tensors[t].op] for t in op.inputs)
    return known


def _asked(op: Op, graph: StepGraph) -> Iterator[int]:
    """Places of inputs. Of types that nobody has tried, all are taken to be asked for: shapes, axes
    and the like. What updates read, and ops that compute with its like, are values."""
    known = looked_at().get(op.type)
    if known is None:
        alike = len({graph.tensors[t].dtype for t in op.inputs}) == 1
        values = op.stateful or (alike and op.type in reuse().tried)
        known = () if values else range(len(op.inputs))
    yield from (place % len(op.inputs) for place in known if place < len(op.inputs))


def _parts(shape: int, graph: StepGraph, without: Spared) -> Iterator[int]:
    """What a shape is put together of; what other ops make, as a whole."""
    op = graph.ops[graph.tensors[shape].op]
    read = without.inputs(op)
    if op.type == "Pack":
        yield from read
    elif op.type == "ConcatV2":
        for each in read[:-1]:
            yield from _parts(each, graph, without)
    elif op.type == "StridedSlice":
        if graph.tensors[read[1]].shape == (1,):
            yield from _parts(read[0], graph, without)
    elif op.type not in _SHAPES:
        yield shape
        if op.type == "Cast" and not _known(graph)[op.id]:
            yield from _parts(read[0], graph, without)
