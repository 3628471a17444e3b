"""Why memory ran out: what would have had to be otherwise for the step to fit.

    another model, leak   the step fits alone, and the process holds something beside it
    fragmentation         so many bytes were free, but not in one piece
    scratch               it fits without what kernels ask for beside their outputs
    batch                 it fits with fewer examples
    need                  it fits with no batch: weights and slots, or one example, take too much

Each is judged by taking it away, in this order. A figure is the allocator's own where the error
came with its dump, else the simulator's, and the explanation says whose it is.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from memtrade.explain.error import Failure
from memtrade.explain.smaller import fitting_batch, with_batch
from memtrade.facts import SCRATCH
from memtrade.graph import StepGraph
from memtrade.plan import Plan
from memtrade.simulate.by_layer import LayerRow, by_layer, line_of, owners
from memtrade.simulate.memory import ROOMY_BYTES, MemoryResult, OutOfMemory
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import GROUPS, use_of_memory
from memtrade.target import Target

# Of the room in a process of the user's, what a plan may be predicted to take: holes between what
# lies there already cost some.
SHARE = 0.97

# The same of a step as it came in a process of the user's: there TensorFlow orders ops by itself,
# and took up to a fifth more than simulated (results/answers/planted.md).
SHARE_AS_IT_CAME = 0.8

# What is beside a step is to blame where it takes so much of what the step leaves: not all that a
# process holds can be seen from Python.
_MOST_OF_REST = 0.8

Cause = Literal["another model", "leak", "fragmentation", "scratch", "batch", "need", "unknown"]


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What the process holds that the step knows nothing of.

    Attributes:
        variable_bytes: of variables that it neither reads nor updates.
        tensor_bytes: of tensors that Python holds. tensors: how many.
        where: what they are, in a few words.
        data_bytes: of examples that Python holds: the data, batches made ahead.
    """

    variable_bytes: int = 0
    tensor_bytes: int = 0
    tensors: int = 0
    where: str = ""
    data_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return self.variable_bytes + self.tensor_bytes


class Counted(msgspec.Struct, frozen=True):
    """What the process' allocator says of itself when the step has failed and is gone.

    Attributes:
        in_use_bytes: of what stays: variables, and whatever is beside the step.
        most_bytes: the most that ever was in use.
    """

    in_use_bytes: int
    most_bytes: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """An out-of-memory error, explained.

    Attributes:
        step: what it is called; "" where only the error is known.
        kind: the cause.
        op: who asked; its layer and line. requested_bytes: for how much; is_scratch: what for.
        limit_bytes, in_use_bytes, largest_free_bytes: of the device, when it was refused; the
            largest piece is None where all that is known of it is that it was too small.
        counted_by: whose figures these are.
        room_bytes: what a plan may take: the limit less what is beside the step and, in a process
            of the user's, a margin.
        fits_alone: whether the step runs where nothing is beside it.
        needed_bytes: the step's peak where memory is no object; 0 where it is not known.
        fixed_bytes: of that, variables: the same for any batch.
        batch_size, fitting_batch: of the step, and about the largest that fits; 0 where not known.
        rows: what held memory then, by layer, the largest first; they add up to `held_bytes`.
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
    is_scratch: bool = False
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
    rows: tuple[LayerRow, ...] = ()
    held_bytes: int = 0
    beside: Beside = Beside()

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.in_use_bytes)


def of_error(failure: Failure) -> Explanation:
    """What an error text alone says. Need is not told from a batch that is too large."""
    dump = failure.dump
    kind: Cause = "unknown"
    if dump is not None and _is_fragmented(
        failure.requested_bytes, dump.free_bytes, dump.largest_free_bytes
    ):
        kind = "fragmentation"
    elif failure.temporary:
        kind = "scratch"
    elif dump is not None and failure.requested_bytes:
        kind = "need"
    return Explanation(
        kind=kind,
        device=failure.device,
        op=failure.op,
        requested_bytes=failure.requested_bytes,
        is_scratch=failure.temporary,
        limit_bytes=dump.limit_bytes if dump else 0,
        in_use_bytes=dump.in_use_bytes if dump else 0,
        largest_free_bytes=dump.largest_free_bytes if dump else 0,
        counted_by="the allocator" if dump else "",
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
) -> Explanation:
    """Why a step does not fit on a target.

    Args:
        plan: that it ran by; None is the step as it came.
        failure: what TensorFlow said; its figures go before the simulator's.
        beside: what else the process holds.
        counted: what its allocator says.
    """
    beside = beside or Beside()
    found = _Simulated(graph, target, plan, failure, beside, counted)
    request, batch = found.request, batch_size_of(graph)
    kind = _kind(found, beside)
    fitting = alone = 0
    if kind == "batch" and batch > 1:
        alone, fitting = _fitting_batches(found, batch)
    if kind == "batch" and batch and not alone:
        kind = "need"
    op_id = found.op_id
    rows = by_layer(graph, found.clock.simulator.linker, found.usage)
    return Explanation(
        step=step,
        device=target.name,
        kind=kind,
        op=graph.ops[op_id].name if op_id >= 0 else request.op,
        op_type=graph.ops[op_id].type if op_id >= 0 else "",
        layer=owners(graph)[op_id] if op_id >= 0 else "",
        source=line_of(graph, op_id) if op_id >= 0 else "",
        requested_bytes=request.requested_bytes,
        is_scratch=found.is_scratch,
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
        rows=tuple(sorted(rows, key=lambda row: -row.peak_bytes)),
        held_bytes=found.usage.moments[found.usage.peak].in_use_bytes,
        beside=beside,
    )


def batch_size_of(graph: StepGraph) -> int:
    """The first dimension that all of the step's inputs have; 0 where they differ."""
    shapes = [graph.tensors[t].shape for t in graph.data.inputs]
    sizes = {shape[0] for shape in shapes if shape}
    return sizes.pop() if len(sizes) == 1 else 0


class _Simulated:
    """The step on its device, and where memory is no object.

    Attributes:
        limit_bytes: of the device. alone_bytes: of that, what is not the data's.
        room_bytes: what is left beside all that stays.
        fits: whether the step runs there alone. is_tight: and whether hardly so.
        request: the one that was refused; of a step that fits alone, what stands at its peak.
        op_id: who made it; -1 for nobody of the step. is_told: whether the error says who.
        roomy: what the step takes where all is granted. usage: the same, moment by moment.
    """

    def __init__(
        self,
        graph: StepGraph,
        target: Target,
        plan: Plan | None,
        failure: Failure | None,
        beside: Beside,
        counted: Counted | None,
    ):
        self.graph, self.target = graph, target
        self.failure, self.counted = failure, counted
        self.dump = failure.dump if failure else None
        self.limit_bytes = self.dump.limit_bytes if self.dump else target.limit_bytes
        self.fixed_bytes = sum(graph.data.capture_bytes)
        self.beside_bytes = beside.size_bytes + beside.data_bytes
        if counted is not None:  # what Python does not see, too
            self.beside_bytes = max(self.beside_bytes, counted.in_use_bytes - self.fixed_bytes)
        self.alone_bytes = max(0, self.limit_bytes - beside.data_bytes)
        self.room_bytes = max(0, self.limit_bytes - self.beside_bytes)
        if counted is not None:
            self.room_bytes = int(self.room_bytes * SHARE)
        self.clock = TimeSimulator(graph, target)
        self.actions = self.clock.simulator.actions(plan or ())
        limited = self._memory(self.alone_bytes)
        self.fits = limited.out_of_memory is None
        self.roomy = self._memory(ROOMY_BYTES)
        self.share = SHARE_AS_IT_CAME if counted is not None and plan is None else 1.0
        self.is_tight = self.roomy.peak_bytes > self.share * self.alone_bytes
        self.simulated = limited.out_of_memory or self._at_peak()
        self.is_told = False
        self.action = self._asking()
        action = self.actions[self.action] if self.action >= 0 else None
        runs = action is not None and action.kind in ("run", "recompute")
        self.op_id = action.id if action is not None and runs else -1
        at = self.action if self.action >= 0 else None
        self.usage = use_of_memory(self.clock, self.actions, limit_bytes=ROOMY_BYTES, at=at)
        self.request = self._request()
        scratch = GROUPS.index("scratch")
        self.scratch_bytes = max(m.by_group[scratch] for m in self.usage.moments)
        self.without_scratch_bytes = max(
            m.in_use_bytes - m.by_group[scratch] for m in self.usage.moments
        )

    def _memory(self, limit_bytes: int) -> MemoryResult:
        found = self.clock.timeline(self.actions, limit_bytes=limit_bytes).memory
        assert found is not None
        return found

    def _at_peak(self) -> OutOfMemory:
        """Who stands at the peak of a step that fits, as if it had been refused."""
        peak = self.roomy
        left = max(0, self.alone_bytes - peak.peak_bytes)
        return OutOfMemory(peak.peak_action, peak.peak_op, 0, peak.peak_bytes, left)

    def _asking(self) -> int:
        """The action that was refused: of the op that the error names, else of one that makes a
        tensor of its shape, the nearest to where the simulator runs out; else the simulator's."""
        failure, simulated = self.failure, self.simulated.action
        if failure is None:
            return simulated
        runs = [
            (i, self.graph.ops[action.id])
            for i, action in enumerate(self.actions)
            if action.kind in ("run", "recompute")
        ]
        found = [i for i, op in runs if failure.names(op.name)]
        if not found and failure.shape:
            tensors = self.graph.tensors
            found = [
                i for i, op in runs if any(tensors[t].shape == failure.shape for t in op.outputs)
            ]
        self.is_told = bool(found)
        return min(found, key=lambda i: abs(i - simulated), default=simulated)

    def _request(self) -> OutOfMemory:
        """With the figures of who counted."""
        simulated, failure = self.simulated, self.failure
        said_bytes = failure.requested_bytes if failure and (self.is_told or self.dump) else 0
        if self.action != simulated.action:
            in_use = self.usage.moments[self.usage.peak].in_use_bytes
            left = max(0, self.alone_bytes - in_use)
            name = self.graph.ops[self.op_id].name
            simulated = OutOfMemory(self.action, name, 0, in_use, left)
        if self.dump is not None:
            in_use, largest = self.dump.in_use_bytes, self.dump.largest_free_bytes
        else:
            in_use = min(self.limit_bytes, simulated.in_use_bytes + self.beside_bytes)
            if self.counted is not None:
                in_use = self.counted.most_bytes
            largest = min(simulated.largest_free_bytes, max(0, self.limit_bytes - in_use))
        return msgspec.structs.replace(
            simulated,
            requested_bytes=said_bytes or simulated.requested_bytes,
            in_use_bytes=in_use,
            largest_free_bytes=largest,
        )

    @property
    def is_counted(self) -> bool:
        """Whether what is known of free memory is its sum, as the process' allocator says."""
        return self.dump is None and self.counted is not None

    def peak_of(self, graph: StepGraph) -> int:
        """The peak of the step as it came, with other tensors, where memory is no object."""
        found = TimeSimulator(graph, self.target).timeline((), limit_bytes=ROOMY_BYTES).memory
        assert found is not None
        return found.peak_bytes

    @property
    def is_scratch(self) -> bool:
        if self.failure is not None and self.failure.temporary:
            return True
        spec = self.clock.simulator.linker.specs[self.op_id] if self.op_id >= 0 else None
        wanted = spec.requests if spec is not None else ()
        same = [each for each in wanted if each.size_bytes == self.request.requested_bytes]
        return bool(same) and all(each.output == SCRATCH for each in same)

    @property
    def is_fragmented(self) -> bool:
        """Whether the bytes would have sufficed: at the request, and for the step as a whole."""
        request = self.request
        free = self.limit_bytes - request.in_use_bytes
        # The allocator has refused, so there was no such piece.
        largest = 0 if self.is_counted else request.largest_free_bytes
        return self.roomy.live_peak_bytes <= self.alone_bytes and _is_fragmented(
            request.requested_bytes, free, largest
        )


def _is_fragmented(requested_bytes: int, free_bytes: int, largest_free_bytes: int) -> bool:
    return 0 < requested_bytes <= free_bytes and requested_bytes > largest_free_bytes


def _kind(found: _Simulated, beside: Beside) -> Cause:
    if found.fits:
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


def _fitting_batches(found: _Simulated, batch: int) -> tuple[int, int]:
    """About the largest batches that fit alone, and beside what else is there."""
    smaller = batch // 2
    peaks = found.peak_of(found.graph), found.peak_of(with_batch(found.graph, batch, smaller))
    alone, room = (
        fitting_batch(size, batch, peaks[0], smaller, peaks[1])
        for size in (int(found.alone_bytes * found.share), int(found.room_bytes * found.share))
    )
    return alone, room
