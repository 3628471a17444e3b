"""Less padding: reservations that make the allocator split its free pieces.

The BFC allocator hands a free piece out whole unless it is at least twice the request (or 128 MiB
larger). With activations of 100 MB the padding is tens of percent of the peak:

    free piece 154 MB, request 103 MB         154 MB in use, 51 of them padding
    reserve 51 MB first: 154 -> 51 + 103      the request finds a piece of its own size, and the
                                              51 MB are free again when the op has run

Or the whole piece is reserved, and the request goes to a larger one. A reservation is an `Empty`
op: no page is touched and no time is spent. `Placement` finds them on a simulated allocator;
whether the whole is better is decided by simulating both programs.
"""

import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence

from memtrade.facts import Request
from memtrade.plan import Action
from memtrade.simulate.bfc import ArenaOutOfMemoryError
from memtrade.simulate.memory import ALIKE_STEPS, ROOMY_BYTES, differing_steps
from memtrade.simulate.moments import Lag
from memtrade.simulate.offsets import Events, offsets
from memtrade.simulate.placement import SHARES, Placement
from memtrade.simulate.program import Code, Program, Row
from memtrade.simulate.requests import State, allocator_of, begun, needed_bytes, record
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.walk import Walk
from memtrade.target import Places

# A choice must save this much, or it is only more ops; padding below this share of the peak is not
# worth any.
MIN_GAIN_BYTES = 1 << 20
_LITTLE_SHARE = 1 / 2000
# Of the limit: a lower peak takes the same pieces as where there is room for everything.
NEAR_LIMIT = 0.5
# What no simulation knows of, as small tensors of other steps, is about that large.
_SHIFT_BYTES = 4096

Reserved = Mapping[int, Sequence[int]]  # action -> bytes, one after the other


def defragment(
    clock: TimeSimulator,
    actions: Sequence[Action],
    *,
    enough_bytes: int = 0,
    most_bytes: int = sys.maxsize,
) -> tuple[Action, ...]:
    """`actions` with reservations where they lower the peak simulated on the clock's target; else
    as they came, and where the order is not pinned: nobody knows then what is free when.

    In room enough for every program; and, where that does not run there, in the target's own limit.

    Args:
        clock: knows graph and target.
        enough_bytes: a peak that need not be lowered further, and of no use where it is missed: a
            program that asks for more stays as it came.
        most_bytes: a higher peak is of no use: a program that needs more stays, too.
    """
    asked = clock.simulator.peak_live_bytes(actions)
    if clock.target.order != "pinned" or asked > enough_bytes > 0:
        return tuple(actions)
    trial = _Trial(clock, actions)
    if trial.needed_bytes > (enough_bytes or most_bytes):
        return tuple(actions)
    enough = max(enough_bytes, int(asked * (1 + _LITTLE_SHARE)) + MIN_GAIN_BYTES)
    found: Reserved = {}
    lowest = trial.unreserved_bytes
    at_most = enough_bytes or sys.maxsize
    tries = trial.reservations(ROOMY_BYTES, max(asked, enough_bytes), at_most)
    while lowest > enough and (tried := next(tries, None)) is not None:
        peak = trial.peak_bytes(ROOMY_BYTES, tried, lowest - MIN_GAIN_BYTES)
        if peak < lowest - MIN_GAIN_BYTES:
            found, lowest = tried, peak
    limit = clock.target.limit_bytes
    near = asked <= limit and lowest > NEAR_LIMIT * limit
    if near and trial.lag is None and trial.peak_bytes(limit, found) > limit:
        tries = trial.reservations(limit, limit, limit)
        found = next((each for each in tries if trial.runs(limit, each)), found)
    made: list[Action] = []
    for i, action in enumerate(actions):
        made += [Action("reserve", size_bytes) for size_bytes in found.get(i, ())]
        made.append(action)
    return tuple(made)


class _Trial:
    """A program in fresh memory, with reservations and without.

    Attributes:
        lag: where copies run beside compute.
        unreserved_bytes: the peak without. needed_bytes: what none is below, whatever is reserved.
    """

    def __init__(self, clock: TimeSimulator, actions: Sequence[Action]):
        self.simulator, self.lag = clock.simulator, None
        if not clock.target.copies_in_line:
            clocked = clock.clocked(actions)
            self.lag = Lag(clocked.begun, clocked.ends)
        self.program = self.simulator.link(actions)
        self._walk = self.begin(ROOMY_BYTES, {})
        self._walk.step()
        self._rows, second = record(self._walk)
        self.unreserved_bytes = max(self._walk.peak.in_use, second.peak.in_use)
        self.needed_bytes = needed_bytes(self._rows, self._walk)
        if second.moved or self.simulator.layouts[1:]:
            self.unreserved_bytes = self.peak_bytes(ROOMY_BYTES, {})
        if self._walk.moved:
            self.needed_bytes = 0  # what has moved may be padded

    def begin(self, limit_bytes: int, reserved: Reserved, places: Places | None = None) -> Walk:
        return self.simulator.begin(
            _spliced(self.program, reserved),
            limit_bytes=limit_bytes,
            lag=self.lag,
            places=places or self.simulator.layouts[0],
        )

    def runs(self, limit_bytes: int, reserved: Reserved) -> bool:
        """Whether it runs in that limit, and also where all lies a little farther on: what hangs on
        single bytes holds in no other process."""
        peaks = (self.peak_bytes(limit_bytes, reserved, shift_bytes=n) for n in (0, _SHIFT_BYTES))
        return max(peaks) <= limit_bytes

    def peak_bytes(
        self,
        limit_bytes: int,
        reserved: Reserved,
        hopeless: float = math.inf,
        *,
        shift_bytes: int = 0,
    ) -> float:
        """Of as many steps as differ, in the worst layout, or until it is hopeless; infinite where
        they do not run.

        Args:
            shift_bytes: so much is taken before the first step, and kept.
        """
        peak = 0.0
        is_alike = self.lag is None and not self._walk.moved
        try:
            for places in self.simulator.layouts:
                walk = self.begin(limit_bytes, {} if is_alike else reserved, places)
                allocator_of(walk).allocate(shift_bytes)
                walk.hopeless = hopeless
                walked = (each.in_use for each in differing_steps(walk))
                for step_peak in self._replayed(walk, reserved) if is_alike else walked:
                    peak = max(peak, step_peak)
                    if peak >= hopeless:
                        return peak
        except ArenaOutOfMemoryError:
            return math.inf
        return peak

    def _replayed(self, walk: Walk, reserved: Reserved) -> Iterator[float]:
        """The peaks of steps that ask for the same: nothing but the allocator is simulated."""
        state = begun(self._rows, walk)
        for _ in range(ALIKE_STEPS):
            self.simulator.linker.walked += len(self._rows)
            peak = float(state.allocator.bytes_in_use)
            for row, events in zip(self.program.rows, self._rows, strict=True):
                peak = max(peak, state.run(events, tuple(reserved.get(row.action, ()))))
                state.done.clear()  # none of it is undone
                if peak >= walk.hopeless:
                    break
            yield peak

    def reservations(self, limit_bytes: int, most_bytes: int, at_most: int) -> Iterator[Reserved]:
        """For peaks up to `most_bytes`, for each of `SHARES`, in the state that the first step
        leaves behind; where variables move from step to step, in the one that it finds, too. None
        where not even what persists has room."""
        made: list[Reserved] = []
        # Where there is room, nothing need lie at a certain place.
        ways = (True, False) if limit_bytes < ROOMY_BYTES else (False,)
        for (state, events), is_planned, shares in itertools.product(
            self._begun(limit_bytes), ways, SHARES
        ):
            planned = {}
            if is_planned:
                free = state.allocator.pieces(0)
                planned = offsets(events, free, int(limit_bytes * shares[0]))
            found = Placement(events, state, most_bytes, shares, at_most, planned).run()
            reserved = {self.program.rows[row].action: sizes for row, sizes in found.items()}
            if reserved not in made:
                made.append(reserved)
                yield reserved

    def _begun(self, limit_bytes: int) -> list[tuple[State, list[Events]]]:
        """What steps begin with, and what they ask for then."""
        try:
            start = self.begin(limit_bytes, {})
        except ArenaOutOfMemoryError:
            return []
        made, state = [], self._walk
        try:
            if limit_bytes < ROOMY_BYTES:
                state = self.begin(limit_bytes, {})
                state.step()
            made.append((begun(self._rows, state), self._rows))
        except ArenaOutOfMemoryError:
            pass
        if self._walk.moved or not made:
            first = record(self.begin(ROOMY_BYTES, {}))[0]
            made.append((begun(first, start), first))
        return made


def _spliced(program: Program, reserved: Reserved) -> Program:
    """With rows that reserve so many bytes before an action. They are counted as the action's, so
    that its clock is theirs, too."""
    if not reserved:
        return program
    rows: list[Row] = []
    for row in program.rows:
        for size_bytes in reserved.get(row.action, ()):
            rows.append(Row(row.action, Code.RESERVE, (Request(size_bytes),), (), (), ()))
        rows.append(row)
    return program._replace(rows=rows)
