"""What an op's kernel asks of the device memory: outputs, scratch, and whose buffer it may reuse.

Learned, not guessed. The tables were read off TensorFlow 2.21 for CPU (oneDNN kernels on, as by
default) with

    TF_CPP_VMODULE=log_memory=2,bfc_allocator=3  TF_CPP_MIN_LOG_LEVEL=0

which logs each request to the allocator and each kernel's outputs, on ResNet-18 and 50,
InceptionV4, U-Net, AmoebaNet-D and GPT-2 with pinned order; replayed, each request comes out with
its size and in its place, but for some scratch of a few KB. An op type outside `TRACED` is taken to
allocate its outputs and nothing else, unless a row of `FORWARDING` from TensorFlow's sources says
otherwise; `MemoryResult.assumed` lists such types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from memtrade.graph import CALL_TYPES, Op, StepGraph
from memtrade.simulate.calls import call_scratch_bytes

SCRATCH = -1

_TRACED_NAMES = """
    AddN AddV2 AssignSubVariableOp AssignVariableOp AvgPool AvgPoolGrad BatchMatMulV2 BiasAdd
    BiasAddGrad ConcatOffset ConcatV2 Const Conv2D Conv2DBackpropFilter Conv2DBackpropInput Exp
    ExpandDims Fill FloorDiv FloorMod FusedBatchNormGradV3 FusedBatchNormV3 GatherV2 GreaterEqual
    Identity InvertPermutation LeakyRelu LeakyReluGrad Log1p MatMul MatrixBandPart MaxPool
    MaxPoolGrad Maximum Mean Mul Neg NoOp Placeholder RandomUniform ReadVariableOp RealDiv
    Reciprocal Relu ReluGrad Reshape ResizeNearestNeighbor ResizeNearestNeighborGrad
    ResourceApplyAdam ResourceApplyGradientDescent ResourceApplyMomentum ResourceApplyRMSProp Roll
    Rsqrt RsqrtGrad Select SelectV2 ShapeN Slice Softmax SparseSoftmaxCrossEntropyWithLogits Split
    Square SquaredDifference StopGradient StridedSlice StridedSliceGrad Sub Sum Tanh TanhGrad Tile
    Transpose UnsortedSegmentSum ZerosLike
"""
TRACED = frozenset(_TRACED_NAMES.split())

# Kernels that write into an input's buffer where nobody else will read it, and the positions of
# the inputs that they try, in this order; the input must have the output's dtype and size.
_FIRST, _BOTH = (0,), (0, 1)
_UNARY = """
    Abs Acos Asin Atan Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor Inv LeakyRelu Lgamma Log Log1p
    LogSoftmax Neg Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softmax
    Softplus Softsign Sqrt Square Tan Tanh
    MatrixBandPart OnesLike ZerosLike
    EluGrad LeakyReluGrad Relu6Grad ReluGrad SeluGrad SoftplusGrad SoftsignGrad
"""
_BINARY = """
    Add AddV2 Div DivNoNan FloorDiv FloorMod Maximum Minimum Mul Pow RealDiv SquaredDifference
    Sub TruncateDiv Xdivy Xlogy
    InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad
"""
FORWARDING: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_UNARY.split(), _FIRST),
    **dict.fromkeys(_BINARY.split(), _BOTH),
    "BiasAdd": _FIRST,
    "Select": (1, 2),
    "SelectV2": (1, 2),
}

# Kernels that hand their input on where there is nothing to do, that is, where the size stays.
PASSING = frozenset(
    {"BroadcastTo", "Max", "Mean", "Min", "MirrorPad", "Pad", "PadV2", "Prod", "Sum", "Tile"}
)

# The runtime computes ops whose inputs are all constants once, up to this size, and lets others
# read the results; with a pinned order the ops themselves still run.
FOLDED_BYTES = 10 << 20

# Reading a variable, or its shape, leaves it alone; all other ops on a variable update it.
READING = frozenset({"ReadVariableOp", "ResourceGather", "VarIsInitializedOp", "VariableShape"})


class Request(NamedTuple):
    """One request to the allocator. `output`: the output it is for, or SCRATCH."""

    size_bytes: int
    output: int = SCRATCH
    forwarded: tuple[int, ...] = ()  # inputs whose buffer is taken instead, if free


def requests(op: Op, graph: StepGraph, *, onednn: bool = True) -> list[Request]:
    """What the kernel of `op` asks for, in order. Scratch is given back before the op ends.

    Args:
        onednn: the CPU kernels of the arena. Otherwise no scratch, as a lower bound for a GPU.
    """
    custom = _CUSTOM.get(op.type)
    if custom is None:
        return _outputs(op, graph)
    wanted = custom(op, graph)
    return wanted if onednn else [each for each in wanted if each.output != SCRATCH]


def _outputs(op: Op, graph: StepGraph) -> list[Request]:
    return [
        Request(graph.tensors[t].size_bytes, i, _forwarded(op, graph, i))
        for i, t in enumerate(op.outputs)
    ]


def _forwarded(op: Op, graph: StepGraph, output: int) -> tuple[int, ...]:
    """Positions of the inputs whose buffer may become output number `output`."""
    wanted = graph.tensors[op.outputs[output]]
    tried = tuple(range(len(op.inputs))) if op.type == "AddN" else FORWARDING.get(op.type, ())
    return tuple(
        i
        for i in tried
        if i < len(op.inputs)
        and wanted.size_bytes > 0
        and graph.tensors[op.inputs[i]].size_bytes == wanted.size_bytes
        and graph.tensors[op.inputs[i]].dtype == wanted.dtype
    )


def _convolution(op: Op, graph: StepGraph) -> list[Request]:
    """The output, then oneDNN's scratchpad, which holds reordered copies where channels are first.

    12,336 bytes (sometimes 8,216), whatever the shapes. 1x1 kernels without stride read NCHW as
    it is.
    """
    pads = 12_336
    if op.attrs.get("data_format") == "NCHW":
        kernel = graph.tensors[op.inputs[1]].shape
        if kernel and kernel[:2] == (1, 1) and max(op.attrs.get("strides", [1])) == 1:
            pads = 1_536
        else:
            pads = 12_720 + _size(op, graph, 0) + graph.tensors[op.outputs[0]].size_bytes
    return [*_outputs(op, graph), Request(pads)]


def _batch_matmul(op: Op, graph: StepGraph) -> list[Request]:
    """The output, then room to transpose: a block per thread (of 2 in the traces)."""
    left, right = (graph.tensors[t].shape for t in op.inputs[:2])
    pads = 1_408
    if left and right and op.attrs.get("adj_x"):
        pads = 1_536 + 8 * left[-1] * left[-2]
    elif left and right and op.attrs.get("adj_y"):
        pads = 1_536 + 8 * right[-1] * 64
    return [*_outputs(op, graph), Request(pads)]


def _bias_add_grad(op: Op, graph: StepGraph) -> list[Request]:
    """The output; a narrow one (64 channels or fewer) is summed in two parts."""
    size = graph.tensors[op.outputs[0]].size_bytes
    return [*_outputs(op, graph), *([Request(2 * size)] if size <= 256 else [])]


def _max_pool_grad(op: Op, graph: StepGraph) -> list[Request]:
    """Without the forward kernel's workspace: the forward pass again, 8 bytes a pooled value."""
    return [Request(2 * _size(op, graph, 1)), *_outputs(op, graph)]


def _batch_norm(op: Op, graph: StepGraph) -> list[Request]:
    """The four channel vectors, two more as scratch, and the normalized values last."""
    sizes = [graph.tensors[t].size_bytes for t in op.outputs]
    vector = _size(op, graph, 1)
    small = [Request(sizes[i], i) for i in range(1, len(sizes))]
    return [*small, Request(vector), Request(vector), Request(sizes[0], 0)]


def _batch_norm_grad(op: Op, graph: StepGraph) -> list[Request]:
    """Three channel vectors of scratch, the gradients, two scalars that stand for nothing."""
    vector = _size(op, graph, 2)
    sizes = [graph.tensors[t].size_bytes or 4 for t in op.outputs]
    return [*[Request(vector)] * 3, *(Request(size, i) for i, size in enumerate(sizes))]


def _cross_entropy(op: Op, graph: StepGraph) -> list[Request]:
    """A value per row as scratch; the gradient goes where the logits were."""
    loss, gradient = (graph.tensors[t].size_bytes for t in op.outputs)
    reuse = (0,) if _size(op, graph, 0) == gradient else ()
    return [Request(loss), Request(loss, 0), Request(gradient, 1, reuse)]


def _call(op: Op, graph: StepGraph) -> list[Request]:
    """What the function takes for itself, then the outputs."""
    taken = call_scratch_bytes(op, graph)
    return [*([Request(taken)] if taken else []), *_outputs(op, graph)]


def _size(op: Op, graph: StepGraph, position: int) -> int:
    return graph.tensors[op.inputs[position]].size_bytes


_CUSTOM: dict[str, Callable[[Op, StepGraph], list[Request]]] = {
    **dict.fromkeys(CALL_TYPES, _call),
    "BatchMatMulV2": _batch_matmul,
    "BiasAddGrad": _bias_add_grad,
    "Conv2D": _convolution,
    "FusedBatchNormGradV3": _batch_norm_grad,
    "FusedBatchNormV3": _batch_norm,
    "MaxPoolGrad": _max_pool_grad,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _cross_entropy,
}
