"""What is said of a machine."""

from __future__ import annotations

import pytest

from memtrade.measure import host


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
