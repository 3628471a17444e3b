"""Less padding: reservations that make the allocator split its free pieces.

The BFC allocator hands a free piece out whole unless it is at least twice the request (or 128 MiB
larger). With activations of 100 MB the padding is tens of percent of the peak:

    free piece 154 MB, request 103 MB         154 MB in use, 51 of them padding
    reserve 51 MB first: 154 -> 51 + 103      the request finds a piece of its own size, and the
                                              51 MB are free again when the op has run

Where the padding's size finds a piece elsewhere, the whole piece is reserved instead, if that does
not lift the peak: then the request goes to a piece that is large enough to be split.

A reservation is an `Empty` op: no page is touched and no time is spent. `defragment` walks a
program on the simulated allocator and reserves where a request would be padded. The walk is
exact for the arena; whether the whole is better is decided by simulating both programs.
O(actions), a few times over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from memtrade.facts import Request
from memtrade.plan import Action
from memtrade.simulate.bfc import BfcAllocator
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.program import Code, Program, Row
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.walk import Lag, Walk

# Padding below the first is not worth two more ops; the second is how many whole pieces may be
# reserved for one request. What does best varies with the program, so all are tried.
SETTINGS: list[tuple[int, int]] = [
    *itertools.product((1 << 24, 1 << 22, 1 << 20), (0, 6)),
]

# A finer choice must save this much, or it is only more ops.
MIN_GAIN_BYTES = 1 << 20


def defragment(
    clock: TimeSimulator,
    actions: Sequence[Action],
    *,
    enough_bytes: int = 0,
    settings: list[tuple[int, int]] | None = None,
) -> tuple[Action, ...]:
    """`actions` with reservations where they lower the peak simulated on the clock's target; else
    as they came.

    In room enough for every program: how the pieces split does not depend on the limit.

    Args:
        enough_bytes: a peak that need not be lowered further, and of no use where it is missed: a
            program that asks for more stays as it came.
        settings: pairs of least padding and most pieces, in the order in which they are tried. The
            one that did best is put first: for the next program, much like this one.
    """
    order: list[tuple[int, int]] = SETTINGS.copy() if settings is None else settings
    simulator, lag = clock.simulator, None
    if not clock.target.copies_in_line:
        timeline = clock.timeline(actions, memory=False)
        lag = Lag(timeline.begun_seconds, timeline.end_seconds)
    program = simulator.link(actions)
    walk = simulator.begin(program, limit_bytes=ROOMY_BYTES, lag=lag)
    lowest = _peak_bytes(walk, math.inf)
    if walk.live_peak > enough_bytes > 0:
        return tuple(actions)
    ceiling = simulator.peak_live_bytes(actions)
    best: dict[int, list[int]] = {}
    used: tuple[int, int] | None = None
    stepped: Walk | None = None
    for min_padding, max_pieces in order.copy():
        if lowest <= max(enough_bytes, ceiling + MIN_GAIN_BYTES):
            break  # no more can be gained than what is beyond the live bytes
        if stepped is None:
            # The first step may leave holes behind; all later ones start from the same.
            stepped = simulator.begin(program, limit_bytes=ROOMY_BYTES, allocator="device", lag=lag)
            stepped.step()
        splitting = _Splitting(ceiling, min_padding, max_pieces)
        reserved = splitting.reservations_for(stepped)
        walk = simulator.begin(_spliced(program, reserved), limit_bytes=ROOMY_BYTES, lag=lag)
        peak = _peak_bytes(walk, lowest - MIN_GAIN_BYTES)
        if peak < lowest - MIN_GAIN_BYTES:
            best, lowest, used = reserved, peak, (min_padding, max_pieces)
    if used is not None:
        order.remove(used)
        order.insert(0, used)
    made: list[Action] = []
    for i, action in enumerate(actions):
        made += [Action("reserve", size_bytes) for size_bytes in best.get(i, ())]
        made.append(action)
    return tuple(made)


def _peak_bytes(walk: Walk, hopeless: float) -> int:
    """Of two steps; of the first one alone where that is `hopeless` bytes or more."""
    walk.step()
    first = walk.peak.in_use
    if first < hopeless:
        walk.step()
    return max(first, walk.peak.in_use)


def _spliced(program: Program, reserved: Mapping[int, Sequence[int]]) -> Program:
    """With rows that reserve so many bytes before an action. They are counted as the action's, so
    that its clock is theirs, too."""
    rows: list[Row] = []
    for row in program.rows:
        for size_bytes in reserved.get(row.action, ()):
            rows.append(Row(row.action, Code.RESERVE, (Request(size_bytes),), (), (), ()))
        rows.append(row)
    return program._replace(rows=rows)


class _Splitting(BfcAllocator):
    """An allocator that tries reservations whenever a request would be padded.

    While `walk` is set, what it reserves is held until the walk comes to its next row. Whole
    pieces are reserved only while no more than `ceiling` bytes are in use.
    """

    def __init__(self, ceiling: int, min_padding: int, max_pieces: int) -> None:
        super().__init__(ROOMY_BYTES, allow_growth=False)
        self.ceiling, self.min_padding, self.max_pieces = ceiling, min_padding, max_pieces
        self.walk: Walk | None = None
        self.reservations: list[tuple[int, int]] = []
        self._held: list[int] = []
        self._row = -1

    def reservations_for(self, walk: Walk) -> dict[int, list[int]]:
        """Action -> bytes, as the next step of `walk` asks for them."""
        assert isinstance(walk.allocator, BfcAllocator)
        self._become(walk.allocator)
        self.walk = walk.fork(walk.program, self, walk.lag)
        self.walk.step()
        reserved: dict[int, list[int]] = {}
        for row, size_bytes in self.reservations:
            reserved.setdefault(walk.program.rows[row].action, []).append(size_bytes)
        return reserved

    def allocate(self, num_bytes: int, /) -> int:
        if self.walk is None:
            return super().allocate(num_bytes)
        if self.walk.row != self._row:
            self._row = self.walk.row
            for handle in self._held:
                self.free(handle)
            self._held.clear()
        handle = super().allocate(num_bytes)
        padding = self._padding(handle, num_bytes)
        if not padding:
            return handle
        self.free(handle)
        return self._beside(num_bytes, padding) or self._elsewhere(num_bytes)

    def _padding(self, handle: int, num_bytes: int) -> int:
        """Padding that is worth a reservation, in the allocator's units of 256 bytes; or 0."""
        padding = self.size_of(handle) - num_bytes
        return padding // 256 * 256 if padding >= self.min_padding else 0

    def _beside(self, num_bytes: int, padding: int) -> int:
        """The request in a piece that a reservation of the padding has split; or 0."""
        reserved = super().allocate(padding)
        handle = super().allocate(num_bytes)
        if not self._padding(handle, num_bytes):
            self._hold(reserved)
            return handle
        self.free(handle)
        self.free(reserved)
        return 0

    def _elsewhere(self, num_bytes: int) -> int:
        """The request in a larger piece, with those that do not split reserved."""
        for _ in range(self.max_pieces):
            handle = super().allocate(num_bytes)
            piece = self.size_of(handle)
            if not self._padding(handle, num_bytes) or self.bytes_in_use + num_bytes > self.ceiling:
                return handle
            self.free(handle)
            self._hold(super().allocate(piece))
        return super().allocate(num_bytes)

    def _hold(self, reserved: int) -> None:
        self.reservations.append((self._row, self.size_of(reserved)))
        self._held.append(reserved)
