"""A kernel's signature: all that decides what it asks for and how long it takes, but the machine.

    Conv2D, its attributes, float32 [32, 56, 56, 64] and [3, 3, 64, 64]  ──►  key

Two ops with the same signature run the same kernel on tensors of the same shapes, so one of them
is asked for both.
"""

import hashlib
import math

import msgspec

from memtrade.graph import Op, StepGraph
from memtrade.op_types import BODY_TYPES, PYTHON_TYPES, RESERVING_TYPES
from memtrade.units import TYPE_BYTES

# What a child cannot make up: handles, lists, text.
_OPAQUE = frozenset({"resource", "string", "variant"})

# Stateful ops that only draw numbers: asked like any other.
_DRAWING = frozenset(
    {"Multinomial", "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"}
)

# Of a shape op's output the values are the shape of its input.
_SHAPES = frozenset({"Shape", "ShapeN"})

# Which input says the shape of what is made, or its first dimensions. Where the step computes it,
# a kernel that was given anything else would make something else, or nothing.
_SAYING = {
    "BroadcastTo": 1, "Fill": 0, "RandomStandardNormal": 0, "RandomUniform": 0,
    "RandomUniformInt": 0, "ScatterNd": 2, "Slice": 2, "SparseToDense": 1,
    "StatelessRandomNormalV2": 0, "StatelessRandomUniformIntV2": 0, "StatelessRandomUniformV2": 0,
    "StatelessTruncatedNormalV2": 0, "StridedSliceGrad": 0, "TruncatedNormal": 0,
    "UnsortedSegmentMax": 2, "UnsortedSegmentMin": 2, "UnsortedSegmentProd": 2,
    "UnsortedSegmentSum": 2,
}  # fmt: skip

# Gradients that end the process, or fail, where their inputs do not agree, and what makes these:
# where a pool's maxima lie, or the regions that it drew.
_AGREEING = {
    "FractionalAvgPoolGrad": "FractionalAvgPool", "FractionalMaxPoolGrad": "FractionalMaxPool",
    "MaxPoolGradWithArgmax": "MaxPoolWithArgmax",
}  # fmt: skip

# Smaller kernels do not make a peak; what they take is the device's time per op.
LEAST_BYTES = 16 * 1024


class Operand(msgspec.Struct, frozen=True, array_like=True):
    """An input. `values`: of a small tensor of whole numbers, where tracing knows them."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[int, ...] | None = None


class Maker(msgspec.Struct, frozen=True, array_like=True):
    """The op that makes those of a kernel's inputs that must agree.

    Attributes:
        node: the definition.
        inputs: the positions of the kernel's own inputs that it reads, too, or what else it reads.
        made: (position among the kernel's inputs, output).
    """

    node: bytes
    inputs: tuple[int | Operand, ...]
    made: tuple[tuple[int, int], ...]


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on tensors of given shapes.

    Attributes:
        key: of all the rest, the same in every process.
        op_type: "Conv2D".
        node: the definition, see `GraphData.nodes`.
        outputs: (dtype, shape) of each.
        functions: that a call calls, see `GraphData.functions`.
        maker: runs before the kernel, if there is one.
    """

    key: str
    op_type: str
    node: bytes
    inputs: tuple[Operand, ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    functions: bytes = b""
    maker: Maker | None = None

    @property
    def size_bytes(self) -> int:
        """Of all inputs and outputs, 4 bytes a number."""
        shapes = [each.shape for each in self.inputs] + [shape for _, shape in self.outputs]
        return sum(4 * math.prod(shape) for shape in shapes)

    @property
    def largest_bytes(self) -> int:
        """Of its largest tensor."""
        tensors = [(each.dtype, each.shape) for each in self.inputs] + [*self.outputs]
        sizes = (TYPE_BYTES.get(dtype, 1) * math.prod(shape) for dtype, shape in tensors)
        return max(sizes, default=0)


def signature_of(op: Op, graph: StepGraph, least_bytes: int = LEAST_BYTES) -> Signature | None:
    """The signature of an op that a child can run by itself; None of any other."""
    if op.type in BODY_TYPES | PYTHON_TYPES or op.node < 0 or not op.outputs:
        return None
    called = graph.data.functions.get(op.node, b"")
    if op.stateful and op.type not in _DRAWING and not called:
        return None
    tensors = [graph.tensors[t] for t in (*op.inputs, *op.outputs)]
    # A call that can be asked at all takes values in place of variables.
    if any(t.dtype in _OPAQUE and not (called and t.dtype == "resource") for t in tensors):
        return None
    if op.type not in RESERVING_TYPES and any(t.shape is None for t in tensors):
        return None
    if sum(t.size_bytes for t in tensors) < least_bytes:
        return None
    inputs = tuple(_operand(op, i, graph) for i in range(len(op.inputs)))
    outputs = tuple((graph.tensors[t].dtype, _shape(t, graph)) for t in op.outputs)
    node = graph.data.nodes[op.node]
    return make_signature(op.type, node, inputs, outputs, called, _maker(op, graph))


def make_signature(
    op_type: str,
    node: bytes,
    inputs: tuple[Operand, ...],
    outputs: tuple[tuple[str, tuple[int, ...]], ...],
    functions: bytes = b"",
    maker: Maker | None = None,
) -> Signature:
    definition = hashlib.sha256(node + functions).hexdigest()
    told = (op_type, definition, inputs, outputs)
    encoded = msgspec.json.encode((*told, maker) if maker else told)
    key = hashlib.sha256(encoded).hexdigest()[:20]
    return Signature(
        key=key, op_type=op_type, node=node, inputs=inputs, outputs=outputs, functions=functions,
        maker=maker,
    )  # fmt: skip


def _maker(op: Op, graph: StepGraph) -> Maker | None:
    producers = [graph.ops[graph.tensors[t].op] for t in op.inputs]
    wanted = _AGREEING.get(op.type)
    maker = next((each for each in producers if each.type == wanted and each.node >= 0), None)
    if maker is None:
        return None
    inputs = tuple(
        op.inputs.index(t) if t in op.inputs else _operand(maker, i, graph)
        for i, t in enumerate(maker.inputs)
    )
    made = tuple(
        (position, graph.tensors[t].index)
        for position, (t, producer) in enumerate(zip(op.inputs, producers, strict=True))
        if producer is maker
    )
    return Maker(graph.data.nodes[maker.node], inputs, made)


def _operand(op: Op, position: int, graph: StepGraph) -> Operand:
    t = op.inputs[position]
    return Operand(graph.tensors[t].dtype, _shape(t, graph), _values(op, position, graph))


def _shape(tensor: int, graph: StepGraph) -> tuple[int, ...]:
    shape = graph.tensors[tensor].shape
    return (0,) if shape is None else shape


def _values(op: Op, position: int, graph: StepGraph) -> tuple[int, ...] | None:
    made = graph.tensors[op.inputs[position]]
    producer = graph.ops[made.op]
    if producer.type in _SHAPES:
        return graph.tensors[producer.inputs[made.index]].shape
    known = graph.data.values.get(made.id)
    if known is not None or _SAYING.get(op.type) != position:
        return known
    count, shape = math.prod(_shape(made.id, graph)), _shape(op.outputs[0], graph)
    return shape[:count] if count <= len(shape) else None
