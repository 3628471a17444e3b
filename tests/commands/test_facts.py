"""`memtrade facts`: nothing yet, what was learned, and forgetting it."""

from __future__ import annotations

import pytest

from memtrade import cli
from memtrade.facts.asking import CopyRates
from memtrade.facts.cache import FactsFile
from memtrade.facts.learned import Learned
from memtrade.facts.surroundings import surroundings
from memtrade.measure import host
from memtrade.measure.environment import child_environment
from memtrade.measure.protocol import TrialSpec


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def learn() -> None:
    environment = child_environment(TrialSpec(device="arena"))
    here = surroundings("cpu", host.tensorflow_version() or "", environment)
    asked = Learned(
        key="a", kernel="Conv2D 2x8x8x16", requests=((16_000_000, 0), (4_000_000, -1)),
        seconds=0.002, source="asked", on="2026-01-01",
    )  # fmt: skip
    refused = Learned(
        key="b", kernel="Odd 3", margin_bytes=2_000_000, source="refused: it crashed",
        on="2026-01-02",
    )  # fmt: skip
    rates = CopyRates(
        overhead_seconds=1e-5,
        device_to_host_bytes_per_s=1e9,
        host_to_device_bytes_per_s=1e9,
        onednn=True,
    )
    FactsFile(here).add([asked, refused], rates)


def test_before_and_after_learning(capsys):
    assert cli.main(["facts"]) == 0
    assert "nothing is learned yet" in capsys.readouterr().out
    learn()
    assert cli.main(["facts", "--kernels"]) == 0
    out = capsys.readouterr().out
    assert "here, now" in out
    assert "1 asked, 1 refused" in out
    assert "2026-01-01 to 2026-01-02" in out
    assert "shipped, onednn-cpu: TensorFlow 2.21" in out
    (kernel,) = [line for line in out.splitlines() if "Conv2D 2x8x8x16" in line]
    assert all(figure in kernel for figure in ("16.0", "4.0", "2.000", "asked"))


def test_what_was_learned_can_be_forgotten(capsys):
    learn()
    assert cli.main(["facts", "--forget"]) == 0
    assert "1 files of facts removed" in capsys.readouterr().out
    assert cli.main(["facts"]) == 0
    assert "nothing is learned yet" in capsys.readouterr().out
