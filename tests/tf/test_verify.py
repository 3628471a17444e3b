"""Steps with a planted fault, beside the steps that they were made of."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from memtrade.comparison import ANOTHER_ORDER, IN_PARTS
from memtrade.models import make_model
from memtrade.tf.build import make_step
from memtrade.tf.verify import (
    compare_steps,
    compare_values,
    differs_from_itself,
    in_another_order,
    verified,
)

TINY = 1e-4
FAMILY = "gpt2"
OPTIONS = {"layers": 2, "width": 32, "heads": 2, "positions": 16, "vocabulary": 50, "batch_size": 4}


@pytest.fixture(scope="module")
def step():
    return make_step(make_model(FAMILY, OPTIONS), optimizer="momentum", learning_rate=TINY)


@pytest.fixture(scope="module")
def computed(step):
    """The variables after two steps, and the losses: what a right pipeline comes to."""
    variables, batch = step.variables(), step.make_batch()
    before = [variable.numpy() for variable in variables]
    losses = [float(step.function(*batch)) for _ in range(2)]
    values = {variable.name: variable.numpy() for variable in variables}
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return before, values, losses


@pytest.fixture
def afresh(step, computed):
    for variable, value in zip(step.variables(), computed[0], strict=True):
        variable.assign(value)
    return step


@pytest.mark.parametrize("repeats", [True, False])
def test_a_step_that_no_run_repeats_is_told_from_others(repeats: bool) -> None:
    weight = tf.Variable(tf.ones([4]))
    runs = tf.Variable(tf.zeros([]))  # nobody puts it back: it is not among those that are compared

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        runs.assign_add(0.0 if repeats else 1.0)
        weight.assign_sub(x * (1 + 1e-6 * runs))
        return tf.reduce_sum(weight)

    found = differs_from_itself(step, [weight], (tf.ones([4]),), steps=2)
    assert (found is None) == repeats


def differing(step, found, **named) -> list[tuple[str, str]]:
    comparison = compare_values(step, *found, **named)
    return [(each.name, each.why) for each in comparison.verified(ANOTHER_ORDER).differing]


def weight(names) -> str:
    return next(name for name in names if name == "block1/mlp_in/kernel:0")


def test_what_was_computed_right_is_equal(afresh, computed) -> None:
    assert differing(afresh, computed[1:]) == []


def test_a_gradient_that_was_dropped_is_seen_at_a_tiny_learning_rate(afresh, computed) -> None:
    before, values, losses = computed
    name = weight(values)
    old = dict(zip(values, before, strict=True))[name]
    assert np.abs(old - values[name]).max() < 1e-4  # what verify on a GPU used to let pass
    ((found, why),) = differing(afresh, (values | {name: old}, losses))
    assert (f"{found}:0", why) == (name, "")


def test_nan_is_seen_beside_any_number(afresh, computed) -> None:
    _, values, losses = computed
    name = weight(values)
    broken = values | {name: np.full_like(values[name], np.nan)}
    assert differing(afresh, (broken, losses)) == [(name.removesuffix(":0"), "is not a number")]


def test_a_loss_that_is_nan_is_seen(afresh, computed) -> None:
    _, values, losses = computed
    assert differing(afresh, (values, [float("nan"), losses[1]])) == [("loss", "is not a number")]


def test_a_variable_that_only_one_of_them_has_is_named(afresh, computed) -> None:
    _, values, losses = computed
    name = weight(values)
    fewer = {key: value for key, value in values.items() if key != name}
    said = [(name.removesuffix(":0"), "has no partner")]
    assert differing(afresh, (fewer, losses)) == said


def test_what_is_left_out_needs_no_partner(afresh, computed) -> None:
    _, values, losses = computed
    name = weight(values)
    fewer = {key: value for key, value in values.items() if key != name}
    assert differing(afresh, (fewer, losses), left_out=[name]) == []


def test_a_variable_that_only_one_of_them_has_is_named_the_other_way_round(
    afresh, computed
) -> None:
    _, values, losses = computed
    found = (values | {"extra:0": np.zeros(3)}, losses)
    assert differing(afresh, found) == [("extra", "has no partner")]


def test_steps_with_different_variables_are_compared_by_name(afresh) -> None:
    """A step of its own that has lost one of the variables."""
    other = make_step(make_model(FAMILY, OPTIONS), optimizer="momentum", learning_rate=TINY)
    first, *kept = other.variables()
    name = first.name.partition(":")[0]
    comparison = compare_steps(
        afresh.function,
        other.function,
        afresh.variables(),
        afresh.make_batch(),
        steps=1,
        own_variables=kept,
    )
    assert comparison.unpaired == {name}
    assert [found for found, _ in comparison.beyond(0.0)] == [name]


def test_a_step_that_forgets_an_update_differs(step) -> None:
    forgotten = next(each for each in step.variables() if each.name == "block1/mlp_in/kernel:0")

    def forgetful(*batch: tf.Tensor) -> tf.Tensor:
        kept = forgotten.numpy()
        loss = step.function(*batch)
        forgotten.assign(kept)
        return loss

    comparison = compare_steps(
        step.function, forgetful, step.variables(), step.make_batch(), steps=1
    )
    assert [name for name, _ in comparison.beyond(ANOTHER_ORDER)] == [
        forgotten.name.partition(":")[0]
    ]


@pytest.mark.parametrize("drops", [False, True])
def test_what_has_no_gradient_is_told_from_a_gradient_that_is_dropped(drops: bool) -> None:
    """A bias before a batch norm: rounding alone moves it, and Adam does so as far as any."""
    kernel, bias = tf.Variable(tf.random.stateless_normal([8, 8], (1, 2))), tf.Variable(tf.zeros(8))
    firsts, seconds = ([tf.Variable(each * 0.0) for each in (kernel, bias)] for _ in range(2))
    variables = [kernel, bias, *firsts, *seconds]

    def step(x: tf.Tensor, *, turn: bool, drop: bool) -> tf.Tensor:
        given = tf.reverse(x, [0]) if turn else x
        with tf.GradientTape() as tape:
            y = given @ kernel + bias
            mean, variance = tf.nn.moments(y, 0)
            normal = (y - mean) / tf.sqrt(variance + 1e-3)
            loss = tf.reduce_mean(tf.tanh(normal * tf.reduce_sum(given, 1, keepdims=True)) ** 2)
        gradients: Any = tape.gradient(loss, [kernel, bias])
        gradients[0] *= 0.0 if drop else 1.0
        for variable, gradient, first, second in zip(
            (kernel, bias), gradients, firsts, seconds, strict=True
        ):
            first.assign(0.9 * first + 0.1 * gradient)
            second.assign(0.999 * second + 0.001 * gradient**2)
            variable.assign_sub(0.01 * first / (tf.sqrt(second) + 1e-10))
        return loss

    batch = [tf.random.stateless_normal([64, 8], (3, 4))]
    original = functools.partial(step, turn=False, drop=False)
    other = functools.partial(step, turn=True, drop=drops)
    found = compare_steps(original, other, variables, batch, steps=2, anew=True)
    assert not found.verified(IN_PARTS).equal
    noise = in_another_order(original, variables, batch, steps=2)
    told = found.verified(IN_PARTS, noise)
    assert told.rounding
    assert told.equal is not drops


@pytest.mark.parametrize(("wrong", "equal"), [(1.0, True), (1.01, False), (0.0, False)])
def test_a_relu_that_rounding_turns_over_is_told_from_a_wrong_gradient(
    wrong: float, equal: bool
) -> None:
    """At one, where rounding decides; a ten-thousandth beside that it does not."""
    weight = tf.Variable(tf.ones([64]))

    def step(x: tf.Tensor, tiny: float = 0.0, factor: float = 1.0) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * (weight**2 + tf.nn.relu(weight - 1.0 + tiny)))
        gradient: Any = tape.gradient(loss, weight)
        weight.assign_sub(TINY * factor * gradient)
        return loss

    def in_parts(x: tf.Tensor) -> tf.Tensor:
        return step(x, 1e-8, wrong)

    original: Any = SimpleNamespace(
        function=tf.function(step),
        variables=lambda: [weight],
        make_batch=lambda: (tf.ones([2, 64]),),
    )
    assert (
        not compare_steps(
            original.function, in_parts, [weight], original.make_batch(), steps=2, anew=True
        )
        .verified(IN_PARTS)
        .equal
    )
    found = verified(original, tf.function(in_parts), steps=2, tolerance=IN_PARTS, anew=True)
    assert found.equal == equal
    assert (weight.numpy() == 1.0).all()
