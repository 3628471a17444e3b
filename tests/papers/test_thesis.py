"""The thesis's tables: published beside measured beside predicted, and only the thesis's steps."""

from __future__ import annotations

import io
from collections.abc import Callable

import msgspec
import pandas as pd

from memtrade.measure.records import Record
from memtrade.papers.thesis import thesis_sheets
from memtrade.results.sheets import Sheet, to_csv
from tests.results.conftest import MACHINE, MODEL_OPTIONS
from tests.results.test_figures import PREDICTED

MakeRecord = Callable[..., Record]


def resnet_32(records: list[Record]) -> Sheet:
    return next(sheet for sheet in thesis_sheets(records) if sheet.name == "resnet-32")


def cells(sheet: Sheet, section: str, label: str) -> dict[tuple[str, str], str]:
    [found] = [rows for title, rows in sheet.blocks if title == section]
    [row] = [row for _, row in found if row[0] == label]
    return dict(zip(sheet.headings, row, strict=True))


def test_published_measured_and_predicted_share_a_row(make_record: MakeRecord) -> None:
    sheet = resnet_32(
        [
            make_record("original", peak_mb=2800.0, step_seconds=8.0),
            make_record("ome", peak_mb=700.0, step_seconds=10.0, predicted=PREDICTED),
        ]
    )
    row = cells(sheet, "ome", "50")
    assert row["peak MB", "published"] == "1,230.8*"  # its source disagrees with its own log
    assert row["peak MB", "measured"] == "700.0"
    assert row["peak MB", "predicted"] == "700.0"
    assert row["host MB", "published"] == "3,860"
    assert row["step s", "published"] == "0.600"
    assert row["step s", "measured"] == "10.00"
    assert row["relative peak", "published"] == "0.41"
    assert row["relative peak", "measured"] == "0.25"
    assert row["relative time", "measured"] == "1.25"
    assert any(note.startswith("measured: A CPU, 2 cores, arena of 7,254") for note in sheet.notes)
    assert "predicted: device profile arena" in sheet.notes


def test_out_of_memory_is_shown_as_such(make_record: MakeRecord) -> None:
    options = MODEL_OPTIONS | {"layers": 200}
    failed = make_record(
        "original",
        peak_mb=None,
        status="out_of_memory",
        model="resnet-200",
        spec={"model_options": options},
    )
    sheet = resnet_32([failed])
    row = cells(sheet, "original", "200")
    assert row["peak MB", "published"] == row["peak MB", "measured"] == "OOM"
    assert row["step s", "published"] == "–"
    assert "OOM: out of memory" in sheet.notes
    [rows] = [rows for title, rows in sheet.blocks if title == "original"]
    assert [row[0] for position, row in rows if position in sheet.weak] == ["200"]


def test_two_machines_are_labelled(make_record: MakeRecord) -> None:
    other = msgspec.structs.replace(MACHINE, cpu_model="Another CPU")
    sheet = resnet_32(
        [make_record("lms", peak_mb=700.0), make_record("lms", peak_mb=800.0, machine=other)]
    )
    here = cells(sheet, "lms, A CPU, 2 cores", "50")
    there = cells(sheet, "lms, Another CPU, 2 cores", "50")
    assert (here["peak MB", "measured"], there["peak MB", "measured"]) == ("700.0", "800.0")
    # What is published stands beside either.
    assert here["peak MB", "published"] == there["peak MB", "published"] == "2,764.5*"


def test_other_steps_and_options_stay_apart(make_record: MakeRecord) -> None:
    small = make_record("ome", spec={"model_options": MODEL_OPTIONS | {"image_size": 64}})
    odd = make_record("ome", spec={"model_options": MODEL_OPTIONS | {"batch_size": 16}})
    assert {name for _, name in resnet_32([small, odd]).headings[1:]} == {"published"}
    sheet = resnet_32([make_record("ome", peak_mb=500.0, spec={"order": "dataflow"})])
    assert [title for title, _ in sheet.blocks][-2:] == ["ome", "ome (dataflow)"]
    assert cells(sheet, "ome (dataflow)", "50")["peak MB", "published"] == "–"


def test_inception_has_a_row_per_strategy_and_the_slips_in_full() -> None:
    sheets = {sheet.name: sheet for sheet in thesis_sheets([])}
    inception = sheets["inception-v4"]
    assert not inception.sections
    assert [row[0] for row in inception.rows] == ["original", "checkpoints", "lms", "ome"]
    slips = [note for note in inception.notes if note.startswith("* ")]
    assert len(slips) == 4
    assert "are swapped against the log" in slips[0]


def test_the_largest_batches_are_the_thesis_s() -> None:
    sheets = {sheet.name: sheet for sheet in thesis_sheets([])}
    assert not sheets["max-batch"].sections
    assert {row[0]: row[1] for row in sheets["max-batch"].rows} == {
        "original": "87",
        "checkpoints": "212",
        "lms": "111",
        "ome": "214",
    }


def test_the_frame_says_where_each_figure_is_from(make_record: MakeRecord) -> None:
    text = to_csv(thesis_sheets([make_record("ome", peak_mb=700.0)]))
    frame = pd.read_csv(io.StringIO(text))
    [measured] = frame.query("source == 'measured'").to_dict("records")
    assert measured["origin"] == "memtrade run --layers 50"
    published = frame.query("source == 'published'")
    assert published["table"].value_counts().to_dict() == {
        "resnet-32": 24,
        "resnet-128": 12,
        "inception-v4": 4,
        "max-batch": 4,
    }
    largest = published.query("table == 'max-batch' and strategy == 'ome'")
    assert largest["batch_size"].tolist() == [214]
    assert published["origin"].str.startswith("thesis notes: table").all()


def test_commands_are_those_of_the_table(make_record: MakeRecord) -> None:
    records = [
        make_record("ome", command="first"),
        make_record("lms", command="first"),
        make_record(
            "ome", command="second", spec={"model_options": MODEL_OPTIONS | {"batch_size": 7}}
        ),
    ]
    assert resnet_32(records).command == "first"


def test_times_measured_beside_other_trials_are_marked(make_record: MakeRecord) -> None:
    records = [make_record("original", jobs=2), make_record("ome", predicted=PREDICTED)]
    sheet = resnet_32(records)
    original, ome = cells(sheet, "original", "50"), cells(sheet, "ome", "50")
    assert original["step s", "measured"] == "7.00†"
    assert original["peak MB", "measured"] == "2,880.0"
    assert ome["step s", "measured"] == "7.00"
    assert ome["relative time", "measured"] == "1.00†"
    assert ome["relative peak", "measured"] == "1.00"
    assert "†" not in ome["step s", "predicted"] + ome["relative time", "published"]
    assert any(note.startswith("† measured beside other trials, up to 2") for note in sheet.notes)
    assert not any("†" in note for note in resnet_32([make_record("ome")]).notes)


def test_commands_go_by_depth(make_record: MakeRecord) -> None:
    records = [
        make_record("ome", command=f"{layers} layers", spec={"model_options": options})
        for layers in (101, 18, 50)
        for options in [MODEL_OPTIONS | {"layers": layers}]
    ]
    assert resnet_32(records).command.split("\n") == ["18 layers", "50 layers", "101 layers"]
