"""What a trial needs of a machine, how many fit side by side, and which goes first."""

from __future__ import annotations

import msgspec
import pytest

from memtrade.measure import host
from memtrade.measure.protocol import TrialSpec
from memtrade.sweep.grid import Trial
from memtrade.sweep.runner import jobs_that_fit, leaner_first, need_of


@pytest.mark.parametrize(
    ("asked", "cores", "free_gib", "limit_gib", "device", "jobs", "why"),
    [
        (4, 8, 32, 4, "arena", 4, ""),
        (4, 3, 32, 4, "arena", 3, "there are 3 cores"),
        (4, 8, 16, 4, "arena", 3, "a trial may take 5,583.5 MB"),
        (4, 8, 4, 4, "arena", 1, "and 4,295.0 MB are free"),
        (1, 8, 1, 4, "arena", 1, ""),
        (4, 8, 32, 4, "gpu:0", 1, "the trials use gpu:0, one at a time each"),
    ],
)
def test_jobs_are_lowered_to_what_the_machine_holds(
    monkeypatch: pytest.MonkeyPatch, asked: int, cores: int, free_gib: int, limit_gib: int,
    device: str, jobs: int, why: str,
) -> None:  # fmt: skip
    machine = host.describe_machine()
    monkeypatch.setattr(
        host, "describe_machine", lambda: msgspec.structs.replace(machine, cores=cores)
    )
    monkeypatch.setattr(host, "free_memory_bytes", lambda: free_gib << 30)
    specs = [
        TrialSpec(device=device, memory_limit_bytes=limit_gib << 30),
        TrialSpec(device=device, memory_limit_bytes=1 << 28),
    ]
    found, said = jobs_that_fit(asked, specs)
    assert (found, why in said, bool(said)) == (jobs, True, bool(why))


def test_what_a_trial_needs() -> None:
    arena = need_of(TrialSpec(device="arena", memory_limit_bytes=10 << 30))
    assert (arena.memory_bytes, arena.gpus) == (13 << 30, 0)
    gpu = need_of(TrialSpec(device="gpu:0", memory_limit_bytes=10 << 30))
    assert (gpu.memory_bytes, gpu.gpus) == (3 << 30, 1)
    assert need_of(TrialSpec(memory_limit_bytes=1 << 20)).memory_bytes == (1 << 30) + (1 << 20)


def trial(budget: str, **changes: object) -> Trial:
    spec = TrialSpec(strategy="optimal", strategy_options={"budget": budget, "swap": True})
    return Trial(spec=msgspec.structs.replace(spec, **changes), timeout_seconds=1.0, id=budget)


def test_budgets_ascend_in_the_places_that_they_have():
    original = trial("", strategy="original", strategy_options={})
    trials = [trial("1GB"), original, trial("600MB"), trial("2GB", steps=9), trial("0.8GB")]
    assert [each.id for each in leaner_first(trials)] == ["600MB", "", "0.8GB", "2GB", "1GB"]


def test_trials_without_budgets_stay_where_they_are():
    trials = [trial("", steps=steps) for steps in (3, 1, 2)]
    assert leaner_first(trials) == trials
