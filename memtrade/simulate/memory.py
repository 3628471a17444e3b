"""Peak memory of a plan, before it runs: a walk along its actions with TensorFlow's own allocator.

The idea. With a pinned order everything that a step asks of the allocator is determined:

1. variables, batch and constants lie there already;
2. each action's kernel asks for outputs and scratch (`memtrade.facts`), or takes over an input's
   buffer that nobody else will read;
3. scratch goes, then the inputs that this action was the last to read, then outputs without reader;
4. `bfc.BfcAllocator` turns requests into chunks, with padding and holes.

Buffers are counted as TensorFlow counts them: a reference per input slot that has yet to read. An
alias (Reshape, Identity) shares its input's; a variable's buffer has one reference of its own, and
an update copies the variable if a read value is still held. A swapped tensor leaves a string of 24
bytes behind, its bytes are on the process heap.

A variable that takes over the buffer of its new value lies elsewhere after each step, and with it
the holes: then peaks differ from step to step, and more steps are simulated.

Assumed: one action at a time. For order "dataflow", where the executor may run ahead, the walk
along the same order is an approximation; for a plan without actions it follows
`unplanned.executor_order`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from memtrade.bounds import bound_of
from memtrade.graph import StepGraph
from memtrade.plan import Action, Plan
from memtrade.simulate.bfc import ArenaOutOfMemoryError, BfcAllocator
from memtrade.simulate.constants import Constants
from memtrade.simulate.lists import with_lists
from memtrade.simulate.live import LiveWalk
from memtrade.simulate.moments import Lag, Peak
from memtrade.simulate.otherwise import made_abreast, otherwise
from memtrade.simulate.program import Linker, Program
from memtrade.simulate.regions import round_up
from memtrade.simulate.summands import taken_by_sums
from memtrade.simulate.unplanned import merged_tensors, other_orders, usual_order
from memtrade.simulate.walk import Walk
from memtrade.target import SOMEWHERE, Places, Target

# More than any step needs: what a step that does not fit would take.
ROOMY_BYTES = 1 << 42

# How many steps are simulated: later ones are like one of these.
ALIKE_STEPS, _MOVING_STEPS = 2, 6

_HANDLES_BYTES = 2048  # of handles and small constants may lie between two tensors


class OutOfMemory(msgspec.Struct, frozen=True):
    """Where a step fails: the op, what it asked for, what was in use then, and the largest piece
    that the allocator had left."""

    action: int
    op: str
    requested_bytes: int
    in_use_bytes: int
    largest_free_bytes: int


class MemoryResult(msgspec.Struct, frozen=True):
    """What a step needs.

    Attributes:
        peak_bytes: the highest peak of the simulated steps, padding and holes included.
        told_peak_bytes: where nothing but what is told of lies in the holes, and all that is
            bounded is as large as it can be, if that is less.
        least_peak_bytes: where variables come to lie elsewhere in each step, the peak of the step
            that takes least.
        persistent_bytes: in use between steps.
        given_bytes: of these, what is there before the first step: variables and batch.
        live_peak_bytes: the peak of the bytes asked for: no padding, no holes.
        host_peak_bytes: most bytes in host memory at once.
        peak_action: index of the action at the peak; -1 if the step never exceeds what persists.
        peak_op: its op's name, or "swap in"/"swap out" and the tensor's.
        in_use_bytes: most bytes in use during each action (of the last step), if asked for.
        out_of_memory: set if the step does not fit; the peaks are then those up to there.
        moves: whether variables come to lie elsewhere in each step, or outputs may.
        aside: whether something is set aside for what a run took and nothing explains.
        waits: the requests that waited for memory which a copy out held: (action, the copy's end).
        assumed: op types of the graph whose kernels nobody has looked at.
    """

    peak_bytes: int
    told_peak_bytes: int
    least_peak_bytes: int
    persistent_bytes: int
    given_bytes: int
    live_peak_bytes: int
    host_peak_bytes: int
    peak_action: int
    peak_op: str
    in_use_bytes: tuple[int, ...] | None = None
    out_of_memory: OutOfMemory | None = None
    assumed: tuple[str, ...] = ()
    moves: bool = False
    aside: bool = False
    waits: tuple[tuple[int, float], ...] = ()

    def bound(self, graph: StepGraph, plan: Plan | None) -> str:
        """What stands before the peak."""
        worse = self.peak_bytes > self.told_peak_bytes
        return bound_of(graph, plan, moves=self.moves, above=self.aside or worse)


class _Walked(NamedTuple):
    """A walk that has ended: its highest peak, what ended it early, and the peak of the step that
    takes least, where variables move."""

    walk: Walk
    best: Peak
    error: ArenaOutOfMemoryError | None
    least: int


class _Unplanned(tuple[Action, ...]):
    """The ops in an order in which TensorFlow may run them where no plan says one."""


class Simulator:
    """Predicts peaks of plans for one graph on one target: its kernels, its allocator."""

    def __init__(self, graph: StepGraph, target: Target):
        self.graph, self.target = graph, target
        on_host = target.copies_in_line
        self.linker = Linker(graph, target.facts, target.margin_bytes, on_host=on_host)
        self.linker.restrict(taken_by_sums(graph))
        types = {op.type for op in graph.ops}
        self.assumed = tuple(sorted(each for each in types if not target.facts.is_known(each)))
        self.ahead_bytes = max((op.attrs.get("ahead_bytes", 0) for op in graph.ops), default=0)
        self._abreast = on_host and bool(made_abreast(graph))
        places = target.places
        self.layouts = (places, places.narrowed()) if places and places.free[1:] else (places,)
        self._started: dict[tuple[int, Places | None, Constants], tuple[Walk, BfcAllocator]] = {}
        # What was asked about last is asked about again, as a rule.
        self._linked: tuple[Sequence[Action], Program] | None = None
        self._lived: tuple[Program, list[int]] | None = None

    def actions(self, plan: Plan | Sequence[Action]) -> Sequence[Action]:
        """The plan's actions; for an empty plan, the ops as TensorFlow runs them."""
        actions = plan.actions if isinstance(plan, Plan) else plan
        return actions or self.unplanned

    @cached_property
    def unplanned(self) -> tuple[Action, ...]:
        """The ops as TensorFlow runs them."""
        return _unplanned(usual_order(self.graph))

    @property
    def otherwise(self) -> Iterator[tuple[Action, ...]]:
        """The ops in other orders in which it may run them."""
        pairs = {gradient: bias for gradient, (bias, _) in self.linker.merged.items()}
        onednn = self.target.facts.merges
        for order in other_orders(self.graph, pairs, onednn=onednn):
            yield _unplanned(order)

    def link(self, actions: Sequence[Action]) -> Program:
        """What `actions` returned, linked."""
        if self._linked is None or self._linked[0] is not actions:
            unplanned = isinstance(actions, _Unplanned)
            same = merged_tensors(self.graph) if unplanned else None
            program = self.linker.link(actions, self.graph.data.outputs, same)
            if unplanned:
                program = with_lists(program, actions, self.graph)
            if not isinstance(actions, tuple):  # whoever made it may change it
                return program
            self._linked = actions, program
        return self._linked[1]

    def memory(
        self,
        plan: Plan | Sequence[Action],
        *,
        limit_bytes: int | None = None,
        steps: int | None = None,
        series: bool = False,
        lag: Lag | None = None,
    ) -> MemoryResult:
        """Simulates some steps in fresh memory; a plan, and a step whose variables move, in the
        worst of `layouts`, and in each of the ways in which it may run `otherwise`.

        Args:
            limit_bytes: the target's unless given.
            steps: two unless given, because the first one leaves holes behind; more where
                variables take over other buffers, and so lie elsewhere after each.
            series: also return the bytes in use along the actions.
            lag: when copies end, on a device where they run beside compute.
        """
        actions = self.actions(plan)
        # Without a plan, TensorFlow runs iterations of a loop at once, as many as it may.
        ahead_bytes = self.ahead_bytes if isinstance(actions, _Unplanned) else 0
        program = self.link(actions)
        told, *elsewhere = self.layouts
        tried = [self._walked(program, steps, limit_bytes, lag, told)]
        if not isinstance(actions, _Unplanned) or tried[0].walk.moved:
            tried += [self._walked(program, steps, limit_bytes, lag, each) for each in elsewhere]
        in_order = isinstance(actions, _Unplanned) or not self._abreast
        others = otherwise(program, self.graph, in_order=in_order)
        tried += [self._walked(each, steps, limit_bytes, lag, told) for each in others]
        walked = max(tried, key=lambda each: (each.error is not None, each.best.in_use))
        walk, best = walked.walk, walked.best
        in_use = failed = None
        if series:
            in_use = tuple(_spread(walk.series, walk.program, len(actions), walk.persistent_bytes))
        if walked.error is not None:
            index = walk.program.rows[walk.row].action if walk.row >= 0 else -1
            failed = OutOfMemory(
                index,
                self.action_name(actions, index),
                walked.error.requested_bytes,
                walked.error.in_use_bytes,
                walked.error.largest_free_bytes,
            )
        return MemoryResult(
            peak_bytes=best.in_use + ahead_bytes,
            told_peak_bytes=min(best.in_use, tried[0].best.in_use) + ahead_bytes,
            least_peak_bytes=min(best.in_use, tried[0].least) + ahead_bytes,
            persistent_bytes=walk.persistent_bytes,
            given_bytes=walk.given_bytes,
            live_peak_bytes=walk.live_peak,
            host_peak_bytes=walk.host_peak,
            peak_action=best.action,
            peak_op=self.action_name(actions, best.action),
            in_use_bytes=in_use,
            out_of_memory=failed,
            assumed=self.assumed,
            moves=any(each.walk.moved for each in tried) or self._abreast,
            aside=self.linker.margin_bytes > 0,
            waits=tuple(walk.waits),
        )

    def _walked(
        self,
        program: Program,
        steps: int | None,
        limit_bytes: int | None,
        lag: Lag | None,
        places: Places | None,
    ) -> _Walked:
        """So many steps, those that differ if None, or as far as they come."""
        walk = Walk(self.linker, program, self.allocator(limit_bytes), lag)
        peaks: list[Peak] = []
        error: ArenaOutOfMemoryError | None = None
        try:
            walk = self.begin(program, limit_bytes=limit_bytes, lag=lag, places=places)
            at_first = walk.peak
            for peak in differing_steps(walk, steps):
                peaks.append(peak if peaks else max(peak, at_first))
        except ArenaOutOfMemoryError as raised:
            error = raised
            peaks.append(walk.peak)
        in_use = [peak.in_use for peak in peaks]
        best = max(peaks, key=lambda peak: peak.in_use)
        return _Walked(walk, best, error, min(in_use) if walk.moved else best.in_use)

    def begin(
        self,
        program: Program,
        *,
        limit_bytes: int | None = None,
        lag: Lag | None = None,
        places: Places | None = None,
    ) -> Walk:
        """A walk to which all that persists has been laid down, which is done once for each of
        `layouts`: `places` is one of them.

        Raises ArenaOutOfMemoryError where it does not fit.
        """
        key = limit_bytes or self.target.limit_bytes, places, program.constants
        if key not in self._started:
            arena = self.allocator(key[0])
            walk = Walk(self.linker, program, arena)
            walk.persist(self._occupy(arena, places), bool(places and places.built))
            self._started[key] = walk, arena
        walk, arena = self._started[key]
        return walk.fork(program, arena.fork(), lag)

    def _occupy(self, arena: BfcAllocator, places: Places | None) -> dict[int, int]:
        """Has the arena hold what `places` say that it does. Tensor id -> address of what lies
        there already.

        Raises ArenaOutOfMemoryError where it does not fit.
        """
        data = self.graph.data
        if places is None:
            return {}
        *pieces, (tail, _) = places.free
        end = sum(size for _, size in arena.regions)
        if tail >= end:
            arena.allocate(tail)  # which fails
        at = dict(zip(data.captures + data.inputs, places.captures + places.inputs, strict=True))
        given = {t: self.graph.tensors[t].size_bytes for t in data.inputs}
        sizes = self.graph.capture_bytes | given
        lies = {t: arena.address(offset) for t, offset in at.items() if offset >= 0}
        free = [(arena.address(offset), size) for offset, size in [*pieces, (tail, end - tail)]]
        ends = [address + size for address, size in arena.regions]
        starts = sorted({*lies.values(), *(address for address, _ in free), *ends})
        held = {}
        for t, address in lies.items():
            behind = starts[bisect_right(starts, address)] - address
            held[address] = _chunk_bytes(round_up(sizes[t]), behind)
        arena.occupy(held.items(), free, places.untold_bytes)
        # Of the others it is in use for good: to give nothing back is all that can be foreseen.
        return lies | {t: 0 for t, offset in at.items() if offset == SOMEWHERE}

    def allocator(self, limit_bytes: int | None = None) -> BfcAllocator:
        """The target's, fresh: as memtrade's worker starts the arena, or of a GPU, which takes the
        whole limit at once."""
        limit_bytes = limit_bytes or self.target.limit_bytes
        if self.target.copies_in_line:
            return BfcAllocator.one_region(limit_bytes)
        return BfcAllocator(limit_bytes, allow_growth=False)

    def peak_live_bytes(self, plan: Plan | Sequence[Action]) -> int:
        """The peak of the bytes asked for, without the allocator: fast, for comparing plans."""
        return max(self._live_rows(self.link(self.actions(plan))), default=self.laid_bytes)

    def live_bytes(self, plan: Plan | Sequence[Action]) -> list[int]:
        """For each action, the most bytes asked for and not given back while it runs."""
        actions = self.actions(plan)
        program = self.link(actions)
        return _spread(self._live_rows(program), program, len(actions), self.laid_bytes)

    def _live_rows(self, program: Program) -> list[int]:
        if self._lived is None or self._lived[0] is not program:
            rewritten = program.constants is self.linker.constants
            laid = self._laid if rewritten else LiveWalk(self.linker, program)
            self._lived = program, laid.rows(program)
        return self._lived[1]

    @property
    def laid_bytes(self) -> int:
        """What lies there between steps, as it was asked for."""
        return self._laid.persistent_bytes

    @cached_property
    def _laid(self) -> LiveWalk:
        return LiveWalk(self.linker)

    @property
    def unasked(self) -> list[str]:
        """Op types of the graph that have a margin, because a kernel could not be asked."""
        facts = zip(self.graph.ops, self.linker.known, strict=True)
        return sorted({op.type for op, fact in facts if fact.margin_bytes})

    def action_name(self, actions: Sequence[Action], index: int) -> str:
        """Its op's name, or what it does with which tensor; "" for -1, which is before the step."""
        if index < 0:
            return ""
        action = actions[index]
        if action.kind in ("run", "recompute"):
            return self.graph.ops[action.id].name
        if action.kind == "reserve":
            return "reserve"
        return f"{action.kind.replace('_', ' ')} {self.graph.label(action.id)}"


def _unplanned(order: Iterable[int]) -> _Unplanned:
    return _Unplanned(Action("run", op_id) for op_id in order)


def _chunk_bytes(asked: int, behind: int) -> int:
    """Of a chunk that so much was asked for, where the next one that is known lies so far behind
    its start: between the two is its padding, or what nobody knows of, such as handles."""
    is_padding = _HANDLES_BYTES < behind - asked < asked
    return behind if is_padding else asked


def differing_steps(walk: Walk, steps: int | None = None) -> Iterator[Peak]:
    """The peaks of so many steps, one after the other; of those that differ, if it does not say.

    The first one leaves holes behind. Where variables take over other buffers, or are copied while
    a read value is still held, they lie elsewhere after each step, and what is free does, too.
    """
    for number in range(steps or _MOVING_STEPS):
        walk.step()
        yield walk.peak
        if steps is None and number + 1 >= ALIKE_STEPS and not walk.moved:
            return


def _spread(series: list[int], program: Program, count: int, start: int) -> list[int]:
    """From one value per row to one per action: sources, which have no row, repeat the last."""
    spread = [0] * count
    for row, value in zip(program.rows, series, strict=False):
        spread[row.action] = value
    last = start
    for i, value in enumerate(spread):
        last = spread[i] = value or last
    return spread
