"""The largest batches: searches beside the thesis's, with the figures of their best trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from memtrade.measure.max_batch import MaxBatchRecord, Tried
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.records import SCHEMA_VERSION, Record
from memtrade.papers.thesis import max_batches_beside
from memtrade.results.figures import Figure
from memtrade.results.max_batches import max_batch_sheet
from tests.results.conftest import MACHINE, MODEL_OPTIONS

MakeRecord = Callable[..., Record]


def make_search(
    strategy: str, batch_size: int, *, best: Record | None = None, **changes: Any
) -> MaxBatchRecord:
    """A search that ended at `batch_size`, of which `best` is the trial."""
    options = {name: value for name, value in MODEL_OPTIONS.items() if name != "batch_size"}
    spec = TrialSpec(model_options=options, strategy=strategy, memory_limit_bytes=7254 << 20)
    search = MaxBatchRecord(
        schema_version=SCHEMA_VERSION,
        id=f"id of {strategy}",
        created="2026-01-01T00:00:00+00:00",
        command=f"memtrade max-batch --strategy {strategy}",
        model="resnet-50",
        spec=spec,
        step=1,
        most=None,
        batch_size=batch_size,
        failing_batch_size=batch_size + 1,
        bound="device memory",
        reason="OOM",
        predicted_batch_size=None,
        predicted_bound=None,
        trials=(Tried(batch_size, best.id, "ok"),) if best else (),
        machine=MACHINE,
    )
    return msgspec.structs.replace(search, **changes)


def by_source(batches: list[Figure], source: str) -> dict[str, Figure]:
    return {batch.variant: batch for batch in batches if batch.source == source}


def test_a_search_has_the_figures_of_its_best_trial(make_record: MakeRecord) -> None:
    best = make_record("ome", peak_mb=7500.0, step_seconds=30.0)
    other = make_record("lms", peak_mb=1.0)
    search = make_search("ome", 300, best=best, predicted_batch_size=298)
    batches = max_batches_beside([search], [other, best])
    measured = by_source(batches, "measured")["ome"]
    assert (measured.batch_size, measured.peak_bytes) == (300, 7_500_000_000)
    assert measured.step_seconds == 30.0
    # What was predicted is the batch alone: nothing was predicted of that step's peak.
    predicted = by_source(batches, "predicted")["ome"]
    assert (predicted.batch_size, predicted.peak_bytes) == (298, None)


def test_ratios_relate_to_the_original_of_the_same_source() -> None:
    batches = max_batches_beside([make_search("original", 80), make_search("lms", 200)], [])
    assert by_source(batches, "measured")["lms"].relative_batch == 2.5
    assert by_source(batches, "published")["lms"].relative_batch == pytest.approx(111 / 87)


def test_the_newer_search_counts() -> None:
    newer = make_search("lms", 200, created="2026-02-01T00:00:00+00:00")
    older = make_search("lms", 100)
    for searches in ([newer, older], [older, newer]):
        assert by_source(max_batches_beside(searches, []), "measured")["lms"].batch_size == 200


def test_the_table_has_published_beside_measured_and_says_what_bounds() -> None:
    searches = [
        make_search("original", 85),
        make_search("lms", 180, bound="host memory"),
        make_search("optimal", 500),
    ]
    sheet = max_batch_sheet(max_batches_beside(searches, []))
    assert not sheet.sections
    rows = {row[0]: dict(zip(sheet.names, row, strict=True)) for row in sheet.rows}
    assert rows["lms"]["largest batch published"] == "111"
    assert rows["lms"]["largest batch measured"] == "180"
    assert rows["checkpoints"]["largest batch measured"] == "–"
    assert rows["optimal"]["largest batch published"] == "–"
    assert rows["optimal"]["relative batch measured"] == "5.88"
    assert "bound by host memory: lms" in sheet.notes
    assert sheet.title == "Largest batch of resnet-50"


def test_other_models_get_a_section_of_their_own() -> None:
    batches = max_batches_beside([make_search("lms", 40, model="resnet-101")], [])
    sheet = max_batch_sheet(batches)
    assert sorted(set(sheet.sections)) == ["resnet-101", "resnet-50"]
