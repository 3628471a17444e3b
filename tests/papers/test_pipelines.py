"""Published pipelines as steps of ours, and their figures beside the predicted ones."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import memtrade.sweeps
from memtrade.papers.pipelines import figures_of, load_comparison, with_relative
from memtrade.papers.published import load_published

FILE = Path(memtrade.sweeps.__file__).with_name("published_pipelines.toml")


@pytest.mark.parametrize(
    ("name", "table"), [("gpipe_gpt2", "gpipe_gpt2_runs"), ("torchgpipe_speed", "torchgpipe_speed")]
)
def test_every_published_row_is_a_step_of_ours(name: str, table: str):
    rows = load_comparison(FILE, name).all_rows()
    assert len(rows) == len(load_published(table))
    figures = [figures_of(row) for row in rows]
    assert all(each.samples_per_second or each.relative for each in figures)


def test_where_nothing_but_a_ratio_is_printed_it_counts():
    speeds = load_comparison(FILE, "torchgpipe_speed").all_rows()
    [theirs] = [
        row for row in speeds if (row.run, row.implementation) == ("pipeline-4", "huang_et_al")
    ]
    assert (figures_of(theirs).samples_per_second, figures_of(theirs).relative) == (None, 2.18)

    def line(by: str, published: float | None, predicted: float, printed: float | None):
        return {"published_table": "t", "model": "m", "size": "", "implementation": by,
                "published_speed": published, "predicted_speed": predicted,
                "printed_relative": printed}  # fmt: skip

    lines = [line("torchgpipe", 10.0, 8.0, None), line("torchgpipe", 30.0, 20.0, 3.0),
             line("huang_et_al", None, 20.0, 2.18)]  # fmt: skip
    frame = with_relative(pd.DataFrame(lines), "speed")
    assert frame["published_relative_speed"].tolist() == [1.0, 3.0, 2.18]
    assert frame["predicted_relative_speed"].tolist() == [1.0, 2.5, 2.5]
    assert "printed_relative" not in frame
