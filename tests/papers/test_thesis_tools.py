"""The thesis' networks under the tools' rules, beside what was published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtrade.errors import MemtradeError
from memtrade.measure.records import Record
from memtrade.models import make_model, options_of
from memtrade.papers.published import VIEWS, published_names, published_sheet, views_sheet
from memtrade.papers.thesis_nets import ORDER, RESNET, make_net, rules_of
from memtrade.papers.thesis_tools import PREDICTED, rule_of, tools_sheets
from memtrade.strategies import make_options

MakeRecord = Callable[..., Record]
ROOT = Path(__file__).resolve().parents[2]


def of_net(make: MakeRecord, strategy: str, *, order: str = ORDER, peak_mb: float, **given: Any):
    net = make_net(50, 8, data_format="NHWC")
    options = {each.name: getattr(net, each.name) for each in options_of(type(net))}
    made = make_options(strategy, given)
    named = {each.name: getattr(made, each.name) for each in options_of(type(made))}
    spec = {"model_options": options, "optimizer": "adam", "order": order,
            "strategy_options": named}  # fmt: skip
    return make(strategy, peak_mb=peak_mb, step_seconds=2.0, spec=spec)


def test_the_four_sources_say_what_they_are(make_record: MakeRecord):
    theirs: Any = rules_of(50)
    records = [
        of_net(make_record, "original", order="pinned", peak_mb=1000.0),
        of_net(make_record, "checkpoints", peak_mb=450.0, **theirs["checkpoints"]),
        of_net(make_record, "checkpoints", order="pinned", peak_mb=300.0),
        of_net(make_record, "lms", peak_mb=900.0, **theirs["lms"]),
        of_net(make_record, "lms", order="pinned", peak_mb=700.0, rule="tflms"),
    ]
    assert [rule_of(r, 50) for r in records[1:]] == ["theirs", "own", "theirs", ""]
    [sheet] = tools_sheets(records, predicted=ROOT / PREDICTED)
    way, own = "the thesis' way, here, batch 8", "memtrade's own rules, here, batch 8"
    cells = {
        (strategy, row[0]): dict(zip(sheet.columns, row, strict=True))
        for strategy, row in zip(sheet.sections, sheet.rows, strict=True)
    }
    assert cells["checkpoints", way]["peak MB"] == "450.0"
    assert cells["checkpoints", way]["of original's"] == "0.45"
    assert cells["checkpoints", way]["of original's time"] == "1.00"
    assert cells["checkpoints", own]["peak MB"] == "300.0"
    assert cells["lms", way]["peak MB"] == "900.0"
    assert cells["lms", own]["peak MB"] == "-"
    assert cells["ome", way]["peak MB"] == "-"
    assert cells["checkpoints", "published, batch 32"]["peak MB"] == "1,381.7"
    assert cells["original", "published, batch 32"]["step s"] == "0.538"
    frame = sheet.figures.set_index(["strategy", "source"])
    assert frame.loc[("lms", way), "peak_bytes"] == 900e6


def test_other_networks_are_not_the_thesis(make_record: MakeRecord):
    with pytest.raises(MemtradeError, match="no record is of the thesis' networks"):
        tools_sheets([make_record("original")])


def test_the_networks_are_options_of_the_models():
    net = make_net(152, 32)
    assert net == make_model("resnet", {**RESNET, "layers": 152, "batch_size": 32})
    assert make_net(None, 4).name == "inception-v4"


def test_every_published_table_has_a_view():
    assert set(VIEWS) == set(published_names())
    for view in VIEWS.values():
        assert not view.by.startswith("results/") or (ROOT / view.by).is_file(), view.by
    rows = {row[0]: row for row in views_sheet().rows}
    assert rows["thesis_max_batch"][4] == "4"
    assert rows["thesis_max_batch"][3] == "memtrade table published thesis_max_batch"


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_a_published_table_is_shown_whole(name: str):
    from memtrade.papers.published import load_published

    frame: Any = load_published(name)
    sheet = published_sheet(frame, name)
    assert len(sheet.rows) == len(frame)
    kept = [column for column in frame if frame[column].notna().any() and column != "provenance"]
    assert set(sheet.columns) <= set(kept)
    assert len(sheet.columns) >= len(kept) - 1  # notes, where there are none
