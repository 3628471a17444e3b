"""Figures: one source each, ratios within it, and places named where they differ."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from memtrade.measure.records import Record
from memtrade.papers.thesis import figures_beside
from memtrade.results.figures import Figure, figures_frame, make_figures, places
from memtrade.results.machines import hardware, machine_labels
from memtrade.simulate.predict import Predicted
from tests.results.conftest import MACHINE, MODEL_OPTIONS

MakeRecord = Callable[..., Record]
PREDICTED = Predicted(
    device_profile="arena",
    peak_bytes=700_000_000,
    persistent_bytes=230_000_000,
    memory_cost_bytes=470_000_000,
    host_bytes=0,
    fits=True,
    step_seconds=10.0,
)


def figure_of(figures: list[Figure], source: str, strategy: str, layers: int = 50) -> Figure:
    [found] = [
        figure
        for figure in figures
        if (figure.source, figure.strategy, figure.layers) == (source, strategy, layers)
        and figure.batch_size == 32
    ]
    return found


def test_sources_stand_beside_each_other_and_relate_to_their_own_original(
    make_record: MakeRecord,
) -> None:
    records = [
        make_record("original", peak_mb=2800.0, step_seconds=8.0),
        make_record("ome", peak_mb=700.0, step_seconds=10.0, predicted=PREDICTED),
    ]
    figures = figures_beside(records)
    measured = figure_of(figures, "measured", "ome")
    assert (measured.peak_bytes, measured.relative_peak) == (700_000_000, 0.25)
    assert measured.relative_time == 1.25
    published = figure_of(figures, "published", "ome")
    original = figure_of(figures, "published", "original")
    assert published.peak_bytes is not None
    assert original.peak_bytes is not None
    assert published.relative_peak == published.peak_bytes / original.peak_bytes
    # Nothing was predicted for `original`, and a prediction is not related to what was measured.
    predicted = figure_of(figures, "predicted", "ome")
    assert (predicted.peak_bytes, predicted.relative_peak) == (700_000_000, None)
    assert {figure.source for figure in make_figures(records)} == {
        "measured",
        "predicted",
    }


def test_published_out_of_memory_has_a_status_and_no_figures() -> None:
    figure = figure_of(figures_beside([]), "published", "original", layers=200)
    assert figure.status == "out_of_memory"
    assert figure.peak_bytes is figure.step_seconds is None


def test_the_newer_record_of_a_trial_counts(make_record: MakeRecord) -> None:
    newer = make_record("ome", peak_mb=600.0, created="2026-02-01T00:00:00+00:00")
    older = make_record("ome", peak_mb=700.0, created="2026-01-01T00:00:00+00:00")
    for records in ([newer, older], [older, newer]):
        [figure] = make_figures(records)
        assert figure.peak_bytes == 600_000_000


def test_places_name_what_differs_and_nothing_else(make_record: MakeRecord) -> None:
    here = make_record()
    assert places([here, make_record("ome")]) == ["", ""]
    assert places([]) == []
    other = make_record(machine=msgspec.structs.replace(MACHINE, cpu_model="Another CPU"))
    assert places([here, other]) == ["A CPU, 2 cores", "Another CPU, 2 cores"]
    gpu = make_record(spec={"device": "gpu:0", "memory_limit_bytes": 16 << 30})
    assert places([here, gpu]) == ["arena of 7,254 MiB", "gpu:0 of 16,384 MiB"]
    adam = make_record(spec={"optimizer": "adam"})
    assert places([here, adam]) == ["sgd", "adam"]


def test_two_machines_keep_their_own_figures_and_ratios(make_record: MakeRecord) -> None:
    other = msgspec.structs.replace(MACHINE, cpu_model="Another CPU")
    records = [
        make_record("original", step_seconds=8.0),
        make_record("ome", step_seconds=10.0),
        make_record("original", step_seconds=2.0, machine=other),
        make_record("ome", step_seconds=6.0, machine=other),
    ]
    ratios = {
        figure.where: figure.relative_time
        for figure in make_figures(records)
        if figure.strategy == "ome"
    }
    assert ratios == {"A CPU, 2 cores": 1.25, "Another CPU, 2 cores": 3.0}


def test_machines_are_alike_whatever_their_software_says() -> None:
    newer = msgspec.structs.replace(
        MACHINE,
        platform="Linux 7.0 x86_64",
        tensorflow_version="2.22.0",
        memory_bytes=MACHINE.memory_bytes - 4096,
    )
    assert hardware(newer) == hardware(MACHINE)
    larger = msgspec.structs.replace(MACHINE, memory_bytes=64 << 30)
    labels = machine_labels([MACHINE, larger])
    assert sorted(labels.values()) == ["A CPU, 2 cores, 15 GiB", "A CPU, 2 cores, 64 GiB"]


def test_conditions_say_what_is_not_the_default(make_record: MakeRecord) -> None:
    small = make_record(spec={"model_options": MODEL_OPTIONS | {"image_size": 64}})
    [figure] = make_figures([small])
    assert figure.conditions == "image_size=64"
    [figure] = make_figures([make_record()])
    assert figure.conditions == ""


def test_the_frame_has_a_row_per_figure_and_no_zero_for_what_is_missing(
    make_record: MakeRecord,
) -> None:
    failed = make_record("lms", peak_mb=None, status="out_of_memory")
    frame = figures_frame(make_figures([make_record(), failed]))
    assert frame["strategy"].tolist() == ["original", "lms"]
    assert frame["peak_bytes"].isna().tolist() == [False, True]
    assert str(frame["peak_bytes"].dtype) == "Int64"
