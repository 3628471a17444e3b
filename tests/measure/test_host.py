"""What is said of a machine, and how much of it a step that runs here may take."""

from __future__ import annotations

import pytest

from memtrade.measure import host
from memtrade.strategies import make_options
from tests.graphs import chain

GRAPH = chain(12, size=256 << 20)  # 3 GB of activations


@pytest.mark.parametrize(
    ("free_bytes", "given", "limit"),
    [
        (64 * 10**9, "", ""),  # room for all there is: no limit, and the same plan on each day
        (5 * 10**9, "", "2500000000B"),
        (5 * 10**9, "1GB", "1GB"),
        (0, "", "500000000B"),
    ],
)
def test_room_that_might_not_do_is_written_into_the_options(monkeypatch, free_bytes, given, limit):
    monkeypatch.setattr(host, "free_memory_bytes", lambda: free_bytes)
    options = make_options("optimal", {"host_memory_limit": given})
    assert host.within_room(options, GRAPH, 500_000_000).host_memory_limit == limit


def test_a_strategy_without_such_a_limit_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(host, "free_memory_bytes", lambda: 0)
    options = make_options("lms")
    assert host.within_room(options, GRAPH) is options


def test_what_chooses_kernels_is_part_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in host._SETTINGS:
        monkeypatch.delenv(name, raising=False)
    usual = host.describe_machine()
    assert usual.settings == ("TF_ENABLE_ONEDNN_OPTS=1",)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    assert host.describe_machine() == usual
    for name, value in (("TF_ENABLE_ONEDNN_OPTS", "0"), ("ONEDNN_MAX_CPU_ISA", "SSE41")):
        monkeypatch.setenv(name, value)
        assert f"{name}={value}" in host.describe_machine().settings
        assert host.describe_machine().identity != usual.identity


def test_vector_instructions_are_read_in_a_stable_order() -> None:
    features = host.describe_machine().cpu_features
    assert features is not None
    assert list(features) == sorted(features)
    assert "fpu" not in features
