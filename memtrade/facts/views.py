"""Which outputs are an input's buffer, or lie in it.

    Reshape, Identity, CheckNumerics    the whole buffer
    StridedSlice, Transpose, Pack ...   ... where all numbers stay in their order: x[:, None]
    StridedSlice, Slice                 rows of the first dimension that are cut out ...
    Split, SplitV, Unpack               ... or into which it is cut

TensorFlow cuts rows out without a copy where each begins at a multiple of 64 bytes. Elsewhere these
kernels copy.
"""

from __future__ import annotations

from memtrade.graph import Op, StepGraph
from memtrade.op_types import ALIAS_TYPES

# Where tensors begin in memory: at multiples of so many bytes.
_ALIGNED_BYTES = 64

# Ops that cut: where they read what is cut, and where the dimension (None: it is an attribute).
_CUTTING = {"Split": (1, 0), "SplitV": (0, 2), "Unpack": (0, None)}

_SAME_BITS = frozenset({"Bitcast", "CheckNumerics"})

# Ops that hand their input on where there is nothing to take away and nothing to move: a part that
# is the whole, one tensor alone, dimensions of size 1. What sums, pads and repeats does, too, see
# `passing` in shipped/reuse.toml.
_UNMOVED = frozenset({"Cast", "Pack", "Slice", "Split", "SplitV", "StridedSlice", "Transpose"})


def viewed(op: Op, graph: StepGraph) -> int | None:
    """The place of the input in whose buffer the outputs of `op` lie; None where it makes buffers
    of its own."""
    if not op.inputs or not op.outputs:
        return None
    if op.type in ALIAS_TYPES or op.type in _SAME_BITS:
        return 0
    if op.type in _UNMOVED and _stays(op, graph):
        return _CUTTING.get(op.type, (0, 0))[0]
    if op.type in _CUTTING:
        place, dimension = _CUTTING[op.type]
        along = (op.attrs.get("axis", 0),)
        if dimension is not None:
            along = graph.data.values.get(op.inputs[dimension])
        return place if along == (0,) and _has_aligned_rows(op.inputs[place], graph) else None
    if op.type in ("Slice", "StridedSlice") and _has_aligned_rows(op.inputs[0], graph):
        cuts = _cuts_rows_out if op.type == "Slice" else _takes_rows
        return 0 if cuts(op, graph) else None
    return None


def _stays(op: Op, graph: StepGraph) -> bool:
    """Whether all numbers stay what they are and where they are."""
    source = graph.tensors[op.inputs[_CUTTING.get(op.type, (0, 0))[0]]]
    made = graph.tensors[op.outputs[0]]
    alone = len(op.outputs) == 1 and made.size_bytes == source.size_bytes > 0
    if not alone or not source.shape:
        return False
    values = graph.data.values
    match op.type:
        case "StridedSlice":  # with a step of 2, or -1, it copies even where it takes all
            return set(values.get(op.inputs[3], (0,))) <= {1}
        case "Transpose":
            moved = values.get(op.inputs[1])
            long = [d for d in moved or () if source.shape[d] != 1]
            return moved is not None and long == sorted(long)
        case "Cast":
            return source.dtype == made.dtype
    return True


def _has_aligned_rows(tensor: int, graph: StepGraph) -> bool:
    """Of one dimension each number is a row."""
    source = graph.tensors[tensor]
    rows = source.shape[0] if source.shape else 0
    return rows > 0 and source.size_bytes // rows % _ALIGNED_BYTES == 0


def _cuts_rows_out(op: Op, graph: StepGraph) -> bool:
    """Whether a Slice takes whole rows."""
    source, made = (graph.tensors[t].shape for t in (op.inputs[0], op.outputs[0]))
    return bool(source and made and source[1:] == made[1:])


def _takes_rows(op: Op, graph: StepGraph) -> bool:
    """Whether a StridedSlice reads an index or a range of the first dimension alone."""
    source, start, _, step = (graph.tensors[t] for t in op.inputs)
    masked = any(op.attrs.get(f"{which}_mask") for which in ("ellipsis", "new_axis"))
    one = start.shape == (1,) and graph.data.values.get(step.id) == (1,)
    return one and not masked and len(source.shape or ()) > 1
