"""What stands before a predicted peak: how it may differ from what is measured.

≥   nothing tells the size of some tensors
≈   TensorFlow's own order decides, which differs from one process to the next; or some sizes are
    those of one batch; some are made in branches, or much is taken by loops and branches or held in
    lists, and nobody knows who lies where in there; or variables lie elsewhere after each step, or
    may; or several threads ask for the outputs of a kernel, in any order; or batches come from a
    data set, which has some ready; or Python is called; or kernels keep constant filters in a form
    of their own, which lies wherever there is room in the first step; or it is a stage of a
    pipeline: among its tensors lie small ones of the pipeline's own, such as what first values are
    made of, and TensorFlow gives back what was sent when its bytes have left
≤   some sizes are only bounded from above, or what nobody tells of may lie in the holes beside a
    step, or something is set aside for what another plan took and nothing explains
"""

from collections.abc import Iterable

from memtrade.facts.variables import moved
from memtrade.graph import BOUND, WATCHED, StepGraph
from memtrade.op_types import BODY_TYPES, ITERATING_TYPES, PYTHON_TYPES
from memtrade.plan import Plan

# Kernels of oneDNN keep the filters of these, their second inputs, once reordered.
_FILTERING = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative"})
# What loops and branches take, and lists hold, is much if it is so much of the largest tensor.
_MUCH = 0.25


def bound_of(
    graph: StepGraph, plan: Plan | None, *, moves: bool = False, above: bool = False
) -> str:
    """Of the step by a plan, or as it is: one of the above, or nothing.

    Args:
        moves: whether variables come to lie elsewhere in each step, as simulated.
        above: whether what is said is of the worst of several cases, or something is set aside.
    """
    if graph.data.unsized:
        return "≥"
    pinned = plan is not None and plan.actions and plan.order == "pinned"
    moves = moves or any(map(moved, graph.ops))
    unclear = graph.sized(WATCHED) or _in_branches(graph) or _in_pieces(graph)
    if not pinned or moves or unclear or _from_outside(graph) or _keeps_filters(graph):
        return "≈"
    return "≤" if above or graph.sized(BOUND) else ""


def stage_bound(graph: StepGraph) -> str:
    """Of a stage of a pipeline, on an allocator."""
    return "≥" if graph.data.unsized else "≈"


def loosest(bounds: Iterable[str]) -> str:
    """Of a sum of peaks: the one of these that says least."""
    return max(bounds, key=["", "≤", "≈", "≥"].index, default="")


def _in_branches(graph: StepGraph) -> bool:
    """Whether any of them makes tensors."""
    bounded = (graph.ops[graph.tensors[t].op] for t in graph.sized(BOUND))
    return any(op.attrs.get("relief") for op in bounded)


def _in_pieces(graph: StepGraph) -> bool:
    """Much of it: in the runtime's order in loops and branches, and element by element in lists."""
    taken = [op.attrs.get("scratch_bytes", 0) for op in graph.ops if op.type in BODY_TYPES]
    held = [t.size_bytes for t in graph.tensors if t.dtype == "variant"]
    most_bytes = max((t.size_bytes for t in graph.tensors), default=0)
    return max(taken + held, default=0) > _MUCH * most_bytes


def _from_outside(graph: StepGraph) -> bool:
    """Whether a data set or Python makes some of it."""
    return any(op.type in ITERATING_TYPES | PYTHON_TYPES for op in graph.ops)


def _keeps_filters(graph: StepGraph) -> bool:
    filters = (op.inputs[1] for op in graph.ops if op.type in _FILTERING)
    return any(graph.folded[graph.tensors[t].op] for t in filters)
