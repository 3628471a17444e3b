"""How much host memory a step that runs here may take for swapped tensors."""

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
