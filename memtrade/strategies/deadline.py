"""The wall clock of planning: it cancels, and decides nothing else.

How far a search goes is counted (nodes, solutions, simulated actions), so that a busy machine makes
the same plan as an idle one. What takes longer than anybody waits for is cut off here, and the plan
says so.
"""

import time


class CancelledError(Exception):
    """The deadline has passed; the best so far counts. Never leaves a strategy."""


class Deadline:
    """A moment after which `check` raises. Infinite seconds: never."""

    def __init__(self, seconds: float):
        self._ends = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def check(self) -> None:
        if not self.seconds_left:
            raise CancelledError
