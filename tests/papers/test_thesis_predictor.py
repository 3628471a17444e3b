"""The thesis' steps as its own tools drew and ran them, against what its log prints."""

from __future__ import annotations

import csv
import math
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from memtrade.graph import StepGraph
from memtrade.papers import thesis_prediction as prediction
from memtrade.papers import thesis_predictor, thesis_variants
from memtrade.papers.thesis_trace import trace_step
from memtrade.strategies.bottlenecks import Trained
from tests.graphs import target

PREDICTED = Path(__file__).resolve().parents[2] / "results" / "predicted" / "thesis.csv"
# Layers of the ResNets that are quick to trace; None is InceptionV4.
NETWORKS = (18, 50, None)


@pytest.fixture(scope="module")
def graph() -> Any:
    return cache(trace_step)


@pytest.mark.parametrize("layers", [18, 50])
def test_lms_takes_the_tensors_and_adds_the_ops_that_the_log_counts(graph: Any, layers: int):
    """Which only a network that normalizes before its convolutions has."""
    log = thesis_variants.logged(layers)
    assert thesis_variants.by_lms(graph(layers, 32)) == (log["tensors"], log["ops"])


def test_openai_s_rule_finds_the_checkpoints_that_the_log_prints(graph: Any):
    """All but one, the flattened features, which have 0.2 MB."""
    found = thesis_variants.checkpoints(graph(None, 32))
    printed = thesis_variants.printed_checkpoints()
    assert len(printed) == 12
    assert found.items() < printed.items()
    assert printed.keys() - found.keys() == {"PreLogitsFlatten/Reshape"}


def test_lms_of_inception_v4_misses_what_an_unused_gradient_reads(graph: Any):
    net = graph(None, 32)
    swapped, _ = thesis_variants.by_lms(net)
    log = thesis_variants.logged(None)
    assert swapped + thesis_variants.products(net) == log["tensors"]


def test_the_memory_of_a_step_without_strategy_is_the_thesis(graph: Any):
    """The evidence that these are the networks: no figure of memory was fitted."""
    predictor = _predictor(graph)
    for given in thesis_predictor.published():
        if given.strategy == "original" and given.layers in NETWORKS and given.batch_size == 32:
            assert predictor.row(given)["peak_error"] == pytest.approx(0, abs=0.06)


def test_the_published_predictions_are_what_the_tool_says_today(graph: Any):
    predictor = _predictor(graph)
    written = {(r["table"], r["layers"], r["strategy"]): r for r in _rows()}
    given = [r for r in thesis_predictor.published() if r.layers == 18 and r.batch_size == 32]
    assert len(given) == 4
    for row in map(predictor.row, given):
        before = written[row["table"], str(row["layers"]), row["strategy"]]
        for name, near in (("predicted_seconds", 0.01), ("predicted_peak_mb", 0.001)):
            assert float(before[name]) == pytest.approx(row[name], rel=near)


def _predictor(graph: Any) -> Any:
    return thesis_predictor.ThesisPredictor(graph, target("gtx-1070-traced"))


def test_no_more_rows_are_fitted_to_than_said_and_the_others_keep_the_bounds():
    rows = _rows()
    fitted = [(row["table"], row["strategy"]) for row in rows if row["fitted"] == "True"]
    assert fitted == [("batch 32", "original")] * 5
    counted = [r for r in rows if r["fitted"] == "False" and r["time_error"]]
    assert len(counted) == 38
    assert statistics.median(abs(float(row["time_error"])) for row in counted) <= 0.10
    assert statistics.median(abs(float(row["peak_error"])) for row in counted) <= 0.08


def test_errors_follow_from_the_figures_beside_them():
    for row in _rows():
        if row["published_seconds"]:
            ratio = float(row["predicted_seconds"]) / float(row["published_seconds"])
            assert float(row["time_error"]) == pytest.approx(ratio - 1, abs=0.002)
            ratio = float(row["predicted_peak_mb"]) / float(row["published_peak_mb"])
            assert float(row["peak_error"]) == pytest.approx(ratio - 1, abs=0.002)


def test_orders_tell_the_pairs_that_are_the_wrong_way():
    columns = ["strategy", "published_seconds", "predicted_seconds"]
    rows = pd.DataFrame([("original", 1, 2), ("ome", 3, 1), ("lms", 3.001, 0.5)], columns=columns)
    rows = rows.assign(table="batch 32", network="ResNet-18", batch_size=32)
    found = prediction.orders(rows, "seconds")
    assert found == {"ResNet-18, batch 32": [("original", "ome"), ("original", "lms")]}


def test_a_bottleneck_is_what_nothing_passes_by(graph: Any):
    """In a residual network the sums, not what lies beside a shortcut."""
    trained = Trained(graph(18, 32))
    found = trained.bottlenecks(sorted(trained.considered))
    labels = [trained.graph.label(t) for t in found]
    assert "stage2_block2/add:0" in labels
    assert not [each for each in labels if each.startswith("stage2_block2/conv1")]


def _rows() -> list[dict[str, str]]:
    with PREDICTED.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_step_that_reads_no_batch_is_still_a_graph(graph: Any):
    step: StepGraph = graph(18, 32)
    assert step.ops[step.turn].type == "SoftmaxCrossEntropyWithLogits"
    assert math.isclose(sum(step.data.capture_bytes), 3 * 4 * 11.69e6, rel_tol=0.01)
