"""Who holds memory at each moment of a step: the memory walk again, with a record of each life.

A buffer is made during one row of the program and given back during another. What it stands for
follows from the row that made it:

    variables       weights, moving averages, optimizer slots
    inputs          the batch and constants
    activations     what the forward part made, and is kept
    recomputed      made by an op that ran again
    swapped in      a copy that came back from the host
    gradients       what the backward part and the updates made
    scratch         what a kernel asks for beside its outputs, and gives back when it ends
    padding         what the allocator gave beyond what was asked for; reservations, too

An op that writes its output into its input's buffer leaves the buffer what it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from memtrade.graph import StepGraph
from memtrade.plan import Action, Plan
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.moments import Allocator, Lag
from memtrade.simulate.program import Code, Linker, Program
from memtrade.simulate.timeline import COMPUTE, Timeline, TimeSimulator
from memtrade.simulate.walk import Walk
from memtrade.units import megabytes

# Of those who hold memory at the peak, a text names so many.
_NAMED = 3

GROUPS = (
    "variables",
    "inputs",
    "activations",
    "recomputed",
    "swapped in",
    "gradients",
    "scratch",
    "padding",
)
_ALWAYS = {
    "variables": "variables",
    "batch": "inputs",
    "constants": "inputs",
    "set aside": "padding",
}


class Held(NamedTuple):
    """What somebody holds at one moment.

    `label` is a tensor's name, "scratch of" an op, "reserved", or that of a group without names.
    `op` made it; -1 for what was there before.
    """

    label: str
    group: str
    size_bytes: int
    op: int = -1


class Moment(NamedTuple):
    """What is in use during one action.

    Attributes:
        seconds: when the device comes to it.
        in_use_bytes: as the allocator counts.
        by_group: the same, for each of `GROUPS`.
        host_bytes: of swapped tensors, in host memory.
    """

    action: int
    seconds: float
    in_use_bytes: int
    by_group: tuple[int, ...]
    host_bytes: int


class Usage(NamedTuple):
    """One step's memory, moment by moment: the second step, which all later ones are like.

    Attributes:
        actions: that the timeline's lists go along.
        moments: in program order, one for each action that touches memory.
        peak: position of the moment with most in use, or of that which was asked for.
        holders: at the peak, the largest first.
        turn_seconds: when the forward part is over; None if the plan never comes to it.
        persistent_bytes: in use between steps.
        fits: whether the step runs under the limit; if not, this is how it would run without.
        lives: what the moments were told from.
    """

    actions: Sequence[Action]
    timeline: Timeline
    moments: list[Moment]
    peak: int
    holders: list[Held]
    turn_seconds: float | None
    persistent_bytes: int
    fits: bool
    lives: Lives

    @property
    def peak_bytes(self) -> int:
        return self.moments[self.peak].in_use_bytes

    @property
    def held_text(self) -> str:
        """Who holds most at the peak: "activations 30.1 MB, variables 4.2 MB"."""
        groups: Counter[str] = Counter()
        for each in self.holders:
            groups[each.group] += each.size_bytes
        largest = groups.most_common(_NAMED)
        return ", ".join(f"{group} {megabytes(size)} MB" for group, size in largest)


def use_of_memory(
    clock: TimeSimulator,
    plan: Plan | Sequence[Action],
    *,
    limit_bytes: int | None = None,
    at: int | None = None,
) -> Usage:
    """Simulates two steps and tells the second one.

    Args:
        clock: knows the graph and the target, whose limit it is unless one is given.
        at: the action that is looked at in place of the peak, if it touches memory.
    """
    simulator, graph = clock.simulator, clock.graph
    actions = simulator.actions(plan)
    timeline = clock.timeline(actions, limit_bytes=limit_bytes)
    fits = timeline.memory.out_of_memory is None
    if not fits:
        limit_bytes = ROOMY_BYTES
        timeline = clock.timeline(actions, limit_bytes=limit_bytes)
    program = simulator.link(actions)
    walk = walk_twice(clock, program, timeline, simulator.allocator(limit_bytes))
    recorded = Lives(graph, actions, program, walk)
    moments = recorded.moments(timeline)
    peak = max(range(len(moments)), key=lambda i: moments[i].in_use_bytes)
    peak = next((i for i, moment in enumerate(moments) if moment.action == at), peak)
    turned = [i for i, a in enumerate(actions) if a.kind == "run" and a.id == graph.turn]
    return Usage(
        actions=actions,
        timeline=timeline,
        moments=moments,
        peak=peak,
        holders=recorded.holders(peak),
        turn_seconds=timeline.end_seconds[turned[0]] if turned else None,
        persistent_bytes=walk.persistent_bytes,
        fits=fits,
        lives=recorded,
    )


def walk_twice(
    clock: TimeSimulator,
    program: Program,
    timeline: Timeline,
    allocator: Allocator,
) -> Recorder:
    """Two steps of a program that is known to fit."""
    lag = None
    if not clock.target.copies_in_line:
        lag = Lag(timeline.begun_seconds, timeline.end_seconds)
    walk = Recorder(clock.simulator.linker, program, allocator, lag)
    walk.persist()
    walk.step()
    walk.step()
    return walk


class Life(NamedTuple):
    """One buffer's: row made, last row, bytes, owner (as in `Walk._new`), and the name of its group
    if it is one of those that persist. `first` to `last`: rows whose most is in use with it."""

    born: int
    first: int
    last: int
    size_bytes: int
    owner: int
    always: str


class Recorder(Walk):
    """A walk that notes in which row of the last step each buffer was made and given back.

    Attributes:
        born: for each buffer, its row; -1 for what was there before the step.
        gone: the last row in which it was in use; one more than there are if it stays.
        log: of the last step, (row, buffer) as each was made, (row, -buffer) as it was given back.
        midway: of rows that give scratch back in their middle, (place in `log`, buffer), and ...
        highest: ... most bytes in use before one of these, and its place.
    """

    def __init__(
        self, linker: Linker, program: Program, allocator: Allocator, lag: Lag | None = None
    ):
        super().__init__(linker, program, allocator, lag)
        self.log: list[tuple[int, int]] = []
        self.midway: dict[int, list[tuple[int, int]]] = {}
        self.highest: dict[int, tuple[int, int]] = {}
        self.born: list[int] = [-1]
        self.gone: list[int] = [len(program.rows)]

    def step(self) -> None:
        self.row, self.log, self.midway, self.highest = -1, [], {}, {}
        alive = [gone == len(self.program.rows) for gone in self.gone]
        self.born = [-1] * len(self.born)
        self.gone = [len(self.program.rows) if lives else -2 for lives in alive]
        super().step()

    def _new(self, size: int, references: int, owner: int) -> int:
        buffer = super()._new(size, references, owner)
        if buffer:
            self.born.append(self.row)
            self.gone.append(len(self.program.rows))
            self.log.append((self.row, buffer))
        return buffer

    def _give_back(self, buffer: int) -> None:
        super()._give_back(buffer)
        self.gone[buffer] = self.row
        self.log.append((self.row, -buffer))

    def _give_scratch_back(self, size: int) -> None:
        place, most = len(self.log), self.most
        super()._give_scratch_back(size)
        self.midway.setdefault(self.row, []).extend((place, -b) for _, b in self.log[place:])
        if self.most > most:
            self.highest[self.row] = self.most, place

    def _apart(self) -> tuple[set[int], set[int]]:
        """The buffers that came when most was in use in their row, and those that had gone."""
        late, early = set[int](), set[int]()
        for row, (most, place) in self.highest.items():
            if self.series[row] > most:
                place = len(self.log)
            early.update(b for at, b in self.midway[row] if at < place)
            for its_row, buffer in islice(self.log, place, None):
                if its_row != row:
                    break
                late.update([buffer] * (buffer > 0))
        return late, early

    def lives(self) -> dict[int, Life]:
        """Of each buffer that was there in the last step."""
        late, early = self._apart()
        always: dict[int, str] = {}
        for group, members in self._groups.items():
            always.update(dict.fromkeys(members, group))
        return {
            b: Life(
                self.born[b],
                self.born[b] + (b in late),
                self.gone[b] - (b in early),
                self.sizes[b],
                self._owner[b],
                always.get(b, ""),
            )
            for b in range(1, len(self.born))
            if self.gone[b] > -2
        }


class Lives:
    """What the recorded buffers stand for, and sums over them."""

    def __init__(
        self, graph: StepGraph, actions: Sequence[Action], program: Program, walk: Recorder
    ):
        self.graph, self.actions, self.program, self.walk = graph, actions, program, walk
        self.lives = walk.lives()

    def moments(self, timeline: Timeline) -> list[Moment]:
        rows = self.program.rows
        computed = [
            start if channel == COMPUTE else 0.0
            for start, channel in zip(timeline.start_seconds, timeline.channels, strict=True)
        ]
        seconds = list(accumulate(computed, max))
        by_group = self.stacked(GROUPS, self.group)
        told = zip(rows, self.walk.series, by_group, self._host_bytes(), strict=True)
        return [
            Moment(row.action, seconds[row.action], in_use, held, host)
            for row, in_use, held, host in told
        ]

    def stacked(
        self, bands: Sequence[str], band_of: Callable[[Life], str]
    ) -> Iterator[tuple[int, ...]]:
        """For each row, what each band holds. The last one has what the allocator counts beyond
        what was asked for, too: whole chunks."""
        places = {band: place for place, band in enumerate(bands)}
        rows = len(self.program.rows)
        changes: list[list[tuple[int, int]]] = [[] for _ in range(rows + 1)]
        for life in self.lives.values():
            place = places[band_of(life)]
            changes[max(life.first, 0)].append((place, life.size_bytes))
            if life.last < rows:
                changes[life.last + 1].append((place, -life.size_bytes))
        held = [0] * len(bands)
        for row, in_use in enumerate(self.walk.series):
            for place, size_bytes in changes[row]:
                held[place] += size_bytes
            yield (*held[:-1], held[-1] + in_use - sum(held))

    def holders(self, row: int) -> list[Held]:
        """Who holds what during a row, the largest first."""
        held: Counter[tuple[str, str, int]] = Counter()
        for life in self.lives.values():
            if life.first <= row <= life.last:
                label, group, size, op = self.held(life)
                held[label, group, op] += size
        padding = self.walk.series[row] - held.total()
        if padding:
            held["padding", "padding", -1] = padding
        found = [Held(label, group, size, op) for (label, group, op), size in held.items()]
        return sorted(found, key=lambda each: (-each.size_bytes, each.label))

    def held(self, life: Life) -> Held:
        """A buffer as people read it."""
        group = self.group(life)
        nobodys = bool(life.always) or group == "padding"
        op = -1 if nobodys else self.op_of(life)
        return Held(self._label(life, group), group, life.size_bytes, op)

    def group(self, life: Life) -> str:
        if life.always:
            return _ALWAYS[life.always]
        row = self.program.rows[life.born]
        if row.code == Code.RESERVE:
            return "padding"
        if life.owner < 0 or row.code == Code.SWAP_OUT:
            return "scratch"
        if row.code == Code.SWAP_IN:
            return "swapped in"
        action = self.actions[row.action]
        if action.kind == "recompute":
            return "recomputed"
        return "activations" if action.id in self.graph.forward else "gradients"

    def op_of(self, life: Life) -> int:
        """Who made it: of a tensor its op, of scratch the op that runs."""
        tensors = self.graph.tensors
        if 0 <= life.owner < len(tensors):
            return tensors[life.owner].op
        action = self.actions[self.program.rows[life.born].action]
        return action.id if action.kind in ("run", "recompute") else tensors[action.id].op

    def _label(self, life: Life, group: str) -> str:
        if life.always:
            return life.always
        if life.owner >= 0:
            return self.walk.linker.label(life.owner)
        if group == "padding":
            return "reserved"
        op = self.actions[self.program.rows[life.born].action].id
        return f"scratch of {self.graph.ops[op].name}"

    def _host_bytes(self) -> list[int]:
        """For each row, what is in host memory once it has run."""
        readers, sizes = self.program.readers.copy(), self.walk.linker.sizes
        series, host = [], 0
        for row in self.program.rows:
            if row.code == Code.SWAP_OUT:
                host += sizes[self.program.tensor_of[row.outputs[0]]]
            elif row.code == Code.SWAP_IN:
                copy = row.inputs[0]
                readers[copy] -= 1
                if not readers[copy]:
                    host -= sizes[self.program.tensor_of[copy]]
            series.append(host)
        return series
