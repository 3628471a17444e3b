"""The tables over records: what is measured, predicted and published keeps to its columns."""

import msgspec
import pandas as pd
import pytest

from memtrade.errors import MemtradeError
from memtrade.papers.gpipe_runs import published_sheet
from memtrade.papers.published import load_published
from memtrade.pipeline.design.predict import StageMemory
from memtrade.pipeline.results.tables import device_sheet, schedules_sheet
from memtrade.results.sheets import NONE, Sheet
from tests.pipeline.records import record

MIB = 1 << 20


def cells(sheet: Sheet, row: int) -> dict[str, str]:
    """A row by its columns, each named in full: a bare "predicted" stands under the group's."""
    group, found = "", {}
    for name, cell in zip(sheet.columns, sheet.rows[row], strict=True):
        head, colon, kind = name.rpartition(": ")
        group = head if colon else group
        found[f"{group}: {kind}" if colon or kind in ("measured", "predicted") else name] = cell
    return found


def test_schedules_stand_side_by_side_largest_first():
    one_forward = record(partitions=2, micro_batches=4, schedule="1f1b", activation_mib=4)
    gpipe = record(partitions=2, micro_batches=4, activation_mib=8)
    sheet = schedules_sheet([one_forward, gpipe], command="memtrade pipeline table runs")
    first, second = cells(sheet, 0), cells(sheet, 1)
    assert (first["schedule"], second["schedule"]) == ("gpipe", "1f1b")
    assert first["total MiB: measured"] == "22.0"  # two stages of 3 + 8
    assert first["largest stage MiB: measured"] == "11.0"
    assert second["activation MiB: measured"] == "8.0"
    predicted = gpipe.predicted.peak_bytes / MIB
    assert first["total MiB: predicted"] == f"{predicted:,.1f}"
    # Fill and drain are one clock each of five, forward and backward, whatever the schedule.
    assert first["bubble: by clocks"] == second["bubble: by clocks"] == "0.200"
    assert first["bubble: measured"] == "0.250"
    assert "memtrade pipeline table runs" in sheet.to_markdown()


def test_about_stands_before_what_is_about_and_old_records_do_not_say():
    known = record(partitions=2, micro_batches=4)
    stages = [msgspec.to_builtins(stage) for stage in known.predicted.stages]
    for stage in stages:
        del stage["bound"]
    old = msgspec.structs.replace(
        known,
        predicted=msgspec.structs.replace(
            known.predicted, stages=msgspec.convert(stages, tuple[StageMemory, ...])
        ),
    )
    for each, sign in ((old, "≈ "), (known, "")):
        sheet, stage = schedules_sheet([each]), device_sheet(each)
        row = cells(sheet, 0)
        said = each.predicted
        assert row["total MiB: predicted"] == sign + f"{said.peak_bytes / MIB:,.1f}"
        assert row["activation MiB: predicted"] == sign + f"{said.activation_bytes / MIB:,.1f}"
        most = max(one.peak_bytes for one in said.stages)
        assert row["largest stage MiB: predicted"] == sign + f"{most / MIB:,.1f}"
        column = stage.columns.index("predicted MiB")
        assert all(line[column].startswith("≈ ") is bool(sign) for line in stage.rows)
        assert any(note.startswith("≈") for note in stage.notes) is bool(sign)
        assert not row["total MiB: measured"].startswith("≈")


def test_what_ran_out_of_memory_has_no_measured_figures():
    sheet = schedules_sheet([record(partitions=2, micro_batches=2, activation_mib=None)])
    row = cells(sheet, 0)
    assert row["status"] == "out of memory"
    assert row["total MiB: measured"] == row["step s: measured"] == NONE
    assert row["total MiB: predicted"] != NONE
    assert sheet.weak == {0}


def line(implementation, strategy, k, m, activation_mib, speed):
    return {
        "implementation": implementation,
        "strategy": strategy,
        "partitions": k,
        "micro_batches": m,
        "peak_activation_bytes": activation_mib * MIB,
        "samples_per_second": speed,
    }


def test_each_published_run_stands_beside_the_trial_of_its_settings():
    ours = [
        record(partitions=1, micro_batches=1, activation_mib=20),
        record(partitions=2, micro_batches=4, checkpoint="always", activation_mib=3, seconds=4.0),
        record(partitions=2, micro_batches=4, checkpoint="except_last", activation_mib=4),
        record(partitions=2, micro_batches=4, schedule="1f1b", checkpoint="always"),
    ]
    published = pd.DataFrame(
        [
            line("self", "original", 1, 1, 400, 100.0),
            line("self", "checkpoints", 2, 4, 100, 50.0),
            line("torchgpipe", "original", 1, 1, 800, 100.0),
            line("torchgpipe", "checkpoints", 2, 4, 100, 25.0),
            line("torchgpipe", "original", 4, 4, 100, 25.0),
        ]
    )
    sheet = published_sheet(ours, published)
    own = cells(sheet, 1)
    assert (own["implementation"], own["checkpoint"]) == ("self", "always")
    assert own["activation MiB: published"] == "100"
    assert own["activation MiB: measured"] == "6.0"
    over = "activation over K=1, M=1, never"
    assert own[f"{over}: published"] == "0.250"
    assert own[f"{over}: measured"] == "0.300"
    ratio = ours[1].predicted.activation_bytes / ours[0].predicted.activation_bytes
    assert own[f"{over}: predicted"] == f"{ratio:.3f}"
    assert own["samples/s over K=1, M=1, never: published"] == "0.500"
    assert own["samples/s over K=1, M=1, never: measured"] == "0.250"
    theirs = cells(sheet, 3)
    assert theirs["checkpoint"] == "except_last"
    assert theirs[f"{over}: published"] == "0.125"  # over torchgpipe's own
    assert theirs[f"{over}: measured"] == "0.400"
    missing = cells(sheet, 4)
    assert missing[f"{over}: published"] == "0.125"
    assert missing[f"{over}: measured"] == missing[f"{over}: predicted"] == NONE
    assert sheet.weak == {4}


def test_all_84_published_runs_are_shown():
    ours = [record(partitions=1, micro_batches=1)]
    assert len(published_sheet(ours, load_published("gpipe_gpt2_runs")).rows) == 84


def test_there_must_be_something_to_compare_with():
    with pytest.raises(MemtradeError, match="no record of K = 1, M = 1"):
        published_sheet([record(partitions=2, micro_batches=2)], load_published("gpipe_gpt2_runs"))


def test_records_of_several_steps_are_not_mixed():
    ours = [record(partitions=1, micro_batches=1, batch_size=size) for size in (8, 16)]
    with pytest.raises(MemtradeError, match="several steps"):
        published_sheet(ours, load_published("gpipe_gpt2_runs"))
