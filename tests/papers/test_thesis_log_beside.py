"""The thesis' log of one run, put together again of its figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memtrade.errors import MemtradeError
from memtrade.measure.records import Record
from memtrade.papers.thesis_log_beside import page, published_log
from tests.papers.test_thesis_log import read


def test_the_published_log_is_whole_again():
    [run] = read(published_log())
    assert (run["strategy"], run["size"]) == ("ome", 50)
    assert len(run["memory"]) == 11
    assert run["memory"][-1] == (4268.211456, 572.143104)
    assert run["steps"][0] == (1992.294016, 2.761)
    assert len(run["tensors"]) == 12
    assert run["tensors"][1] == (
        "InceptionV4/InceptionV4/Mixed_5a/Branch_0/Conv2d_1a_3x3/Relu:0",
        "32, 35, 35, 192", "float32", True,
    )  # fmt: skip


def test_a_missing_record_is_named(make_record: Callable[..., Record]):
    with pytest.raises(MemtradeError, match="no record of InceptionV4 under OME"):
        page([make_record("ome")], [])
