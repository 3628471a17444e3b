"""Why memory ran out: what would have had to be otherwise for the step to fit.

    another model, leak   the step fits alone, and the process holds something beside it
    fragmentation         so many bytes were free, but not in one piece
    scratch               it fits without what kernels ask for beside their outputs
    batch                 it fits with fewer examples
    need                  it fits with no batch: weights and slots, or one example, take too much
    elsewhere             the card had no memory for TensorFlow's allocator, which was allowed more

Each is judged by taking it away, in this order. A figure is the allocator's own where the error
came with its dump, else the simulator's, and the explanation says whose it is.
"""

import math
from typing import Any, Literal

import msgspec

from memtrade.explain.error import Dump, Failure, is_fragmented
from memtrade.explain.refusal import Beside, Counted, Refusal
from memtrade.graph import StepGraph, Tensor
from memtrade.op_types import READ_TYPES
from memtrade.plan import Plan
from memtrade.simulate.by_layer import By, LayerRow, by_layer, owners
from memtrade.target import Target

# What is beside a step is to blame where it takes so much of what the step leaves: not all that a
# process holds can be seen from Python.
_MOST_OF_REST = 0.8

Cause = Literal[
    "another model", "leak", "fragmentation", "scratch", "batch", "need", "elsewhere", "unknown"
]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """An out-of-memory error, explained.

    Attributes:
        step: what it is called; "" where only the error is known.
        kind: the cause.
        op: who asked; its layer and line. requested_bytes: for how much; is_scratch: what for;
            shape: of the tensor, where the error says it.
        by_itself: whether the op that asked is none of the step's.
        stranger: the op that the error names, or the shape, where the step has none of these.
        limit_bytes, in_use_bytes, largest_free_bytes: of the device, when it was refused; the
            largest piece is None where all that is known of it is that it was too small.
        counted_by: whose figures these are.
        room_bytes: what a plan may take: the limit less what is beside the step and, in a process
            of the user's, a margin.
        fits_alone: whether the step runs where nothing is beside it.
        needed_bytes: the step's peak where memory is no object; 0 where it is not known.
        fixed_bytes: of that, variables: the same for any batch.
        batch_size, fitting_batch: of the step, and about the largest that fits; 0 where not known.
        rows: what held memory then, by layer or by line, the largest first; they add up to
            `held_bytes`.
        beside: what else the process holds.
        scratch_bytes: the most scratch that is there at once.
    """

    step: str = ""
    device: str = ""
    kind: Cause
    op: str = ""
    op_type: str = ""
    layer: str = ""
    source: str = ""
    requested_bytes: int = 0
    shape: tuple[int, ...] | None = None
    is_scratch: bool = False
    by_itself: bool = False
    stranger: str = ""
    limit_bytes: int = 0
    in_use_bytes: int = 0
    largest_free_bytes: int | None = 0
    counted_by: str = ""
    room_bytes: int = 0
    fits_alone: bool = False
    needed_bytes: int = 0
    fixed_bytes: int = 0
    scratch_bytes: int = 0
    batch_size: int = 0
    fitting_batch: int = 0
    by: By = "layer"
    rows: tuple[LayerRow, ...] = ()
    held_bytes: int = 0
    beside: Beside = Beside()

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.in_use_bytes)


def of_process(failure: Failure, target: Target, beside: Beside, counted: Counted) -> Explanation:
    """What an error and the process in which it came say, where no step is known."""
    return msgspec.structs.replace(
        of_error(failure),
        kind="need",
        limit_bytes=target.limit_bytes,
        in_use_bytes=counted.in_use_bytes,
        largest_free_bytes=None,
        counted_by="the allocator",
        beside=beside,
    )


def of_error(failure: Failure) -> Explanation:
    """What an error text alone says. Need is not told from a batch that is too large."""
    dump, requested_bytes = failure.dump or Dump(), failure.requested_bytes
    kind: Cause = "unknown"
    if failure.by_card or 0 < requested_bytes <= dump.left_bytes:
        kind = "elsewhere"
    elif is_fragmented(requested_bytes, dump.free_bytes, dump.largest_free_bytes):
        kind = "fragmentation"
    elif failure.temporary:
        kind = "scratch"
    elif failure.dump and requested_bytes:
        kind = "need"
    return Explanation(
        kind=kind,
        device=failure.device,
        op=failure.op,
        op_type=failure.op_type,
        source=failure.source,
        requested_bytes=requested_bytes,
        shape=failure.shape,
        by_itself=bool(failure.op_type),
        is_scratch=failure.temporary,
        limit_bytes=dump.limit_bytes,
        in_use_bytes=dump.in_use_bytes,
        largest_free_bytes=dump.largest_free_bytes,
        counted_by="the allocator" if failure.dump else "",
    )


def of_step(
    step: str,
    graph: StepGraph,
    target: Target,
    *,
    plan: Plan | None = None,
    failure: Failure | None = None,
    beside: Beside | None = None,
    counted: Counted | None = None,
    by: By = "layer",
) -> Explanation:
    """Why a step does not fit on a target.

    Args:
        plan: that it ran by; None is the step as it came.
        failure: what TensorFlow said; its figures go before the simulator's.
        beside: what else the process holds.
        counted: what its allocator says.
        by: whether what held the rest is told by layer, or by line of the program.
    """
    beside = beside or Beside()
    found = Refusal(graph, target, plan, failure, beside, counted)
    request, batch = found.request, batch_size_of(graph)
    kind = _kind(found, beside)
    fitting = alone = 0
    if kind == "batch" and batch > 1:
        alone, fitting = _fitting_batches(found, batch)
    if kind == "batch" and batch and not alone:
        kind = "need"
    rows = by_layer(graph, found.clock.simulator.linker, found.usage, by)
    return Explanation(
        **_who(found),
        step=step,
        device=target.name,
        kind=kind,
        requested_bytes=request.requested_bytes,
        shape=failure.shape if failure and found.is_said else None,
        is_scratch=found.is_scratch,
        stranger=_stranger(failure) if failure and not found.is_told else "",
        limit_bytes=found.limit_bytes,
        in_use_bytes=request.in_use_bytes,
        largest_free_bytes=None if found.is_counted else request.largest_free_bytes,
        counted_by="the allocator" if found.dump or found.is_counted else "the simulator",
        room_bytes=found.room_bytes,
        fits_alone=found.fits and kind not in ("batch", "need"),
        needed_bytes=found.roomy.peak_bytes,
        fixed_bytes=found.fixed_bytes,
        scratch_bytes=found.scratch_bytes,
        batch_size=batch,
        fitting_batch=fitting,
        by=by,
        rows=tuple(sorted(rows, key=lambda row: -row.peak_bytes)),
        held_bytes=found.usage.moments[found.usage.peak].in_use_bytes,
        beside=beside,
    )


def _stranger(failure: Failure) -> str:
    """What the error names: an op, or else a tensor by its shape."""
    shape = "×".join(map(str, () if failure.temporary or failure.op_type else failure.shape or ()))
    return failure.op or (shape and f"a tensor of {shape}")


def _who(found: Refusal) -> dict[str, Any]:
    """Who asked, in an `Explanation`'s words."""
    if found.by_itself and found.failure is not None:
        said = found.failure
        return {"op_type": said.op_type, "source": said.source, "by_itself": True}
    if found.op_id < 0:
        return {"op": found.request.op}
    op = found.graph.ops[found.op_id]
    layer, source = (owners(found.graph, by)[op.id] for by in ("layer", "source"))
    return {"op": op.name, "op_type": op.type, "layer": layer, "source": source}


def batch_size_of(graph: StepGraph) -> int:
    """The first dimension that all of the step's inputs have; 0 where they differ."""
    shapes = [graph.tensors[t].shape for t in graph.data.inputs]
    sizes = {shape[0] for shape in shapes if shape}
    return sizes.pop() if len(sizes) == 1 else 0


def _kind(found: Refusal, beside: Beside) -> Cause:
    if found.fits:
        if found.failure is not None and found.failure.by_card:
            return "elsewhere"
        left = found.alone_bytes - found.roomy.peak_bytes
        if beside.size_bytes and beside.size_bytes >= _MOST_OF_REST * left:
            more_variables = beside.variable_bytes >= beside.tensor_bytes
            return "another model" if more_variables else "leak"
        seen = found.dump is not None or found.is_counted
        if seen and found.is_fragmented:
            return "fragmentation"
        return "batch" if found.is_tight else "unknown"
    if found.is_fragmented:
        return "fragmentation"
    if found.without_scratch_bytes <= found.alone_bytes:
        return "scratch"
    return "batch"


def _fitting_batches(found: Refusal, batch: int) -> tuple[int, int]:
    """About the largest batches that fit alone, and beside what else is there."""
    smaller = batch // 2
    peaks = found.peak_of(found.graph), found.peak_of(with_batch(found.graph, batch, smaller))
    alone, room = (
        fitting_batch(size, batch, peaks[0], smaller, peaks[1])
        for size in (int(found.alone_bytes * found.share), int(found.room_bytes * found.share))
    )
    return alone, room


def with_batch(graph: StepGraph, batch: int, smaller: int) -> StepGraph:
    """The graph of `batch` examples, with `smaller` in their place, as far as one trace tells.

    A tensor grows with the batch where its first dimension is a multiple of it, or its second is it
    (time before examples); but not one that has the shape of a weight, such as its gradient.
    """
    weights = {
        graph.tensors[t].shape for op in graph.ops if op.type in READ_TYPES for t in op.outputs
    }
    tensors = tuple(
        each if each.shape in weights else _resized(each, batch, smaller) for each in graph.tensors
    )
    return StepGraph(msgspec.structs.replace(graph.data, tensors=tensors))


def fitting_batch(room_bytes: int, batch: int, peak: int, smaller: int, its_peak: int) -> int:
    """About the largest batch for which there is room, on a line through two peaks in bytes; 0
    where not even one example fits.

    >>> fitting_batch(70, batch=8, peak=90, smaller=4, its_peak=50)
    6
    """
    each = (peak - its_peak) / (batch - smaller)
    left = room_bytes - (peak - each * batch)
    return max(0, min(int(left / each), batch - 1)) if each > 0 else 0


def _resized(tensor: Tensor, batch: int, smaller: int) -> Tensor:
    shape = tensor.shape
    if not shape or not tensor.size_bytes:
        return tensor
    if shape[0] and shape[0] % batch == 0:
        resized = (shape[0] // batch * smaller, *shape[1:])
    elif len(shape) > 1 and shape[1] == batch:
        resized = (shape[0], smaller, *shape[2:])
    else:
        return tensor
    size_bytes = tensor.size_bytes * math.prod(resized) // math.prod(shape)
    return msgspec.structs.replace(tensor, shape=resized, size_bytes=size_bytes)
