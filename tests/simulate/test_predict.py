"""Predictions: the figures of a trial, from the simulators, with the limit's verdict."""

from __future__ import annotations

import msgspec
import pytest

from memtrade.plan import Plan
from memtrade.simulate.devices import Device, load_device
from memtrade.simulate.memory import simulate_memory
from memtrade.simulate.predict import Predictor
from memtrade.simulate.timeline import simulate_time
from memtrade.strategies import PLANNED, make_options
from tests.graphs import chain

MIB = 1 << 20
GRAPH = chain(8, size=4 * MIB)


def plan(strategy: str) -> Plan:
    return PLANNED[strategy].plan(GRAPH, make_options(strategy), "pinned")


@pytest.mark.parametrize("strategy", ["original", "checkpoints", "lms"])
def test_the_figures_are_the_simulators(strategy: str) -> None:
    made = plan(strategy)
    predicted = Predictor(GRAPH, load_device("arena")).predict(made, limit_bytes=512 * MIB)
    memory = simulate_memory(GRAPH, made, limit_bytes=512 * MIB)
    timeline = simulate_time(GRAPH, made, load_device("arena"))
    assert predicted.fits
    assert predicted.device_profile == "arena"
    assert predicted.peak_bytes == memory.peak_bytes
    assert predicted.persistent_bytes == memory.persistent_bytes
    assert predicted.memory_cost_bytes == memory.peak_bytes - memory.persistent_bytes
    assert predicted.host_bytes == memory.host_peak_bytes
    assert predicted.step_seconds == timeline.step_seconds
    assert (predicted.host_bytes > 0) == (strategy == "lms")


def test_a_step_that_does_not_fit_says_what_it_would_take() -> None:
    predictor = Predictor(GRAPH, load_device("arena"))
    roomy = predictor.predict(plan("original"), limit_bytes=512 * MIB)
    tight = predictor.predict(plan("original"), limit_bytes=roomy.peak_bytes // 2)
    assert not tight.fits
    assert msgspec.structs.replace(tight, fits=True) == roomy


def slow_link() -> Device:
    gpu = load_device("gtx-1070")
    return msgspec.structs.replace(
        gpu, host_to_device_bytes_per_s=1e8, device_to_host_bytes_per_s=1e8
    )


def test_an_unknown_gpu_has_a_peak_without_times() -> None:
    unknown = Predictor(GRAPH, None).predict(plan("lms"), limit_bytes=512 * MIB)
    assert (unknown.device_profile, unknown.step_seconds, unknown.stall_seconds) == (None,) * 3
    late = Predictor(GRAPH, slow_link()).predict(plan("lms"), limit_bytes=512 * MIB)
    assert late.stall_seconds is not None
    assert late.stall_seconds > 0
    assert unknown.peak_bytes < late.peak_bytes  # copies that take no time hold nothing up
