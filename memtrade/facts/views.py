"""Which outputs are an input's buffer, or lie in it.

    Reshape, Identity, CheckNumerics    the whole buffer
    Sum, Pad, Tile ...                  ... where the size stays (`passing` in shipped/reuse.toml)
    StridedSlice, Transpose, Pack ...   ... where all numbers stay in their order: x[:, None]
    StridedSlice, Slice                 rows of the first dimension that are cut out ...
    Split, SplitV, Unpack               ... or into which it is cut

TensorFlow cuts rows out without a copy where each begins at a multiple of 64 bytes, and out of a
vector what begins and ends at such places. Elsewhere these kernels copy.
"""

from memtrade.facts.shipped import reuse
from memtrade.graph import Op, StepGraph, Tensor
from memtrade.op_types import ALIAS_TYPES

# Where tensors begin in memory: at multiples of so many bytes.
_ALIGNED_BYTES = 64

# Ops that cut: where they read what is cut, and where the dimension (None: it is an attribute).
_CUTTING = {"Split": (1, 0), "SplitV": (0, 2), "Unpack": (0, None)}

_SAME_BITS = ALIAS_TYPES | {"Bitcast", "CheckNumerics"}

# Ops that hand their input on where there is nothing to take away and nothing to move: a part that
# is the whole, one tensor alone, dimensions of size 1.
_UNMOVED = frozenset({"Cast", "Pack", "Slice", "Split", "SplitV", "StridedSlice", "Transpose"})


def viewed(op: Op, graph: StepGraph) -> int | None:
    """The place of the input in whose buffer the outputs of `op` lie; None where it makes buffers
    of its own."""
    if not op.inputs or not op.outputs:
        return None
    if op.type in _SAME_BITS:
        return 0
    place, dimension = _CUTTING.get(op.type, (0, None))
    source, made = graph.tensors[op.inputs[place]], graph.tensors[op.outputs[0]]
    if op.type in reuse().passing:
        return 0 if made.size_bytes == source.size_bytes else None
    if op.type in _UNMOVED and _stays(op, source, graph):
        return place
    if op.type in _CUTTING:
        along = (op.attrs.get("axis", 0),)
        if dimension is not None:
            along = graph.data.values.get(op.inputs[dimension])
        return place if along == (0,) and _has_aligned_rows(source) else None
    if op.type in ("Slice", "StridedSlice"):
        cuts = _cuts_rows_out if op.type == "Slice" else _takes_rows
        is_vector = len(source.shape or ()) == 1
        aligned = _is_aligned_part(op, graph) if is_vector else _has_aligned_rows(source)
        return 0 if aligned and cuts(op, graph) else None
    return None


def _stays(op: Op, source: Tensor, graph: StepGraph) -> bool:
    """Whether all numbers of `source` stay what they are and where they are."""
    made, values = graph.tensors[op.outputs[0]], graph.data.values
    alone = len(op.outputs) == 1 and made.size_bytes == source.size_bytes > 0
    if not alone or not source.shape:
        return False
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


def _has_aligned_rows(source: Tensor) -> bool:
    """Of one dimension each number is a row."""
    rows = source.shape[0] if source.shape else 0
    return rows > 0 and source.size_bytes // rows % _ALIGNED_BYTES == 0


def _is_aligned_part(op: Op, graph: StepGraph) -> bool:
    """Whether a part of a vector is known to begin and to end at multiples of so many bytes."""
    source, made = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    (length,), start = source.shape or (0,), graph.data.values.get(op.inputs[1])
    if not made.size_bytes or start is None or len(start) != 1:
        return False
    first = 0 if op.attrs.get("begin_mask") else start[0] + (length if start[0] < 0 else 0)
    begin_bytes = first * (source.size_bytes // length)
    return begin_bytes % _ALIGNED_BYTES == made.size_bytes % _ALIGNED_BYTES == 0


def _cuts_rows_out(op: Op, graph: StepGraph) -> bool:
    """Whether a Slice takes whole rows."""
    source, made = (graph.tensors[t].shape for t in (op.inputs[0], op.outputs[0]))
    return bool(source and made and source[1:] == made[1:])


def _takes_rows(op: Op, graph: StepGraph) -> bool:
    """Whether a StridedSlice reads an index or a range of the first dimension, and all of others:
    x[i], x[i, :], x[2:4, ..., None]."""
    source, start, _, step = (graph.tensors[t] for t in op.inputs)
    made, masks = graph.tensors[op.outputs[0]], op.attrs
    others_first = (masks.get("ellipsis_mask", 0) | masks.get("new_axis_mask", 0)) & 1
    if others_first or not source.shape or set(graph.data.values.get(step.id, (0,))) != {1}:
        return False
    if start.shape == (1,) or not made.shape:
        return start.shape == (1,)
    rows = 1 if masks.get("shrink_axis_mask", 0) & 1 else made.shape[0]
    return made.size_bytes == rows * (source.size_bytes // max(source.shape[0], 1))
