"""The tables: ratios to the original, failures with their reason, one comparison per step."""

from __future__ import annotations

import io
from collections.abc import Callable

import msgspec
import pandas as pd
import pytest
from rich.console import Console

from memtrade.measure.records import Record
from memtrade.results.sheets import to_csv
from memtrade.results.tables import compare
from memtrade.simulate.predict import Predicted

MakeRecord = Callable[..., Record]


def cells(records: list[Record]) -> list[dict[str, str]]:
    [comparison] = compare(records)
    return [dict(zip(comparison.names, row, strict=True)) for row in comparison.rows]


def test_ratios_relate_to_the_original(make_record: MakeRecord) -> None:
    records = [
        make_record("ome", peak_mb=720.0, step_seconds=10.5),
        make_record("original", peak_mb=2880.0, step_seconds=7.0),
    ]
    original, ome = cells(records)
    assert original == {
        "strategy": "original",
        "status": "ok",
        "peak MB": "2,880.0",
        "predicted peak MB": "-",
        "error %": "-",
        "memory cost MB": "2,650.0",
        "host MB": "50.0",
        "step s": "7.00",
        "relative peak": "1.00",
        "relative time": "1.00",
        "kept / recomputed / swapped": "17 / 142 / 3",
    }
    assert (ome["relative peak"], ome["relative time"]) == ("0.25", "1.50")


def test_without_an_original_that_ran_there_are_no_ratios(make_record: MakeRecord) -> None:
    lms = make_record("lms", peak_mb=700.0)
    failed = make_record(peak_mb=None, status="out_of_memory", reason="OOM when allocating")
    for records, note in (
        ([lms], "original is not among these trials, so"),
        ([lms, failed], "original: out of memory, so"),
    ):
        [comparison] = compare(records)
        assert comparison.rows[-1][8:10] == ("-", "-")
        assert any(line.startswith(note) for line in comparison.notes)


def test_a_failed_row_shows_its_status_and_a_short_reason(make_record: MakeRecord) -> None:
    reason = "OOM when allocating on /job:localhost/device:CPU:0 by allocator bfc\n" + "x" * 500
    failed = make_record("lms", peak_mb=None, plan=None, status="out_of_host_memory", reason=reason)
    [comparison] = compare([make_record(), failed])
    row = comparison.rows[1]
    assert row == ("lms", "out of host memory", *["-"] * 9)
    [note] = [line for line in comparison.notes if line.startswith("lms: ")]
    assert note.startswith("lms: out of host memory: OOM when allocating xxx")
    assert len(note) < 200


@pytest.mark.parametrize(
    "change",
    [
        {"device": "gpu:0"},
        {"memory_limit_bytes": 1 << 30},
        {"optimizer": "adam"},
        {"model_options": {"batch_size": 16, "layers": 50}},
    ],
)
def test_steps_that_differ_are_not_compared(
    make_record: MakeRecord, change: dict[str, object]
) -> None:
    first, second = compare([make_record(), make_record("ome", spec=change)])
    assert len(first.rows) == len(second.rows) == 1
    assert second.rows[0][8] == "-"


def test_the_title_says_what_was_run(make_record: MakeRecord) -> None:
    [comparison] = compare([make_record()])
    assert comparison.title == ("resnet-50, batch 32, 224 × 224 pixels, sgd, arena of 7,254 MiB")
    assert "A CPU, 2 cores, TensorFlow 2.21.0" in comparison.notes[0]


def test_options_that_are_not_the_default_are_named(make_record: MakeRecord) -> None:
    record = make_record("lms", spec={"strategy_options": {"lb": 3, "n_tensors": -1}})
    assert cells([record])[0]["strategy"] == "lms (lb=3)"
    record = make_record("lms", spec={"order": "dataflow"})
    assert cells([record])[0]["strategy"] == "lms (dataflow)"


def printed(records: list[Record], *, width: int) -> str:
    [comparison] = compare(records)
    stream = io.StringIO()
    Console(file=stream, width=width, markup=False).print(comparison.to_rich(width=width))
    return stream.getvalue()


def test_the_terminal_table_has_every_cell_and_is_no_markup(make_record: MakeRecord) -> None:
    failed = make_record("lms", peak_mb=None, status="crashed", reason="[bold]not markup[/bold]")
    text = printed([make_record(), failed], width=160)
    for expected in ("2,880.0", "2,650.0", "17 / 142 / 3", "[bold]not markup[/bold]"):
        assert expected in text


def test_the_predicted_peak_stands_beside_the_measured_one(make_record: MakeRecord) -> None:
    foreseen = make_record("ome", peak_mb=1000.0, predicted=predicted(peak_mb=990.0))
    exact = make_record("lms", peak_mb=1000.0, predicted=predicted(peak_mb=999.99999))
    unfit = make_record(peak_mb=None, status="out_of_memory", predicted=predicted(9000, fits=False))
    rows = cells([unfit, exact, foreseen])
    assert [row["peak MB"] for row in rows] == ["-", "1,000.0", "1,000.0"]
    assert [row["predicted peak MB"] for row in rows] == ["9,000.0", "1,000.0", "990.0"]
    assert [row["error %"] for row in rows] == ["-", "+0.00", "-1.00"]
    [comparison] = compare([unfit, exact, foreseen])
    [note] = [line for line in comparison.notes if line.startswith("predicted peak MB: ")]
    assert note.endswith("beyond the limit: original")
    frame = pd.read_csv(io.StringIO(to_csv(compare([foreseen]))))
    assert frame["predicted_peak_error"].tolist() == [pytest.approx(-0.01)]


@pytest.mark.parametrize(("peak_mb", "error"), [(600, "within"), (400, "+25.00"), (1000, "-10.00")])
def test_of_a_range_the_error_is_that_of_its_nearer_end(
    make_record: MakeRecord, peak_mb: float, error: str
) -> None:
    told = msgspec.structs.replace(
        predicted(peak_mb=550), least_bytes=500_000_000, abreast_bytes=900_000_000
    )
    [comparison] = compare([make_record(peak_mb=peak_mb, predicted=told)])
    assert comparison.rows[0][3:5] == ("500.0 to 900.0", error)
    assert any("(of a range, its nearer end)" in line for line in comparison.notes)


def predicted(peak_mb: float, *, fits: bool = True) -> Predicted:
    return Predicted(
        device_profile="arena",
        peak_bytes=round(peak_mb * 1e6),
        persistent_bytes=230_000_000,
        memory_cost_bytes=round(peak_mb * 1e6) - 230_000_000,
        host_bytes=0,
        fits=fits,
        step_seconds=1.0,
        stall_seconds=0.0,
    )


def test_a_narrow_terminal_leaves_columns_out_and_says_so(make_record: MakeRecord) -> None:
    records = [make_record(), make_record("checkpoints", peak_mb=912.3)]
    wide, narrow = printed(records, width=120), printed(records, width=80)
    assert "17 / 142 / 3" in wide
    assert "a wider terminal" not in wide
    assert "17 / 142 / 3" not in narrow
    assert "a wider terminal also shows: kept / recomputed / swapped" in narrow


def test_80_columns_cut_no_word(make_record: MakeRecord) -> None:
    text = printed([make_record(), make_record("checkpoints", peak_mb=912.3)], width=80)
    for expected in ("checkpoints", "2,880.0", "relative", "predicted", "status", "912.3"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 80


def test_markdown_has_the_command_beside_it(make_record: MakeRecord) -> None:
    [comparison] = compare([make_record(), make_record("ome", peak_mb=720.0)])
    lines = comparison.to_markdown().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert {line.count("|") for line in table} == {len(comparison.columns) + 1}
    assert lines.count("    memtrade run --layers 50") == 1


def test_csv_is_the_frame_with_the_ratios(make_record: MakeRecord) -> None:
    failed = make_record("lms", peak_mb=None, status="timeout", reason="a, b")
    text = to_csv(compare([make_record(), failed, make_record("ome", peak_mb=720.0)]))
    frame = pd.read_csv(io.StringIO(text))
    assert frame["strategy"].tolist() == ["original", "lms", "ome"]
    assert frame["relative_peak"].tolist()[2] == 0.25
    assert frame["reason"].tolist()[1] == "a, b"
    assert frame["peak_bytes"].isna().tolist() == [False, True, False]


def test_times_measured_beside_other_trials_are_marked(make_record: MakeRecord) -> None:
    records = [make_record("original"), make_record("lms", jobs=3), make_record("ome")]
    original, lms, ome = cells(records)
    assert (original["step s"], original["relative time"]) == ("7.00", "1.00")
    assert (lms["step s"], lms["relative time"]) == ("7.00†", "1.00†")
    assert lms["relative peak"] == "1.00"  # peaks are not touched
    assert (ome["step s"], ome["relative time"]) == ("7.00", "1.00")
    [comparison] = compare(records)
    assert any("† measured beside other trials, up to 3" in note for note in comparison.notes)
    [comparison] = compare([make_record("original")])
    assert not any("†" in note for note in comparison.notes)


def test_a_ratio_to_a_disturbed_original_is_marked(make_record: MakeRecord) -> None:
    _, ome = cells([make_record("original", jobs=2), make_record("ome")])
    assert (ome["step s"], ome["relative time"]) == ("7.00", "1.00†")
