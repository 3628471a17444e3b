"""Is it the same update? What two steps made of the same variables. No TensorFlow here.

For a variable that goes from v to w in the original, and to w' in the other step, after each of
the compared steps and by Euclidean norms,

    d = w - v    d' = w' - v    share = |d - d'| / |d|

is the difference as a share of the update: a gradient that was dropped is 1 of it, however small
the learning rate. Of what has no update to go by, the loss, the value itself stands for d. A
variable that should not move and does is infinitely far off, one that is not a number is no
number off, and both differ whatever is allowed; so does a variable that only one step has.

Nothing allowed is equality to the bit. Where something is, one unit in the last place of each
value is, too: it is what is left of an update that is too small for the variable to hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

Values = Mapping[str, np.ndarray]

LOSS = "loss"

# What is allowed where the same kernels may add in another order: on a GPU from run to run, in a
# pipeline since TensorFlow optimizes each stage's graph apart. Measured on the CPU, it is up to 2%
# of an update after seven steps of a small ResNet, whose ReLUs turn over; a gradient that is
# dropped is all of one, and a micro-batch of eight an eighth.
ANOTHER_ORDER = 0.05
# The same where each step starts from what the original came to, and only the widest ops run in
# parts: 0.00001 in ResNet-50.
IN_PARTS = 0.001

# Losses of one step whose examples stand in another order, and how much more than what such an
# order changes may be off.
_SAME_LOSS, _LIKE_NOISE = 1e-5, 10.0


class Difference(msgspec.Struct, frozen=True):
    """A value that is not the original's: "loss" or a variable's name, and by how much.

    Attributes:
        max_difference: the largest of an element. of_update: as a share of the variable's update.
            None is no number, or an infinite one.
        why: where a number does not say it.
    """

    name: str
    max_difference: float | None
    of_update: float | None = None
    why: str = ""


class Verified(msgspec.Struct, frozen=True, kw_only=True, tag="verified"):
    """The outcome of the comparison with the original.

    Attributes:
        equal: every difference is within `tolerance`, everything is a number and has a partner.
        tolerance: as a share of the update; 0 asks for equality to the bit.
        max_difference: the largest over the losses and all variables, None if one is not a number.
        of_update: the largest share of an update (`memtrade.comparison`).
        steps: compared. variables: compared after each step.
        differing: beyond the tolerance, the largest first.
        itself: the share of an update by which the original differs from itself when it is run
            again, where that was looked at.
        rounding: variables that rounding alone moves (a bias before a batch norm has no gradient,
            and Adam makes any number a step), where that was looked at.
    """

    equal: bool
    tolerance: float
    max_difference: float | None
    of_update: float | None = None
    steps: int
    variables: int
    differing: tuple[Difference, ...]
    itself: float | None = None
    rounding: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gap:
    """How far a value is off, the worst of the steps. NaN: it is no number in one of the two, or
    infinite in but one.

    Attributes:
        absolute: the largest difference of an element.
        of_update: the share, see above.
        rounding: whether units in the last place explain it.
    """

    absolute: float
    of_update: float
    rounding: bool = False

    def within(self, tolerance: float) -> bool:
        if math.isnan(self.of_update) or tolerance == 0:
            return self.absolute == 0
        return self.of_update <= tolerance or self.rounding

    def no_more_than(self, noise: Gap | None) -> bool:
        """Whether as much is off where nothing but the order of sums is another."""
        if noise is None or math.isnan(self.of_update):
            return False
        return (
            self.of_update <= _LIKE_NOISE * noise.of_update
            and self.absolute <= _LIKE_NOISE * noise.absolute
        )

    @property
    def _badness(self) -> float:
        return math.inf if math.isnan(self.of_update) else self.of_update


@dataclass
class Comparison:
    """Differences by name, over all steps that were added.

    Attributes:
        before: the values from which both steps began.
        unpaired: names that only one of the steps has.
    """

    before: Values
    gaps: dict[str, Gap] = field(default_factory=dict)
    unpaired: set[str] = field(default_factory=set)
    steps: int = 0

    def add(self, expected: Values, found: Values) -> None:
        """The values after one more step, the loss among them under its name."""
        self.steps += 1
        self.unpaired |= expected.keys() ^ found.keys()
        for name in expected.keys() & found.keys():
            if expected[name].shape != found[name].shape:
                self.unpaired.add(name)
                continue
            gap = _gap(self.before.get(name), expected[name], found[name])
            known = self.gaps.get(name)
            if known is None or gap._badness >= known._badness:
                self.gaps[name] = gap

    def beyond(self, tolerance: float) -> list[tuple[str, Gap]]:
        """What differs by more than `tolerance` of its update, the furthest off first; without a
        partner is further than anything."""
        found = [(name, gap) for name, gap in self.gaps.items() if not gap.within(tolerance)]
        found += [(name, Gap(math.inf, math.inf)) for name in self.unpaired]
        return sorted(found, key=lambda each: (-each[1]._badness, each[0]))

    def verified(self, tolerance: float, noise: Comparison | None = None) -> Verified:
        """The outcome, as it is said and kept.

        Args:
            noise: the original beside itself, added up in another order.
        """
        differing, rounding = self.beyond(tolerance), []
        loss = noise.gaps.get(LOSS) if noise else None
        if noise and loss and loss.of_update <= _SAME_LOSS:  # one step, but for rounding
            rounding = [name for name, gap in differing if gap.no_more_than(noise.gaps.get(name))]
            differing = [each for each in differing if each[0] not in rounding]
        worst = max(self.gaps.values(), key=lambda gap: gap._badness, default=Gap(0.0, 0.0))
        largest = [gap.absolute for gap in self.gaps.values()]
        return Verified(
            equal=not differing,
            tolerance=tolerance,
            max_difference=None if any(map(math.isnan, largest)) else max(largest, default=0.0),
            of_update=_finite(worst.of_update),
            steps=self.steps,
            variables=len((self.gaps.keys() | self.unpaired) - {LOSS}),
            differing=tuple(self._difference(name, gap) for name, gap in differing),
            rounding=tuple(rounding),
        )

    def _difference(self, name: str, gap: Gap) -> Difference:
        why = ""
        if name in self.unpaired:
            why = "has no partner"
        elif math.isnan(gap.of_update):
            why = "is not a number"
        elif math.isinf(gap.of_update):
            why = "should not move"
        return Difference(name, _finite(gap.absolute), _finite(gap.of_update), why)


def by_name(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Values, or variables, by their names, numbered where one comes again or is the loss's."""
    found: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        plain = name.partition(":")[0]
        found[plain if plain not in (LOSS, *found) else f"{plain}#{len(found)}"] = value
    return found


def _gap(before: np.ndarray | None, expected: np.ndarray, found: np.ndarray) -> Gap:
    if expected.dtype.kind not in "biufV":  # words; V is bfloat16
        return Gap(0.0, 0.0) if np.array_equal(expected, found) else Gap(math.inf, math.inf)
    if np.array_equal(expected, found):  # mostly: in no time
        return Gap(0.0, 0.0)
    a, b = expected.astype(np.float64), found.astype(np.float64)
    a, b = (np.where(np.isinf(a) & (a == b), 0.0, each) for each in (a, b))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return Gap(math.nan, math.nan)
    apart = np.linalg.norm(a - b)
    if apart == 0:
        return Gap(0.0, 0.0)
    # Where it was infinite, such as the least loss before the first, the value stands for itself.
    size = np.linalg.norm(a if before is None else a - np.where(np.isfinite(before), before, 0.0))
    last_places = np.zeros(())
    if expected.dtype.kind == "f":
        last_places = np.spacing(np.maximum(np.abs(expected), np.abs(found)))
    return Gap(
        absolute=float(np.abs(a - b).max()),
        of_update=float(apart / size) if size else math.inf,
        rounding=bool(apart <= np.linalg.norm(last_places.astype(np.float64))),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
