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
from collections.abc import Sequence

from memtrade.plan import Action
from memtrade.simulate.bfc import BfcAllocator
from memtrade.simulate.memory import ROOMY_BYTES, Simulator
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.walk import Lag, Walk

# Padding below this is not worth two more ops, and whole pieces reserved for one request, at the
# most. Which values do best varies with the program, so all pairs are tried, the coarsest first.
MIN_PADDING_BYTES = (1 << 24, 1 << 22, 1 << 20)
MAX_PIECES = (0, 6)

# A finer choice must save this much, or it is only more ops.
MIN_GAIN_BYTES = 1 << 20


def defragment(
    clock: TimeSimulator, actions: Sequence[Action], *, enough_bytes: int = 0
) -> tuple[Action, ...]:
    """`actions` with reservations where they lower the peak simulated on the clock's target; else
    as they came.

    In room enough for every program: how the pieces split does not depend on the limit.

    Args:
        enough_bytes: a peak that need not be lowered further.
    """
    simulator, lag = clock.simulator, None
    if not clock.target.copies_in_line:
        timeline = clock.timeline(actions, memory=False)
        lag = Lag(timeline.begun_seconds, timeline.end_seconds)

    def peak_bytes(program: Sequence[Action], lag: Lag | None) -> int:
        return simulator.memory(program, limit_bytes=ROOMY_BYTES, lag=lag).peak_bytes

    best = tuple(actions)
    lowest = peak_bytes(best, lag)
    ceiling = simulator.peak_live_bytes(best)
    for min_padding, max_pieces in itertools.product(MIN_PADDING_BYTES, MAX_PIECES):
        if lowest <= max(enough_bytes, ceiling + MIN_GAIN_BYTES):
            break  # no more can be gained than what is beyond the live bytes
        splitting = _Splitting(ceiling, min_padding, max_pieces)
        candidate, its_lag = _with_reservations(simulator, actions, splitting, lag)
        peak = peak_bytes(candidate, its_lag)
        if peak < lowest - MIN_GAIN_BYTES:
            best, lowest = candidate, peak
    return best


def _with_reservations(
    simulator: Simulator, actions: Sequence[Action], allocator: _Splitting, lag: Lag | None
) -> tuple[tuple[Action, ...], Lag | None]:
    program = simulator.link(actions)
    walk = Walk(simulator.linker, program, allocator, lag)
    walk.persist()
    walk.step()  # the first step may leave holes behind; all later ones start from the same
    allocator.walk = walk
    walk.step()
    reserved: dict[int, list[int]] = {}
    for row, size_bytes in allocator.reservations:
        reserved.setdefault(program.rows[row].action, []).append(size_bytes)
    result: list[Action] = []
    begun: list[float] = []
    ended: list[float] = []
    for i, action in enumerate(actions):
        made = [Action("reserve", size_bytes) for size_bytes in reserved.get(i, ())]
        result += [*made, action]
        if lag:
            begun += [lag.begun[i]] * (len(made) + 1)
            ended += [*[lag.begun[i]] * len(made), lag.ended[i]]
    return tuple(result), Lag(begun, ended) if lag else None


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
