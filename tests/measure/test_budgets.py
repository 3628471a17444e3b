"""A budget that the first plan breaks, because a fact is wrong, and that the next one holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from memtrade.errors import InfeasibleBudgetError
from memtrade.facts.cache import FactsFile, all_files
from memtrade.facts.surroundings import ONEDNN
from memtrade.measure.budgets import leaving_margin
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import run_child
from memtrade.target import Target, profile_target

# Eigen's gradient of a filter asks for more scratch than for anything else.
KERNELS = "0"
NET = {"target": "tests.corpus.vision:resnet", "batch_size": 32}


def trial(budget: str):
    return run_child(
        TrialSpec(
            model="target",
            model_options=NET,
            strategy="optimal",
            strategy_options={"budget": budget},
            steps=2,
            memory_limit_bytes=1 << 30,
        )
    )


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A cache of what the step's kernels ask for, and the smallest peak by these facts."""
    folder = tmp_path_factory.mktemp("asked")
    with pytest.MonkeyPatch.context() as patch:
        use(folder, patch)
        least = trial("")
    assert least.measured is not None, least.reason
    assert not least.corrections
    return folder, least.measured.peak_bytes


def use(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("MEMTRADE_ASK", "1")
    patch.setenv("XDG_CACHE_HOME", str(folder))
    patch.setenv(ONEDNN, KERNELS)


@pytest.fixture
def least_bytes(asked: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The smallest peak; the test has a copy of the cache."""
    shutil.copytree(asked[0], tmp_path, dirs_exist_ok=True)
    use(tmp_path, monkeypatch)
    return asked[1]


def forget_scratch() -> int:
    """Takes the scratch out of all facts that were learned. Returns of how many."""
    ((path, where, known),) = all_files()
    wrong = [
        msgspec.structs.replace(each, requests=tuple(r for r in each.requests if r[1] >= 0))
        for each in known.table.values()
        if any(slot < 0 for _, slot in each.requests)
    ]
    FactsFile(where, path.parent).add(wrong)
    return len(wrong)


def test_a_wrong_fact_breaks_the_first_plan_and_not_the_second(least_bytes: int):
    budget_bytes = int(least_bytes * 1.01)
    assert forget_scratch()
    record = trial(f"{budget_bytes}B")
    assert record.status == "ok", record.reason
    assert record.measured is not None
    assert record.measured.peak_bytes <= budget_bytes
    (first, *_) = record.corrections
    assert first.measured_bytes > budget_bytes >= first.predicted_bytes
    assert "asked anew" in first.remedy


def test_a_budget_that_nothing_holds_is_refused_with_the_op(least_bytes: int):
    assert forget_scratch()
    record = trial(f"{int(least_bytes * 0.97)}B")
    assert record.status == "infeasible"
    assert "MB" in record.reason


def test_a_margin_that_leaves_no_plan_is_given_up():
    """The plan without it is run; only that tells whether it holds."""
    tight = profile_target("arena").replace(margin_bytes=5)

    def plan(target: Target) -> int:
        if target.margin_bytes > 4:
            raise InfeasibleBudgetError(11, 10, "op")
        return 10 + target.margin_bytes

    assert leaving_margin(plan, tight) == (10, tight.replace(margin_bytes=0))
    enough = tight.replace(margin_bytes=4)
    assert leaving_margin(plan, enough) == (14, enough)
