"""Peaks of steps as they are, whose loops run as loops, against the allocator's own."""

from __future__ import annotations

import pytest

from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import run_child


@pytest.mark.parametrize(("step", "batch_size"), [("lstm", 16), ("mapped", 96)])
def test_a_step_with_loops_takes_what_is_told(step: str, batch_size: int) -> None:
    """Of an LSTM, how many iterations' weight gradients wait to be added up differs from step to
    step. A map's lists hold its rows, and zeros for each: so many that the holes between
    variables, which differ from process to process, are small beside them."""
    spec = TrialSpec(
        model="target",
        model_options={"target": f"tests.measure.loops:{step}", "batch_size": batch_size},
        strategy="original",
        memory_limit_bytes=1 << 30,
        steps=20,
    )
    outcome = run_child(spec, timeout_seconds=120)
    measured, told = outcome.measured, outcome.predicted
    assert measured is not None, outcome.reason
    assert told is not None
    assert told.bound == "≈"
    assert 0.98 * told.least_bytes <= measured.peak_bytes
    assert measured.peak_bytes <= 1.02 * max(told.peak_bytes, told.abreast_bytes)
