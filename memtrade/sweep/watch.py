"""What a runner of a sweep says while it runs, and how a trial can end without a record."""

from dataclasses import dataclass
from typing import Literal, Protocol

from memtrade.measure.protocol import Event
from memtrade.measure.records import Record
from memtrade.sweep.grid import Trial


@dataclass(frozen=True, kw_only=True)
class NoRecord:
    """A trial that makes no record, and why in one line.

    Attributes:
        kind: "refused" is bad input that only the child could see, such as a limit below the
            variables' size; "lost" is a trial whose node or process went away each time.
    """

    kind: Literal["refused", "lost"]
    reason: str


End = Record | NoRecord


class Watch(Protocol):
    """Told by a runner; `event` and `log` by any thread, the rest by the one that called it."""

    def note(self, text: str) -> None:
        """Something about the whole sweep that a user wants to know."""
        ...

    def started(self, trial: Trial) -> None:
        """Runs now. Not told of trials that a cluster places by itself."""
        ...

    def event(self, event: Event) -> None:
        """What a child says; only where one trial runs at a time."""
        ...

    def log(self, line: str) -> None:
        """A line that a child logs, of which nobody knows whose where several run at a time."""
        ...

    def ended(self, trial: Trial, end: End, seconds: float) -> None:
        """Is over, `seconds` after it began. A record is not saved yet."""
        ...

    def again(self, trial: Trial, why: str) -> None:
        """Did not come to its end and will run once more."""
        ...
