"""A kernel's signature: all that decides what it asks for and how long it takes, but the machine.

    Conv2D, its attributes, float32 [32, 56, 56, 64] and [3, 3, 64, 64]  ──►  key

Two ops with the same signature run the same kernel on tensors of the same shapes, so one of them
is asked for both.
"""

from __future__ import annotations

import hashlib
import math

import msgspec

from memtrade.graph import Op, StepGraph
from memtrade.op_types import BODY_TYPES, RESERVING_TYPES

# What a child cannot make up: handles, lists, text.
_OPAQUE = frozenset({"resource", "string", "variant"})

# Stateful ops that only draw numbers: asked like any other.
_DRAWING = frozenset(
    {"Multinomial", "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"}
)

# Of a shape op's output the values are the shape of its input.
_SHAPES = frozenset({"Shape", "ShapeN"})

# Smaller kernels do not make a peak; what they take is the device's time per op.
LEAST_BYTES = 16 * 1024


class Operand(msgspec.Struct, frozen=True, array_like=True):
    """An input. `values`: of a small tensor of whole numbers, where tracing knows them."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[int, ...] | None = None


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on tensors of given shapes.

    Attributes:
        key: of all the rest, the same in every process.
        op_type: "Conv2D".
        node: the definition, see `GraphData.nodes`.
        outputs: (dtype, shape) of each.
        functions: that a call calls, see `GraphData.functions`.
    """

    key: str
    op_type: str
    node: bytes
    inputs: tuple[Operand, ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    functions: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Of all inputs and outputs, 4 bytes a number."""
        return sum(self._sizes())

    @property
    def largest_bytes(self) -> int:
        """Of its largest tensor."""
        return max(self._sizes())

    def _sizes(self) -> list[int]:
        shapes = [each.shape for each in self.inputs] + [shape for _, shape in self.outputs]
        return [4 * math.prod(shape) for shape in shapes]


def signature_of(op: Op, graph: StepGraph, least_bytes: int = LEAST_BYTES) -> Signature | None:
    """The signature of an op that a child can run by itself; None of any other."""
    if op.type in BODY_TYPES or op.node < 0 or not op.outputs:
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
    inputs = tuple(
        Operand(graph.tensors[t].dtype, _shape(t, graph), _values(t, graph)) for t in op.inputs
    )
    outputs = tuple((graph.tensors[t].dtype, _shape(t, graph)) for t in op.outputs)
    return make_signature(op.type, graph.data.nodes[op.node], inputs, outputs, called)


def make_signature(
    op_type: str,
    node: bytes,
    inputs: tuple[Operand, ...],
    outputs: tuple[tuple[str, tuple[int, ...]], ...],
    functions: bytes = b"",
) -> Signature:
    definition = hashlib.sha256(node + functions).hexdigest()
    encoded = msgspec.json.encode((op_type, definition, inputs, outputs))
    key = hashlib.sha256(encoded).hexdigest()[:20]
    return Signature(
        key=key, op_type=op_type, node=node, inputs=inputs, outputs=outputs, functions=functions
    )


def _shape(tensor: int, graph: StepGraph) -> tuple[int, ...]:
    shape = graph.tensors[tensor].shape
    return (0,) if shape is None else shape


def _values(tensor: int, graph: StepGraph) -> tuple[int, ...] | None:
    made = graph.tensors[tensor]
    producer = graph.ops[made.op]
    if producer.type in _SHAPES:
        return graph.tensors[producer.inputs[made.index]].shape
    return graph.data.values.get(tensor)
