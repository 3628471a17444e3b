"""TensorFlow's own ways in the registry: beside the planned strategies, without a plan."""

import pytest

from memtrade.errors import MemtradeError
from memtrade.models import options_of
from memtrade.strategies import (
    NATIVE,
    PLANNED,
    STRATEGIES,
    find_planned,
    find_strategy,
    make_options,
)


def test_the_registry_has_both_kinds():
    assert list(STRATEGIES) == [*PLANNED, *NATIVE]
    assert set(NATIVE) == {"recompute_grad", "keras_remat", "grappler", "xla", "accumulate"}
    assert find_strategy("xla") is NATIVE["xla"]
    assert find_planned("ome") is PLANNED["ome"]


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_strategy_has_no_plan(name):
    with pytest.raises(MemtradeError, match=f"{name} has no plan.*memtrade run --strategy {name}"):
        find_planned(name)


@pytest.mark.parametrize("name", NATIVE)
def test_each_states_its_tolerance(name):
    tolerance = {each.name: each for each in options_of(NATIVE[name].options)}["tolerance"]
    assert make_options(name).tolerance == tolerance.default
    assert make_options(name, {"tolerance": "0.5"}).tolerance == 0.5
    with pytest.raises(MemtradeError, match="at least 0"):
        make_options(name, {"tolerance": -1.0})


def test_options_that_go_together():
    with pytest.raises(MemtradeError, match="layer_names' go together"):
        make_options("keras_remat", {"mode": "list_of_layers"})
    with pytest.raises(MemtradeError, match="layer_names' go together"):
        make_options("keras_remat", {"layer_names": "conv"})
    with pytest.raises(MemtradeError, match="give hints=cheap"):
        make_options("grappler", {"mode": "manual"})
    assert make_options("grappler", {"mode": "manual", "hints": "cheap"}).hints == "cheap"
    with pytest.raises(MemtradeError, match="micro_batches' must be at least 1"):
        make_options("accumulate", {"micro_batches": 0})
