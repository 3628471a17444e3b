import itertools
import math

import numpy as np
import pytest

from memtrade.errors import MemtradeError
from memtrade.strategies.milp import Milp


def knapsack(seed: int, items: int = 12) -> tuple[Milp, np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(seed)
    values, weights = rng.integers(1, 50, items), rng.integers(1, 30, (2, items))
    limit = int(weights.sum() // 5)
    model = Milp()
    taken = model.columns(items, cost=-values, upper=1, integer=True)
    for each in weights:
        model.row(zip(taken, each, strict=True), at_most=limit)
    return model, values, weights, limit


@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_is_what_trying_all_finds(seed):
    model, values, weights, limit = knapsack(seed)
    best = max(
        int(np.dot(values, choice))
        for choice in itertools.product((0, 1), repeat=len(values))
        if (weights @ np.array(choice) <= limit).all()
    )
    found = model.solve()
    assert (found.status, found.objective) == ("optimal", -best)
    assert found.bound == pytest.approx(-best)
    assert np.dot(values, found.values) == best
    assert set(found.values.tolist()) <= {0.0, 1.0}


def test_the_relaxation_is_a_bound():
    model, *_ = knapsack(0)
    relaxed = model.solve(relax=True)
    assert relaxed.objective < model.solve().objective
    assert ((relaxed.values > 0.01) & (relaxed.values < 0.99)).any()
    assert relaxed.bound == relaxed.objective


def test_infeasible_and_unbounded():
    model = Milp()
    x = model.columns(2, cost=1, upper=1, integer=True)
    model.row([(x[0], 1.0), (x[1], 1.0)], at_least=3)
    found = model.solve()
    assert (found.status, found.found, found.objective) == ("infeasible", False, math.inf)
    assert found.values.size == 0
    model = Milp()
    model.columns(1, cost=-1)
    assert model.solve().status == "unbounded"


def test_a_limit_leaves_the_best_so_far_and_a_bound(capfd):
    rng = np.random.default_rng(0)
    model = Milp()
    n, rows = 60, 8
    x = model.columns(n, cost=-rng.integers(100, 999, n), upper=1, integer=True)
    for values in rng.integers(100, 999, (rows, n)):
        model.row(zip(x, values, strict=True), at_most=9000)
    found = model.solve(node_limit=1)
    assert found.status == "feasible"
    assert found.bound < found.objective
    again = model.solve(node_limit=1)
    assert again.values.tolist() == found.values.tolist()
    assert capfd.readouterr() == ("", "")


def test_entries_of_one_place_add_up():
    model = Milp()
    x = model.columns(1, cost=1)
    model.row([(x[0], 1.0), (x[0], 2.0)], at_least=6)
    assert model.solve().values.tolist() == [2.0]


def test_what_is_no_model_is_refused():
    model = Milp()
    model.columns(1)
    model.row([(1, 1.0)])
    with pytest.raises(IndexError, match="from 0 to 0"):
        model.solve()
    model.columns(1, cost=math.nan)
    with pytest.raises(MemtradeError, match="nan"):
        model.solve()
