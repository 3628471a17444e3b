"""Records to read: made up, but of the form that trials write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from memtrade.measure.host import Machine
from memtrade.measure.protocol import Measured, PlanSummary, StepDone, TrialSpec
from memtrade.measure.records import SCHEMA_VERSION, Record, trial_id

MACHINE = Machine(
    memtrade_version="0.1.0",
    tensorflow_version="2.21.0",
    python_version="3.11.7",
    platform="Linux 6.1 x86_64",
    cpu_model="A CPU",
    cores=2,
    memory_bytes=16_000_000_000,
)
MODEL_OPTIONS = {
    "batch_size": 32,
    "seed": 0,
    "image_size": 224,
    "data_format": "NHWC",
    "num_classes": 1000,
    "layers": 50,
    "stride_on": "3x3",
}
MakeRecord = Callable[..., Record]


@pytest.fixture(scope="session")
def make_record() -> MakeRecord:
    """A record that ran, by its peak and step time; `changes` of the spec and of the record."""

    def make(
        strategy: str = "original",
        *,
        peak_mb: float | None = 2880.0,
        step_seconds: float = 7.0,
        spec: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Record:
        trial = TrialSpec(
            model_options=MODEL_OPTIONS,
            strategy=strategy,
            learning_rate=0.01,
            memory_limit_bytes=7254 << 20,
        )
        trial = msgspec.structs.replace(trial, **(spec or {}))
        measured = None
        if peak_mb is not None:
            peak_bytes = round(peak_mb * 1e6)
            steps = [StepDone(9.0, peak_bytes - 1, 6.9), StepDone(step_seconds, peak_bytes, 6.8)]
            measured = Measured.of(
                steps,
                warmup=1,
                persistent_bytes=230_000_000,
                host_bytes=50_000_000,
                trace_seconds=1.0,
                plan_seconds=0.1,
                rewrite_seconds=0.2,
            )
        record = Record(
            schema_version=SCHEMA_VERSION,
            id=trial_id(trial, MACHINE),
            created="2026-01-01T00:00:00+00:00",
            command="memtrade run --layers 50",
            model="resnet-50",
            spec=trial,
            status="ok",
            measured=measured,
            plan=PlanSummary(
                kept=17,
                recomputed=142,
                swapped=3,
                kept_bytes=700,
                recomputed_bytes=2000,
                swapped_bytes=100,
                clones=500,
                actions=4000,
            ),
            machine=MACHINE,
        )
        return msgspec.structs.replace(record, **changes)

    return make
