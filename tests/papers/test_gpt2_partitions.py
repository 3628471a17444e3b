"""Published partitions of GPT-2, field by field, beside a report of ours."""

from memtrade.papers.gpt2_partitions import CARDS, fields, summary_sheet
from memtrade.papers.published import load_published
from memtrade.pipeline.design.report import (
    Evenness,
    Imbalance,
    PartitionReport,
    PhaseTimes,
    Traffic,
)


def report() -> PartitionReport:
    """Of two stages: 0.04 s forward, 0.1 s backward each."""
    even = Imbalance(1.0, 1.0)
    balance = Evenness(PhaseTimes((0.04, 0.04), (0.1, 0.1)), even, even)
    return PartitionReport(
        step="s", device_profile="gtx-1070", partitions=2, boundaries=("b",), balanced_by="time",
        heaviest_over_optimum=1.0, cutting_edges=3, op_edges=3, recomputation=True,
        sequential=balance, parallel=balance, real=None, real_times=None, volumes="largest",
        link_bytes_per_s=12e9, traffic=(Traffic(8192, 1e-6, 3_145_728, 2e-4),) * 2,
    )  # fmt: skip


def test_every_printed_figure_has_a_row():
    lines = load_published("gpt2_partition_reports").to_dict("records")
    line = next(line for line in lines if line["report"] == "gtx_1070_2_partitions")
    assert {each["device"] for each in lines} == set(CARDS)
    found = list(fields(line, report()))
    # One of edges; 6 times and 4 volumes of each of two stages; 3 times x 2 scopes x 2 phases.
    assert len(found) == 1 + 2 * (6 + 4) + 12
    edges, forward = found[0], found[1]
    assert (edges.published, edges.predicted, edges.error) == (2, 3, 0.5)
    assert (forward.what, forward.predicted) == ("stage 0 forward ms", 40.0)
    assert forward.published == 37.0056524760276
    assert all(each.predicted is None for each in found if each.what.startswith("real"))


def test_medians_are_of_the_fields_that_are_predicted():
    lines = load_published("gpt2_partition_reports").to_dict("records")
    line = next(line for line in lines if line["report"] == "gtx_1070_2_partitions")
    rows = {row[1]: row for row in summary_sheet(list(fields(line, report()))).rows}
    assert rows["edges"][2:] == ("1", "50.0%", "+50.0%")
    assert rows["real times"][2:] == ("0", "-", "-")
