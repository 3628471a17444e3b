"""Faults that are planted in the values of a step, and what the comparison says of them."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from memtrade.comparison import LOSS, Comparison, Verified, by_name

RATE = 1e-7  # an update far below any tolerance that does not look at its size
BEFORE = {"w": np.linspace(-0.01, 0.01, 50, dtype=np.float32), "b": np.zeros(4, np.float32)}
GRADIENT = {"w": np.full(50, 3, np.float32), "b": np.full(4, 2, np.float32)}


def after(steps: int = 1, **changes) -> dict[str, np.ndarray]:
    values = {name: BEFORE[name] - np.float32(RATE * steps) * GRADIENT[name] for name in BEFORE}
    return {LOSS: np.float32(0.5), **values} | changes


def compared(found: dict[str, np.ndarray], expected: dict[str, np.ndarray] | None = None):
    comparison = Comparison(BEFORE)
    comparison.add(after() if expected is None else expected, found)
    return comparison


def test_the_same_values_are_equal_to_the_bit() -> None:
    verdict = compared(after()).verified(0.0)
    assert (verdict.equal, verdict.max_difference, verdict.of_update) == (True, 0.0, 0.0)
    assert (verdict.steps, verdict.variables) == (1, 2)


@pytest.mark.parametrize("name", ["w", "b"])
@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.05, 0.5])
def test_a_dropped_gradient_is_seen_however_small_the_learning_rate(name, tolerance) -> None:
    comparison = compared(after(**{name: BEFORE[name]}))
    ((found, gap),) = comparison.beyond(tolerance)
    assert (found, gap.of_update) == (name, pytest.approx(1.0))
    assert gap.absolute < 1e-6  # less than the absolute tolerance that used to be
    assert not comparison.verified(tolerance).equal


def test_a_halved_gradient_is_half_of_the_update() -> None:
    half = BEFORE["b"] - np.float32(RATE / 2) * GRADIENT["b"]
    ((_, gap),) = compared(after(b=half)).beyond(0.1)
    assert gap.of_update == pytest.approx(0.5)


def test_what_is_left_of_rounding_counts_only_to_the_bit() -> None:
    """One unit in the last place, of an update that is about as small."""
    start = {"w": np.ones(3, np.float32)}
    moved = np.array([1, 1, 1 - 2**-24], np.float32)
    comparison = Comparison(start)
    comparison.add({"w": moved}, dict(start))
    assert not comparison.beyond(1e-3)
    assert comparison.beyond(0.0)


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 1e9])
@pytest.mark.parametrize("both", [False, True])
def test_nan_fails_whatever_is_allowed(both: bool, tolerance: float) -> None:
    """Also in both steps: there is nothing to compare then. And never hidden by a larger one."""
    broken = after(b=np.array([0, np.nan, 0, 0], np.float32), w=BEFORE["w"] + 100)
    verdict = compared(broken, after(b=broken["b"]) if both else None).verified(tolerance)
    assert not verdict.equal
    assert verdict.max_difference is None
    assert verdict.of_update is None
    named = {each.name: each for each in verdict.differing}
    assert (named["b"].why, named["b"].max_difference) == ("is not a number", None)


def test_a_nan_of_an_early_step_is_not_forgotten() -> None:
    comparison = compared(after(loss=np.float32(np.nan)))
    comparison.add(after(2), after(2))
    assert [name for name, _ in comparison.beyond(0.05)] == [LOSS]


@pytest.mark.parametrize(("first", "second"), [([np.inf, 2], [np.inf, 2.5]), ([3, 2], [3.5, 2])])
def test_what_is_infinite_in_both_is_the_same_and_no_update_is(first, second) -> None:
    """Such as a least loss that none has been under yet, or the first has."""
    comparison = Comparison({"least": np.array([np.inf, 1], np.float32)})
    comparison.add({"least": np.array(first, np.float32)}, {"least": np.array(first, np.float32)})
    assert comparison.verified(0.0).equal
    comparison.add({"least": np.array(first, np.float32)}, {"least": np.array(second, np.float32)})
    ((_, gap),) = comparison.beyond(0.05)
    assert 0.1 < gap.of_update < 1


@pytest.mark.parametrize("side", ["original", "other"])
def test_what_is_infinite_in_one_fails(side: str) -> None:
    infinite = after(b=np.array([0, np.inf, 0, 0], np.float32))
    comparison = compared(infinite) if side == "other" else compared(after(), infinite)
    assert [each.why for each in comparison.verified(1e9).differing] == ["is not a number"]


@pytest.mark.parametrize("side", ["original", "other"])
def test_a_variable_without_a_partner_fails_with_its_name(side: str) -> None:
    alone = after()
    del alone["b"]
    comparison = compared(alone) if side == "other" else compared(after(), alone)
    verdict = comparison.verified(1e9)
    assert not verdict.equal
    assert [(each.name, each.why) for each in verdict.differing] == [("b", "has no partner")]
    assert verdict.variables == 2


def test_a_variable_of_another_shape_is_no_partner() -> None:
    assert [name for name, _ in compared(after(b=np.zeros(5, np.float32))).beyond(1.0)] == ["b"]


def test_a_variable_that_should_not_move_is_named() -> None:
    verdict = compared(after(), after(b=BEFORE["b"])).verified(0.05)
    assert [(each.name, each.why) for each in verdict.differing] == [("b", "should not move")]


def test_whole_numbers_and_words_are_compared_too() -> None:
    comparison = Comparison({"step": np.array(4), "word": np.array(b"a")})
    comparison.add(
        {"step": np.array(5), "word": np.array(b"a")}, {"step": np.array(4), "word": np.array(b"a")}
    )
    ((name, gap),) = comparison.beyond(0.5)
    assert (name, gap.of_update) == ("step", 1.0)


def test_the_verdict_survives_the_way_to_the_parent() -> None:
    """JSON has no NaN and no infinity."""
    nan = np.full(4, math.nan, np.float32)
    for verdict in (
        compared(after(b=nan)).verified(0.0),
        compared({}).verified(0.0),
        compared(after(), after(b=BEFORE["b"])).verified(0.0),
    ):
        assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verified) == verdict


def test_names_that_come_again_are_numbered() -> None:
    one, two = np.zeros(1), np.ones(1)
    assert list(by_name(["a:0", "a:0", "b:0"], [one, two, one])) == ["a", "a#1", "b"]
