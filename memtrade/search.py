"""The largest batch that runs: a search that asks as few questions as it can.

The idea. A guess (the simulator's) says where to begin. Ask there, and then one further in the
direction in which the answer must lie: where the guess is right, that is all, and where it is off
by two, it takes four questions. While the answers are not what the guess promised, go on in that
direction, each time twice as far (1, 3, 7, 15, ...); once there is a size that runs and a larger
one that does not, halve the gap.

Assumed: what runs at one size runs at all smaller ones. The answer holds by itself, whatever the
guess: its batch has been asked and runs, and the next size up has been asked and does not.
O(log |guess - answer|) questions.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Why = TypeVar("Why")


@dataclass(frozen=True)
class Found(Generic[Why]):
    """The outcome of a search.

    Attributes:
        batch: the largest that runs; 0 if none does.
        failing: the next size up that was asked; None if `batch` is the largest that was.
        why: what was in the way at `failing`.
    """

    batch: int
    failing: int | None
    why: Why | None


def largest(
    obstacle: Callable[[int], Why | None],
    *,
    guess: int,
    step: int = 1,
    most: int | None = None,
    stride: int = 1,
    within: float = 0.0,
    spent: Callable[[], bool] = lambda: False,
) -> Found[Why]:
    """The largest multiple of `step`, up to `most`, at which nothing is in the way.

    Args:
        obstacle: what keeps a batch size from running; None if it runs. Each is asked once.
        guess: where to begin; it need not be a multiple.
        stride: how far the second question is from the first, in steps: 1 for a good guess.
        within: a larger size that runs may be missed, if it is larger by no more than this share.
        spent: whether no more may be asked; what runs is the largest of those that were.
    """
    top = sys.maxsize if most is None else most // step
    if top == 0:
        raise ValueError(f"there is no multiple of {step} up to {most}")
    # In units of `step`: all up to `good` run, `bad` does not, and why.
    good, bad, why = 0, None, None
    unit = min(max(guess // step, 1), top)
    while True:
        found = obstacle(unit * step)
        if found is None:
            good = unit
        else:
            bad, why = unit, found
        if good == top or (bad is not None and bad - good <= max(1, within * good)) or spent():
            break
        if bad is None:
            unit = min(good + stride, top)
        elif not good:
            unit = max(bad - stride, 1)
        else:
            unit = (good + bad) // 2
        stride *= 2
    return Found(good * step, None if bad is None else bad * step, why)
