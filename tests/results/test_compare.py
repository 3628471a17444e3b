"""Two sets of results: what changed, beyond noise, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from memtrade.errors import MemtradeError
from memtrade.measure.host import Machine
from memtrade.measure.protocol import Runtime
from memtrade.measure.records import Record
from memtrade.results.compare import (
    changes_sheet,
    compare_results,
    judge,
    unlike_notes,
)
from memtrade.results.sheets import to_csv
from memtrade.results.tables import compare
from tests.results.conftest import MACHINE, MODEL_OPTIONS

MakeRecord = Callable[..., Record]
OTHER_MACHINE = msgspec.structs.replace(MACHINE, cpu_model="Another CPU")


@pytest.fixture
def timed(make_record: MakeRecord) -> Callable[..., Record]:
    """A record by its counted steps."""

    def make(steps: Sequence[float], **changes: object) -> Record:
        record = make_record("ome", **changes)
        assert record.measured is not None
        median = sorted(steps)[len(steps) // 2]
        measured = msgspec.structs.replace(
            record.measured, step_seconds=tuple(steps), median_seconds=median
        )
        return msgspec.structs.replace(record, measured=measured)

    return make


def verdicts(before: Record, after: Record) -> dict[str, str]:
    return {change.quantity: change.verdict for change in judge(before, after)}


def test_a_set_compared_with_itself_has_not_changed(make_record: MakeRecord) -> None:
    records = [make_record("original"), make_record("ome", peak_mb=700.0)]
    changes = compare_results(records, records)
    assert [pair.verdict for pair in changes.pairs] == ["same", "same"]
    assert not changes.worse
    sheet = changes_sheet(changes, before="a", after="b")
    assert sheet.rows == ()
    assert sheet.notes == (
        "nothing changed beyond noise",
        "2 trials: 0 worse, 0 better, 2 as before",
    )
    assert len(changes_sheet(changes, before="a", after="b", unchanged=True).rows) == 2


def test_pinned_peaks_are_compared_to_the_byte(make_record: MakeRecord) -> None:
    before = make_record("ome", peak_mb=700.0)
    assert verdicts(before, make_record("ome", peak_mb=700.000001))["peak"] == "worse"
    assert verdicts(before, make_record("ome", peak_mb=699.999999))["peak"] == "better"
    changes = compare_results([before], [make_record("ome", peak_mb=700.000001)])
    assert changes.worse
    [row] = changes_sheet(changes, before="a", after="b").rows
    assert "700.0 +1 bytes" in row


def test_dataflow_peaks_may_differ_by_their_spread(make_record: MakeRecord) -> None:
    def run(peak_mb: float) -> Record:  # its two steps' peaks differ by a byte
        return make_record("ome", peak_mb=peak_mb, spec={"order": "dataflow"})

    assert verdicts(run(700.0), run(700.000001))["peak"] == "same"
    assert verdicts(run(700.0), run(700.000002))["peak"] == "worse"


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([1.00] * 5, [1.04] * 5, "same"),  # within the tolerance
        ([1.00] * 5, [1.06] * 5, "worse"),
        ([1.06] * 5, [1.00] * 5, "better"),
        ([0.8, 0.9, 1.0, 1.1, 1.2], [0.9, 1.0, 1.2, 1.3, 1.4], "same"),  # within the noise
        ([1.0, 1.0, 1.0, 1.01, 9.0], [1.2, 1.2, 1.2, 1.2, 1.2], "worse"),  # one slow step
        ([1.0], [1.2], "worse"),
    ],
)
def test_times_count_beyond_noise(
    timed: Callable[..., Record], before: list[float], after: list[float], verdict: str
) -> None:
    assert verdicts(timed(before), timed(after))["time"] == verdict


def test_the_tolerance_can_be_set(timed: Callable[..., Record]) -> None:
    before, after = [timed([1.0] * 5)], [timed([1.2] * 5)]
    assert compare_results(before, after).worse
    assert not compare_results(before, after, tolerance=0.3).worse
    with pytest.raises(MemtradeError, match="the tolerance must be at least 0, not -1"):
        compare_results(before, after, tolerance=-1)


def test_a_trial_that_fails_now_is_worse(make_record: MakeRecord) -> None:
    ran = make_record("lms")
    failed = make_record("lms", peak_mb=None, status="out_of_memory")
    crashed = make_record("lms", peak_mb=None, status="crashed")
    assert verdicts(ran, failed) == {"status": "worse"}
    assert verdicts(failed, ran) == {"status": "better"}
    assert verdicts(failed, failed) == verdicts(failed, crashed) == {"status": "same"}
    [row] = changes_sheet(compare_results([ran], [failed]), before="a", after="b").rows
    assert "ok → out of memory" in row


def test_versions_and_options_at_their_default_do_not_matter(make_record: MakeRecord) -> None:
    newer = msgspec.structs.replace(MACHINE, memtrade_version="0.2.0", tensorflow_version="2.22.0")
    before = make_record("ome", peak_mb=700.0, spec={"strategy_options": {}})
    after = make_record(
        "ome",
        peak_mb=700.0,
        id="another",
        machine=newer,
        spec={"strategy_options": {"select": "hidable"}},
    )
    [pair] = compare_results([before], [after]).pairs
    assert pair.verdict == "same"


def test_other_trials_are_listed_and_not_matched(make_record: MakeRecord) -> None:
    small = make_record("lms", spec={"model_options": MODEL_OPTIONS | {"batch_size": 16}})
    changes = compare_results([make_record("ome"), make_record("lms")], [make_record("ome"), small])
    assert len(changes.pairs) == 1
    notes = changes_sheet(changes, before="old", after="new").notes
    assert any(note.startswith("only in old: lms on resnet-50, batch 32") for note in notes)
    assert any(note.startswith("only in new: lms on resnet-50, batch 16") for note in notes)
    with pytest.raises(MemtradeError, match="no trial in common"):
        compare_results([make_record("ome")], [small])


def test_what_only_one_set_has_takes_a_line_per_step(make_record: MakeRecord) -> None:
    small = {"model_options": MODEL_OPTIONS | {"batch_size": 16}}
    after = [
        make_record("ome"),
        make_record("lms"),
        make_record("lms", spec=small),
        make_record("checkpoints", spec=small),
    ]
    sheet = changes_sheet(compare_results([after[0]], after), before="old", after="new")
    assert [note for note in sheet.notes if note.startswith("only in")] == [
        "only in new: lms on resnet-50, batch 32, 224 × 224 pixels, sgd",
        "only in new: lms, checkpoints on resnet-50, batch 16, 224 × 224 pixels, sgd",
    ]


def test_the_newest_of_several_versions_counts(make_record: MakeRecord) -> None:
    old = make_record("ome", peak_mb=700.0)
    new = make_record("ome", peak_mb=500.0, created="2026-03-01T00:00:00+00:00")
    [pair] = compare_results([new, old], [new]).pairs
    assert pair.verdict == "same"


def test_unlike_machines_are_refused_unless_asked_for(make_record: MakeRecord) -> None:
    here = make_record("ome", peak_mb=700.0, step_seconds=2.0)
    there = make_record("ome", peak_mb=800.0, step_seconds=9.0, machine=OTHER_MACHINE)
    with pytest.raises(MemtradeError, match="not compare: A CPU, 2 cores and Another CPU, 2 cores"):
        compare_results([here], [there])
    changes = compare_results([here], [there], across_machines=True)
    [pair] = changes.pairs
    assert {change.quantity: change.verdict for change in pair.changes} == {
        "peak": "worse",
        "time": "same",
    }
    assert pair.where == "A CPU, 2 cores → Another CPU, 2 cores"
    assert "times are not judged" in changes_sheet(changes, before="a", after="b").notes[-1]


def test_each_machine_is_compared_with_itself(make_record: MakeRecord) -> None:
    def run(machine: Machine, step_seconds: float) -> Record:
        return make_record("ome", step_seconds=step_seconds, machine=machine)

    before = [run(MACHINE, 2.0), run(OTHER_MACHINE, 9.0)]
    after = [run(OTHER_MACHINE, 9.0), run(MACHINE, 3.0)]
    found = {
        pair.where: (pair.verdict, [change.verdict for change in pair.changes])
        for pair in compare_results(before, after).pairs
    }
    assert found == {
        "A CPU, 2 cores": ("worse", ["same", "worse"]),
        "Another CPU, 2 cores": ("same", ["same", "same"]),
    }


def test_a_step_that_brings_its_optimizer_says_so_once(make_record: MakeRecord) -> None:
    runs = [
        make_record(),
        make_record(spec={"optimizer": "its own", "memory_limit_bytes": 64 << 20}),
    ]
    rows = changes_sheet(compare_results(runs, runs), before="a", after="b", unchanged=True).rows
    assert [row[0].rpartition("pixels, ")[2] for row in rows] == [
        "sgd, arena of 7,254 MiB",
        "its own optimizer, arena of 64 MiB",
    ]


def test_times_beside_other_trials_are_not_judged(make_record: MakeRecord) -> None:
    alone = make_record("ome", step_seconds=2.0)
    beside = make_record("ome", step_seconds=9.0, jobs=2)
    [pair] = compare_results([alone], [beside]).pairs
    assert pair.verdict == "same"
    [pair] = compare_results([msgspec.structs.replace(alone, jobs=2)], [beside]).pairs
    assert pair.verdict == "worse"


def test_csv_has_the_noise_in_the_same_unit(timed: Callable[..., Record]) -> None:
    changes = compare_results([timed([1.0] * 5)], [timed([1.2] * 5)])
    text = to_csv([changes_sheet(changes, before="a", after="b")])
    header, peak, time = text.splitlines()
    assert header.startswith(
        "model,step,strategy,where,quantity,before,after,relative_change,noise"
    )
    assert ",peak,2880000000,2880000000,0.0,0,same," in peak
    assert ",time,1.0,1.2,0.19999999999999996,0.05,worse," in time


# What ran under other conditions.

RUNTIME = Runtime(
    tensorflow_version="2.21.0", device="CPU:0", limit_bytes=1 << 30, onednn=True,
    intra_op_threads=2, inter_op_threads=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "runtime", "warning"),
    [
        ({"cpu_features": ("avx", "avx2")}, {}, "CPU features (fewer → avx2)"),
        ({"memtrade_version": "0.1+g0123456"}, {}, "memtrade (0.1.0 → 0.1+g0123456)"),
        ({"settings": ("OMP_NUM_THREADS=1",)}, {}, "settings (none → OMP_NUM_THREADS=1)"),
        ({}, {"onednn": False}, "oneDNN (on → off)"),
        ({}, {"intra_op_threads": 1}, "threads (2 → 1)"),
    ],
)
def test_other_conditions_are_warned_of(
    make_record: MakeRecord, machine: dict[str, Any], runtime: dict[str, Any], warning: str
) -> None:
    known = msgspec.structs.replace(MACHINE, cpu_features=("avx",))
    before = make_record(machine=known, runtime=RUNTIME)
    after = make_record(
        machine=msgspec.structs.replace(known, **machine),
        runtime=msgspec.structs.replace(RUNTIME, **runtime),
    )
    notes = unlike_notes(compare_results([before], [after]))
    assert notes == [f"WARNING: {warning} differ in 1 of 1 trials: changes may be theirs"]
    assert unlike_notes(compare_results([before], [before])) == []
    (table,) = compare([before, msgspec.structs.replace(after, spec=make_record("ome").spec)])
    assert any(note.startswith("not all ran under the same conditions") for note in table.notes)


def test_what_an_older_record_does_not_know_is_no_difference(make_record: MakeRecord) -> None:
    known = msgspec.structs.replace(MACHINE, cpu_features=("avx",), settings=("A=1",))
    newer = make_record(machine=known, runtime=RUNTIME)
    assert unlike_notes(compare_results([make_record()], [newer])) == []
