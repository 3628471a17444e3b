"""What a trial needs of a machine, and how many fit side by side."""

from __future__ import annotations

import msgspec
import pytest

from memtrade.measure import host
from memtrade.measure.protocol import TrialSpec
from memtrade.sweep.runner import jobs_that_fit, need_of


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
