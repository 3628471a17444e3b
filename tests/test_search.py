"""The search, with made-up answers: right whatever the guess, and quick where that is good."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtrade.search import Found, largest


class Device:
    """Runs batches up to `limit`, and counts how often it is asked."""

    def __init__(self, limit: int):
        self.limit = limit
        self.asked: list[int] = []

    def obstacle(self, batch: int) -> str | None:
        self.asked.append(batch)
        return None if batch <= self.limit else f"{batch} does not fit"


@given(
    limit=st.integers(0, 3000),
    guess=st.integers(-5, 6000),
    step=st.integers(1, 40),
    stride=st.integers(1, 100),
    most=st.none() | st.integers(40, 2000),
)
def test_the_answer_is_right_whatever_the_guess(
    limit: int, guess: int, step: int, stride: int, most: int | None
) -> None:
    device = Device(limit)
    found = largest(device.obstacle, guess=guess, step=step, most=most, stride=stride)
    ceiling = limit if most is None else min(limit, most)
    assert found.batch == ceiling // step * step
    assert len(set(device.asked)) == len(device.asked)
    assert all(batch >= 1 and batch % step == 0 for batch in device.asked)
    if found.failing is None:
        assert most is not None
        assert found.batch == most // step * step
        assert found.batch in device.asked
    else:
        assert found.failing == found.batch + step
        assert found.why == f"{found.failing} does not fit"
        assert found.failing in device.asked
        assert found.batch == 0 or found.batch in device.asked


@pytest.mark.parametrize(
    ("guess", "questions"),
    [
        (214, [214, 215]),
        (215, [215, 214]),
        (216, [216, 215, 213, 214]),
        (217, [217, 216, 214, 215]),
        (213, [213, 214, 216, 215]),
        (212, [212, 213, 215, 214]),
    ],
)
def test_a_good_guess_needs_few_questions(guess: int, questions: list[int]) -> None:
    device = Device(214)
    largest(device.obstacle, guess=guess)
    assert device.asked == questions


@pytest.mark.parametrize("guess", [107, 428])
def test_a_guess_that_is_off_by_a_factor_of_two_costs_questions_but_no_correctness(
    guess: int,
) -> None:
    device = Device(214)
    assert largest(device.obstacle, guess=guess).batch == 214
    assert 8 < len(device.asked) < 20


def test_a_long_stride_suits_a_rough_guess() -> None:
    asked = {}
    for stride in (1, 25):
        device = Device(700)
        assert largest(device.obstacle, guess=100, stride=stride).batch == 700
        asked[stride] = len(device.asked)
    assert asked[25] < asked[1]


def test_where_not_even_one_example_fits() -> None:
    device = Device(0)
    found = largest(device.obstacle, guess=3)
    assert found == Found(0, 1, "1 does not fit")


def test_the_asked_maximum_is_an_answer_too() -> None:
    device = Device(1000)
    found = largest(device.obstacle, guess=900, most=64)
    assert found == Found(64, None, None)
    assert device.asked == [64]
    with pytest.raises(ValueError, match="no multiple of 8"):
        largest(device.obstacle, guess=1, step=8, most=7)


@given(limit=st.integers(0, 3000), guess=st.integers(1, 6000), asks=st.integers(1, 20))
def test_few_questions_find_what_runs_within_a_share_of_the_largest(
    limit: int, guess: int, asks: int
) -> None:
    device = Device(limit)
    stride = max(int(guess * 0.03), 1)
    found = largest(
        device.obstacle,
        guess=guess,
        stride=stride,
        within=0.03,
        spent=lambda: len(device.asked) == asks,
    )
    assert len(device.asked) <= asks
    assert found.batch == max((size for size in device.asked if size <= limit), default=0)
    if len(device.asked) < asks:
        assert found.batch <= limit <= max(found.batch * 1.03, found.batch + 1)


@pytest.mark.parametrize(
    ("limit", "questions", "answer"),
    [
        (100, [100, 103], 100),
        (104, [100, 103, 109], 103),
        (98, [100, 97, 98], 98),
        (92, [100, 97, 91], 91),
    ],
)
def test_a_good_guess_takes_three_questions_at_most(
    limit: int, questions: list[int], answer: int
) -> None:
    device = Device(limit)
    found = largest(
        device.obstacle, guess=100, stride=3, within=0.03, spent=lambda: len(device.asked) == 3
    )
    assert (device.asked, found.batch) == (questions, answer)
