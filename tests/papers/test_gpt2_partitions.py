"""Published partitions of GPT-2, field by field, beside stages of ours."""

import pytest

from memtrade.models import make_model
from memtrade.papers.gpt2_partitions import CARDS, OurStages, fields, stages_of, summary_sheet
from memtrade.papers.published import load_published
from memtrade.pipeline.design.report import (
    Evenness,
    Imbalance,
    PartitionReport,
    PhaseTimes,
    Traffic,
)
from memtrade.pipeline.tf import draw_step


def report(seconds: float) -> PartitionReport:
    """Of two stages: so long forward, 0.1 s backward each."""
    even = Imbalance(1.0, 1.0)
    balance = Evenness(PhaseTimes((seconds, seconds), (0.1, 0.1)), even, even)
    return PartitionReport(
        step="s", device_profile="gtx-1070", partitions=2, boundaries=("b",), balanced_by="time",
        heaviest_over_optimum=1.0, cutting_edges=1, op_edges=5, recomputation=True,
        sequential=balance, parallel=balance, real=None, real_times=None, volumes="largest",
        link_bytes_per_s=12e9, traffic=(Traffic(8192, 1e-6, 3_145_728, 2e-4),) * 2,
    )  # fmt: skip


SECONDS = {"theoretical_sequential": 0.04, "theoretical_parallel": 0.05, "real": 0.06}
OURS = OurStages(
    report(0.04),
    {times: report(seconds).sequential for times, seconds in SECONDS.items()},
    3,
    ((3_000_000, 6_000_000), (12_000_000,)),
)


@pytest.fixture
def line():
    lines = load_published("gpt2_partition_reports").to_dict("records")
    assert {each["device"] for each in lines} == set(CARDS)
    return next(line for line in lines if line["report"] == "gtx_1070_2_partitions")


def test_every_printed_figure_has_one_of_ours(line):
    found = list(fields(line, OURS))
    # One of edges; 6 times and 4 volumes of each of two stages; 3 times x 2 scopes x 2 phases.
    assert len(found) == 1 + 2 * (6 + 4) + 12
    edges, forward = found[0], found[1]
    assert (edges.published, edges.predicted, edges.error) == (2, 3, 0.5)
    assert (forward.what, forward.predicted) == ("stage 1 forward ms", 40.0)
    assert forward.published == 37.0056524760276
    by_kind = {(each.kind, each.what): each.predicted for each in found}
    assert by_kind["theoretical parallel times", "stage 1 forward ms"] == 50.0
    assert by_kind["real times", "stage 1 forward ms"] == 60.0
    assert by_kind["volumes", "stage 1 output mb"] == 9.0
    assert by_kind["volumes", "stage 1 send ms"] == 0.5


def test_medians_are_of_a_kind_of_figure(line):
    rows = {row[1]: row for row in summary_sheet(list(fields(line, OURS))).rows}
    assert rows["edges"][2:] == ("1", "50.0%", "+50.0%")
    assert [rows[f"real times{of}"][2] for of in ("", ", last stage")] == ["2", "2"]


def test_stages_are_counted_as_the_reports_count():
    options = {"layers": 4, "width": 64, "heads": 4, "positions": 32, "vocabulary": 40}
    model = make_model("gpt2", options | {"batch_size": 1, "dropout": 0.1})
    graph = draw_step(model, model, optimizer="sgd").trace.graph
    ours = stages_of(graph, "GTX 1070", 2)
    # The hidden state is read by the next block's layer norm and its residual sum.
    assert ours.cutting_edges == 2
    hidden, keys_and_values, logits, loss = 4 * 32 * 64, 2 * 4 * 32 * 64, 4 * 32 * 40, 4
    early, late = ours.outputs
    blocks = early.count(keys_and_values)
    assert 0 < blocks < 4
    assert sorted(early) == sorted([hidden] + blocks * [keys_and_values])
    assert sorted(late) == sorted((4 - blocks) * [keys_and_values] + [logits, loss])
    pairs = zip(
        ours.theoretical.sequential.times.forward, ours.balances["real"].times.forward, strict=True
    )
    assert all(0 < layers < whole for layers, whole in pairs)
    path, whole = ours.balances["theoretical_parallel"].times, ours.theoretical.sequential.times
    for one, other in ((path.forward, whole.forward), (path.backward, whole.backward)):
        assert all(0 < a <= b * (1 + 1e-9) for a, b in zip(one, other, strict=True))
