"""The report's text: the answer first, nothing from elsewhere, and every figure's command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from memtrade.measure.records import Record
from memtrade.papers.thesis import thesis_report
from tests.results.conftest import MODEL_OPTIONS
from tests.results.test_max_batches import make_search
from tests.results.test_series import at

MakeRecord = Callable[..., Record]


@pytest.fixture
def records(make_record: MakeRecord) -> list[Record]:
    options = MODEL_OPTIONS | {"layers": 18}
    failed = make_record(
        "original",
        peak_mb=None,
        status="out_of_memory",
        reason="OOM when allocating",
        model="resnet-18",
        spec={"model_options": options},
    )
    return [
        make_record("original"),
        make_record("ome", peak_mb=700.0, step_seconds=9.0),
        failed,
        at(make_record, 18, "lms"),
    ]


def report(records: list[Record], **changes: Any) -> str:
    names = {"folder": "my runs", "command": "memtrade report 'my runs'"}
    return thesis_report(records, [make_search("ome", 300)], **(names | changes))


def without_plotly(page: str) -> str:
    """The page without its longest script."""
    scripts = re.findall(r"<script.*?</script>", page, flags=re.DOTALL)
    return page.replace(max(scripts, key=len), "")


def data_of(page: str) -> dict[str, Any]:
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(data)


def test_the_answer_comes_first(records: list[Record]) -> None:
    page = without_plotly(report(records))
    sections = re.findall(r'<section id="(\w+)"', page)
    assert sections == ["answer", "plots", "tables", "environment", "commands"]
    answer = page[page.index('id="answer"') : page.index('id="plots"')]
    assert "<dt>least memory</dt>" in answer
    assert "ome on 1 of 2 steps (0.24 × original" in answer
    assert "<dt>largest batch of resnet-50</dt><dd>ome: 300</dd>" in answer


def test_nothing_comes_from_elsewhere(records: list[Record]) -> None:
    page = without_plotly(report(records))
    assert "http://" not in page
    assert "https://" not in page
    assert not re.search(r"\b(src|href)\s*=", page)
    assert "default-src 'none'" in page


def test_every_figure_has_its_command(records: list[Record]) -> None:
    page = without_plotly(report(records))
    for command in (
        "memtrade plot peak &#39;my runs&#39; --output peak.pdf",
        "memtrade plot time &#39;my runs&#39; --output time.pdf",
        "memtrade plot pareto &#39;my runs&#39; --output pareto.pdf",
        "memtrade plot max-batch &#39;my runs&#39; --output max-batch.pdf",
        "memtrade table thesis &#39;my runs&#39;",
        "memtrade table &#39;my runs&#39;",
        "memtrade report &#39;my runs&#39;",
        "<li><code>memtrade run --layers 50</code></li>",
    ):
        assert command in page
    for panel in data_of(page)["peak"]:
        for line in panel["lines"]:
            assert all(point["origin"] for point in line["points"])


def test_the_environment_is_told(records: list[Record]) -> None:
    page = without_plotly(report(records))
    environment = page[page.index('id="environment"') : page.index('id="commands"')]
    for expected in (
        "A CPU, 2 cores",
        "15 GiB",
        "arena of 7,254 MiB",
        "2.21.0",
        "Linux 6.1 x86_64",
    ):
        assert expected in environment


def test_the_data_are_the_figures_in_mb_and_seconds(records: list[Record]) -> None:
    data = data_of(report(records))
    [step] = data["steps"]  # resnet-18 has one strategy that ran
    assert step["name"] == "resnet-50, batch 32"
    ome = next(point for point in step["points"] if point["variant"] == "ome")
    assert (ome["peak"], ome["seconds"]) == (700.0, 9.0)
    measured = next(panel for panel in data["peak"] if panel["title"] == "measured")
    original = next(line for line in measured["lines"] if line["variant"] == "original")
    assert original["failed"] == [
        {"x": 18, "status": "out of memory", "origin": "memtrade run --layers 50"}
    ]


def test_what_records_say_is_text_and_no_markup(make_record: MakeRecord) -> None:
    evil = "</script><script>alert(1)</script>"
    records = [make_record("original", command=evil), make_record("ome", command=evil)]
    page = report(records, folder=evil, command=evil)
    assert evil not in page
    harmless = report([make_record("original"), make_record("ome")])
    assert page.count("<script") == harmless.count("<script")
    assert data_of(page)["steps"][0]["points"][0]["origin"] == evil


def test_without_a_finished_trial_there_is_nothing_to_choose(make_record: MakeRecord) -> None:
    failed = make_record("ome", peak_mb=None, status="crashed", reason="killed")
    page = without_plotly(thesis_report([failed], folder="runs", command="memtrade report"))
    assert "No trial has run to its end yet" in page
    assert "ome: crashed: killed" in page


def test_the_same_records_give_the_same_page(records: list[Record]) -> None:
    assert report(records) == report(records)
