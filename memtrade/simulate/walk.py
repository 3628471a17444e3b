"""The walk itself: reference counts of buffers along a linked program, on some allocator."""

import copy
import heapq
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

from memtrade.graph import Tensor
from memtrade.simulate.bfc import ArenaOutOfMemoryError
from memtrade.simulate.moments import Allocator, Lag, Peak
from memtrade.simulate.program import COMPUTE, RESERVE, SWAP_OUT, Code, Linker, Program, Row
from memtrade.simulate.regions import round_up

HANDLE_BYTES = 200  # the scalar tensor that holds a variable's resource handle
SHAPE_BYTES, SEED_BYTES = 16, 8  # what is there while a variable or the batch gets its values
STRING_BYTES = 24  # of a string in the arena, as swapped tensors leave; its text lies elsewhere
# Of a string that is one message: below protobuf's limit of 2 GiB, with room for the header.
MAX_SLICE_BYTES = (1 << 31) - (1 << 20)
_GRAPHS = 3  # of functions: the rewritten one, and those that the step came from
_FOREVER = 1 << 40  # references of what outlives the step


class Walk:
    """State that lasts from step to step: the allocator, and the variables' buffers.

    Attributes:
        persistent_bytes: in use between steps, after `persist`.
        given_bytes: of these, what is there before the first step: variables and batch.
        live_peak: most bytes that were asked for and not given back, so far.
        host_peak: most bytes in host memory, so far.
        peak: of the last step.
        row: the last row that was begun.
        moved: whether a variable has come to lie elsewhere in the last step.
        hopeless: a step ends early once so many bytes are in use.
        series: for each row of the last step, most bytes in use during it.
        most: bytes in use in this row before scratch was given back in its middle.
        handles, sizes, refs: per buffer, where it lies, or lay (0 for what never had a place), its
            bytes and its references; number 0 stands for "no bytes".
        variables: handle's tensor id -> buffer.
        sources: tensor id -> buffer, of what is always there.
        waits: the requests of the last step that waited for a copy: (action, the copy's end).
    """

    def __init__(
        self, linker: Linker, program: Program, allocator: Allocator, lag: Lag | None = None
    ):
        self.linker, self.program, self.allocator = linker, program, allocator
        self.persistent_bytes = self.given_bytes = 0
        self.live = self.live_peak = self.host_peak = 0
        self.peak = Peak(0, -1)
        self.row = -1
        self.waits: list[tuple[int, float]] = []
        self.lag = lag
        self._leaving: list[tuple[float, int]] = []  # heap of (end of the copy, buffer)
        self.series: list[int] = []
        self.handles, self.sizes, self.refs = [0], [0], [_FOREVER]
        self._owner = [-1]
        self.variables: dict[int, int] = {}
        self._lies: Mapping[int, int] = {}
        self._graphs = _GRAPHS  # that keep constants and are still to come
        self.moved = False
        self.hopeless = math.inf
        self.sources = [0] * len(linker.sizes)
        self._buffer_of: list[int] = []  # version -> buffer, of the step that is walked
        self._passing: list[int] = []  # buffers that go when the row has run
        self._host = self.most = 0
        groups = ("variables", "batch", "constants", "set aside")
        self._groups: dict[str, list[int]] = {group: [] for group in groups}

    def fork(self, program: Program, allocator: Allocator, lag: Lag | None = None) -> Self:
        """Another walk from here, along a program of the same graph.

        Args:
            allocator: in the state of this walk's.
        """
        made = copy.copy(self)
        made.program, made.allocator, made.lag = program, allocator, lag
        made.handles, made.sizes, made.refs = self.handles[:], self.sizes[:], self.refs[:]
        made._owner, made._leaving = self._owner[:], self._leaving[:]
        made.variables = self.variables.copy()
        made._groups = {group: members[:] for group, members in self._groups.items()}
        return made

    def persist(self, lies: Mapping[int, int] = MappingProxyType({}), built: bool = False) -> None:
        """Puts variables, batch and constants into the arena, in the order they were made in.

        Args:
            lies: tensor id -> address, of what lies there already.
            built: all graphs are there already, with what they keep.

        Raises ArenaOutOfMemoryError where they do not fit.
        """
        graph, constants, self._lies = self.linker.graph, self.program.constants, lies
        # The graphs that the step came from are there where its variables are.
        self._graphs = 0 if built else 1 if lies else _GRAPHS
        there_bytes = self.allocator.bytes_in_use
        if self.linker.margin_bytes:
            self._always("set aside", self.linker.margin_bytes)
        aside_bytes = self.allocator.bytes_in_use - there_bytes
        data = graph.data
        behind = [*data.behind, *[len(data.captures)] * len(data.inputs)]
        for place in range(len(data.captures) + 1):
            for i, t in enumerate(data.inputs):
                if min(behind[i], len(data.captures)) == place:
                    self._input_lies(t)
            if place < len(data.captures):
                self._capture_lies(data.captures[place], data.capture_bytes[place])
        for size_bytes in self.linker.ready:
            self._always("batch", size_bytes)
        self.given_bytes = self.allocator.bytes_in_use - aside_bytes
        held = [graph.tensors[op.outputs[0]] for op in graph.ops if op.type == "Const"]
        before, last = max(self._graphs - 1, 0), min(self._graphs, 1)
        looked_at = before * constants.looked_at + last * constants.looked_at_last
        for t in sorted(looked_at):
            self._always("constants", self.linker.sizes[t])
        folding_bytes = self._folded()
        for each in held:
            self._constant_lies(each)
        for t in constants.brought:
            self._always("constants", self.linker.sizes[t])
        for folded in dict.fromkeys(constants.folded.values()):
            if not self.sources[folded]:
                size_bytes = self.linker.sizes[folded]
                self.sources[folded] = self._always("constants", size_bytes)
        for op in graph.ops:
            looked_at = op.attrs.get("looked_at_bytes", ()) * max(0, self._graphs - 1)
            for size_bytes in (*op.attrs.get("kept_bytes", ()), *looked_at):  # of loops, branches
                self._always("constants", size_bytes)
        self.persistent_bytes = self.allocator.bytes_in_use
        self.peak = Peak(max(folding_bytes, self.persistent_bytes), -1)

    def _folded(self) -> int:
        """The most bytes in use before the first step, when the runtime computes what is made of
        constants alone: it holds all of it twice for a moment, what it will merge included, and
        the step's constants, too, which their kernels do not have yet."""
        allocator, constants = self.allocator, self.program.constants
        computing_bytes = allocator.bytes_in_use + constants.own_bytes + constants.computing_bytes
        made = [allocator.allocate(size) for size in 2 * constants.folding_bytes]
        most = allocator.bytes_in_use + 2 * constants.own_bytes
        for handle in made:
            allocator.free(handle)
        return max(most, computing_bytes)

    def _constant_lies(self, made: Tensor) -> None:
        """Once for its kernel, if it holds what no other does."""
        first = self.program.constants.first[made.id]
        if first != made.id:
            self.sources[made.id] = self.sources[first]
        elif made.id in self.program.constants.lasting:
            self.sources[made.id] = self._always("constants", made.size_bytes)

    def _capture_lies(self, t: int, size: int) -> None:
        """A variable or a captured constant."""
        if self.linker.graph.tensors[t].dtype != "resource":
            lies = t in self._lies
            self.sources[t] = (
                self._made("constants", t, size) if lies else self._always("constants", size)
            )
            return
        self.variables[t] = self._made("variables", t, size, references=1)
        if t not in self._lies:
            self._always("variables", HANDLE_BYTES)

    def _input_lies(self, t: int) -> None:
        data = self.linker.graph.data
        if t in data.repeated:
            self.sources[t] = self.sources[data.repeated[t]]
        else:
            self.sources[t] = self._made("batch", t, self.linker.graph.tensors[t].size_bytes)

    def _made(self, group: str, t: int, size: int, *, references: int = _FOREVER) -> int:
        """A variable or an input: where it lies, or as tf.Variable(stateless_random(shape, seed))
        makes it."""
        allocator = self.allocator
        if t in self._lies:
            self.handles.append(self._lies[t])
            self._groups[group].append(buffer := self._note(size, references, -1))
            return buffer
        while_made = [allocator.allocate(SHAPE_BYTES), allocator.allocate(SEED_BYTES)]
        buffer = self._always(group, size, references=references)
        for handle in while_made:
            allocator.free(handle)
        return buffer

    def _always(self, group: str, size: int, *, references: int = _FOREVER) -> int:
        self._groups[group].append(buffer := self._new(size, references, -1))
        return buffer

    def _new(self, size: int, references: int, owner: int) -> int:
        """A new buffer. `owner`: the tensor id, or below -1, scratch of row -2 - owner."""
        if not size:
            return 0
        while True:
            try:
                self.handles.append(self.allocator.allocate(size))
                break
            except ArenaOutOfMemoryError:  # TensorFlow waits for running copies, then gives up
                if not self._leaving:
                    raise
                end, buffer = heapq.heappop(self._leaving)
                self.waits.append((self.program.rows[self.row].action, end))
                self._release(buffer)
        return self._note(size, references, owner)

    def _note(self, size: int, references: int, owner: int) -> int:
        """The number of the buffer whose handle came last."""
        self.sizes.append(size)
        self.refs.append(references)
        self._owner.append(owner)
        self.live = live = self.live + size
        if live > self.live_peak:
            self.live_peak = live
        return len(self.handles) - 1

    def _release(self, buffer: int) -> None:
        """One reference less."""
        self.refs[buffer] -= 1
        if not self.refs[buffer]:
            self._give_back(buffer)

    def _give_back(self, buffer: int) -> None:
        """Nobody will read it any more."""
        if handle := self.handles[buffer]:
            self.allocator.free(handle)
        else:  # of a variable that nobody can tell where it lies; what it leaves is not counted on
            self.allocator.bytes_in_use -= round_up(self.sizes[buffer])
        self.live -= self.sizes[buffer]

    def step(self) -> None:
        """Walks the program once. Raises ArenaOutOfMemoryError where the step would.

        `peak` is right in either case.
        """
        self.linker.walked += len(self.program.rows)
        self._begin_step()
        allocator, refs, buffer_of, series = self.allocator, self.refs, self._buffer_of, self.series
        lag, leaving = self.lag, self._leaving
        peak = self.peak.in_use
        for row, each in enumerate(self.program.rows):
            action, code, inputs = each.action, each.code, each.inputs
            while lag and leaving and leaving[0][0] <= lag.begun[action]:
                self._release(heapq.heappop(leaving)[1])
            self.row = row
            if code is COMPUTE:
                self._compute(each)
            elif code is RESERVE:
                self._passing.append(self._new(each.requests[0].size_bytes, 1, -2 - row))
                series.append(allocator.bytes_in_use)
                continue
            elif code is SWAP_OUT or code is Code.SWAP_IN:
                self._copy(each)
            else:
                self._share(each)
            in_use = allocator.bytes_in_use
            if self.most:
                in_use, self.most = max(in_use, self.most), 0
            series.append(in_use)
            if in_use > peak:
                peak = in_use
                self.peak = Peak(in_use, action)
                if in_use >= self.hopeless:
                    return
            if lag and code is SWAP_OUT:
                heapq.heappush(leaving, (lag.ended[action], buffer_of[inputs[0]]))
            else:
                for version in inputs:
                    buffer = buffer_of[version]
                    refs[buffer] -= 1
                    if not refs[buffer]:
                        self._give_back(buffer)
            if self._passing:
                for buffer in self._passing:
                    self._release(buffer)
                self._passing.clear()
        while leaving:
            self._release(heapq.heappop(leaving)[1])
        for version in self.program.returned:
            self._release(buffer_of[version])

    def _begin_step(self) -> None:
        self.moved = False
        self._buffer_of = self.sources + [0] * (len(self.program.tensor_of) - len(self.sources))
        for buffer in self.sources:
            if buffer:
                self.refs[buffer] = _FOREVER
        self.series, self.waits, self._passing = [], [], []
        self.peak = Peak(self.allocator.bytes_in_use, -1)
        self._host = 0

    def _compute(self, row: Row) -> None:
        """A kernel's requests: new buffers, or those of inputs that nobody else will read."""
        refs, buffer_of, readers = self.refs, self._buffer_of, self.program.readers
        for request in row.requests:
            size, slot, forwarded, relief = request
            if size < 0:
                self._give_scratch_back(-size)
                continue
            if relief:
                size = request.relieved_bytes(row.inputs, buffer_of, refs, self.sizes)
            buffer = 0
            for position in forwarded:
                free = buffer_of[row.inputs[position]]
                if refs[free] == 1:
                    buffer = free
                    break
            if slot < 0:
                if buffer:
                    refs[buffer] += 1
                self._passing.append(buffer or self._new(size, 1, -2 - self.row))
            elif buffer:
                refs[buffer] += readers[row.outputs[slot]]
                buffer_of[row.outputs[slot]] = buffer
            else:
                self._make(row.outputs[slot], size)

    def _give_scratch_back(self, size: int) -> None:
        """Before the row ends, and if it is not an input's place."""
        for buffer in self._passing:
            if self.sizes[buffer] == size and self._owner[buffer] == -2 - self.row:
                self.most = max(self.most, self.allocator.bytes_in_use)
                self._passing.remove(buffer)
                self._release(buffer)
                break

    def _make(self, version: int, size: int) -> None:
        """A new buffer for a version, which goes with this row if nobody reads it."""
        references = self.program.readers[version]
        buffer = self._new(size, references or 1, self.program.tensor_of[version])
        self._buffer_of[version] = buffer
        if not references:
            self._passing.append(buffer)

    def _copy(self, row: Row) -> None:
        """To the host, or back: whoever reads it on the host last frees it there."""
        version, size = row.outputs[0], row.requests[0].size_bytes
        if row.code is SWAP_OUT:
            self._host += size
            self.host_peak = max(self.host_peak, self._host)
            self._make(version, STRING_BYTES)
            return
        if self.refs[self._buffer_of[row.inputs[0]]] == 1:
            self._host -= size
        self._make(version, size)
        if size > MAX_SLICE_BYTES:
            slice_bytes = size // math.ceil(size / MAX_SLICE_BYTES)
            self._passing.append(self._new(slice_bytes, 1, -2 - self.row))

    def _share(self, row: Row) -> None:
        """What makes no tensor of its own: views, and what is done with variables."""
        refs, buffer_of, readers = self.refs, self._buffer_of, self.program.readers
        if row.code is Code.ALIAS:
            for version, source in zip(row.outputs, row.inputs, strict=False):
                buffer = buffer_of[version] = buffer_of[source]
                refs[buffer] += readers[version]
        elif row.code is Code.READ:
            buffer = self.variables.get(row.variables[0][0], 0) if row.variables else 0
            buffer_of[row.outputs[0]] = buffer
            refs[buffer] += readers[row.outputs[0]]
        elif row.code is Code.UPDATE:
            for handle, size in row.variables:
                self._copy_if_shared(handle, size)
            self._compute(row)
        elif row.code is Code.ASSIGN:
            self._assign(row.variables[0], buffer_of[row.inputs[0]])
        elif row.code is Code.MOVE:
            made = [self._new(size, 1, handle) for handle, size in row.variables]
            for (handle, _), buffer in zip(row.variables, made, strict=True):
                self._replace(handle, buffer)

    def _copy_if_shared(self, handle: int, size: int) -> None:
        """Before an update: the variable gets a buffer of its own if a read value is held, or if
        reads copy it: then always."""
        old = self.variables.get(handle, 0)
        if old and (self.refs[old] > 1 or handle in self.linker.copied):
            self._replace(handle, self._new(size, 1, handle))

    def _replace(self, handle: int, buffer: int) -> None:
        """The variable lies in another buffer from now on; the old one goes with this row."""
        old = self.variables.get(handle, 0)
        self.moved = True
        self.variables[handle] = buffer
        self._groups["variables"].append(buffer)
        if old:
            self._passing.append(old)

    def _assign(self, variable: tuple[int, int], value: int) -> None:
        """The value's buffer is the variable's from now on, whoever else reads it; or a new one,
        where reads copy."""
        handle, size = variable
        if handle in self.linker.copied:
            self._copy_if_shared(handle, size)
        else:
            self.refs[value] += 1
            self._replace(handle, value)
