"""A step that ran out of memory, simulated: where its request was refused, and what it takes where
all is granted."""

import msgspec

from memtrade.explain.error import Failure, is_fragmented
from memtrade.facts import SCRATCH
from memtrade.graph import StepGraph
from memtrade.plan import Plan
from memtrade.simulate.memory import ROOMY_BYTES, MemoryResult, OutOfMemory
from memtrade.simulate.regions import GRAIN_BYTES
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import GROUPS, use_of_memory
from memtrade.target import Target

# Of the room in a process of the user's, what a plan may be predicted to take: holes between what
# lies there already cost some.
SHARE = 0.97

# The same of a step as it came in a process of the user's: there TensorFlow orders ops by itself,
# and took up to a fifth more than simulated (results/answers/planted.md).
SHARE_AS_IT_CAME = 0.8


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


class Refusal:
    """The step on its device, and where memory is no object.

    Attributes:
        limit_bytes: of the device. alone_bytes: of that, what is not the data's.
        room_bytes: what is left beside all that stays.
        fits: whether the step runs there alone. is_tight: and whether hardly so.
        request: the one that was refused; of a step that fits alone, what stands at its peak.
        op_id: who made it; -1 for nobody of the step. is_told: whether the error says who.
        by_itself: whether it was an op that the program ran by itself.
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
        self.plan = plan if plan is not None and plan.actions else None
        self.failure, self.counted = failure, counted
        self.by_itself = failure is not None and bool(failure.op_type)
        self.dump = failure.dump if failure else None
        self.limit_bytes = self.dump.limit_bytes if self.dump else target.limit_bytes
        self.fixed_bytes = sum(graph.data.capture_bytes)
        self.beside_bytes = beside.size_bytes + beside.data_bytes
        if counted is not None:  # what Python does not see, too
            self.beside_bytes = max(self.beside_bytes, counted.in_use_bytes - self.fixed_bytes)
        self.alone_bytes = max(GRAIN_BYTES, self.limit_bytes - beside.data_bytes)
        room_bytes = self.limit_bytes - self.beside_bytes
        self.room_bytes = max(GRAIN_BYTES, int(room_bytes * (1.0 if counted is None else SHARE)))
        self.clock = TimeSimulator(graph, target)
        self.actions = self.clock.simulator.actions(self.plan or ())
        limited = self._memory(self.alone_bytes)
        self.fits = limited.out_of_memory is None
        self.roomy = self._memory(ROOMY_BYTES)
        self.share = SHARE_AS_IT_CAME if counted is not None and self.plan is None else 1.0
        self.is_tight = self.roomy.peak_bytes > self.share * self.alone_bytes
        peak, left = self.roomy, max(0, self.alone_bytes - self.roomy.peak_bytes)
        # Of a step that fits, who stands at its peak, as if it had been refused.
        at_peak = OutOfMemory(peak.peak_action, peak.peak_op, 0, peak.peak_bytes, left)
        self.simulated = limited.out_of_memory or at_peak
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
        return self.clock.timeline(self.actions, limit_bytes=limit_bytes).memory

    def _asking(self) -> int:
        """The action that was refused: of the op that the error names, else of one that makes a
        tensor of its shape, the nearest to where the simulator runs out; else the simulator's."""
        failure, simulated = self.failure, self.simulated.action
        if failure is None or self.by_itself:
            return simulated
        runs = [
            (i, self.graph.ops[action.id])
            for i, action in enumerate(self.actions)
            if action.kind in ("run", "recompute")
        ]
        named = [(len(op.name), i) for i, op in runs if failure.names(op.name)]
        shortest = min(named, default=(0, 0))[0]  # in the fewest scopes beside those of the error
        found = [i for length, i in named if length == shortest]
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
        said_bytes = failure.requested_bytes if failure and self.is_said else 0
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
    def is_said(self) -> bool:
        """Whether the request is the error's, and not the simulator's."""
        return self.is_told or self.by_itself or self.dump is not None

    @property
    def is_counted(self) -> bool:
        """Whether what is known of free memory is its sum, as the process' allocator says."""
        return self.dump is None and self.counted is not None

    def peak_of(self, graph: StepGraph) -> int:
        """The peak of the step with other tensors, where memory is no object."""
        return TimeSimulator(graph, self.target).needed(self.plan or ()).peak_bytes

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
        return self.roomy.live_peak_bytes <= self.alone_bytes and is_fragmented(
            request.requested_bytes, free, largest
        )
