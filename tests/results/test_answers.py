"""Which strategy for which need."""

from __future__ import annotations

from dataclasses import replace

from memtrade.papers.thesis import max_batches_beside
from memtrade.results.answers import (
    NEEDS,
    Need,
    choose,
    steps_to_choose_on,
    summarize,
    summarize_batches,
)
from memtrade.results.figures import Figure
from tests.results.test_max_batches import make_search
from tests.results.test_series import figure

FIGURES = [
    figure(1000, 1.0, variant="original", strategy="original", relative_peak=1.0),
    figure(490, 1.2, variant="checkpoints", relative_peak=0.49, relative_time=1.2),
    figure(201, 1.5, variant="lms", relative_peak=0.201, relative_time=1.5),
    figure(200, 1.6, variant="ome", relative_peak=0.2, relative_time=1.6),
]


def chosen(figures: list[Figure]) -> dict[str, str | None]:
    [step] = steps_to_choose_on(figures)
    answers = {need.name: choose(need, step) for need in NEEDS}
    return {name: figure.variant if figure else None for name, figure in answers.items()}


def test_the_fastest_that_fits() -> None:
    assert choose(Need("", 0.49), FIGURES) is FIGURES[1]
    assert choose(Need("", 0.489), FIGURES) is FIGURES[2]
    assert choose(Need("", 0.199), FIGURES) is None


def test_of_equal_peaks_the_fastest_is_the_answer() -> None:
    least_memory = NEEDS[-1]
    assert choose(least_memory, FIGURES) is FIGURES[2]  # within 1% of the smallest
    assert choose(least_memory, [FIGURES[3], figure(203, 1.0)]) is FIGURES[3]
    assert choose(least_memory, []) is None


def test_each_need_has_its_answer() -> None:
    assert chosen(FIGURES) == {
        "least time": "original",
        "least time within half of original's peak": "checkpoints",
        "least time within a quarter of it": "lms",
        "least memory": "lms",
    }


def test_an_original_that_did_not_run_leaves_shares_of_it_open() -> None:
    failed = figure(0, 0.0, variant="original", strategy="original", status="out_of_memory")
    answers = chosen([failed, *FIGURES[1:]])
    assert answers["least time"] == "checkpoints"
    assert answers["least time within half of original's peak"] is None


def test_a_step_that_ran_once_leaves_nothing_to_choose() -> None:
    assert steps_to_choose_on([FIGURES[0]]) == []
    predicted = [figure(1, 1.0, source="predicted", variant=name) for name in "ab"]
    assert steps_to_choose_on(predicted) == []


def test_the_summary_counts_steps_and_gives_ranges() -> None:
    other = [replace(each, model="resnet-101") for each in FIGURES[:2]]
    sentences = dict(summarize([*FIGURES, *other]))
    assert sentences["least time"] == "original on 2 of 2 steps"
    assert sentences[NEEDS[2].name] == (
        "lms on 1 of 2 steps (0.20 × original's peak at 1.50 × its time); nothing on 1"
    )
    assert sentences["least memory"] == (
        "checkpoints on 1 of 2 steps (0.49 × original's peak at 1.20 × its time); "
        "lms on 1 of 2 steps (0.20 × original's peak at 1.50 × its time)"
    )


def test_the_largest_batch_is_a_measured_one() -> None:
    batches = max_batches_beside([make_search("original", 80), make_search("lms", 200)], [])
    assert summarize_batches(batches) == [
        ("largest batch of resnet-50", "lms: 200, 2.50 × original's")
    ]
    assert summarize_batches(max_batches_beside([], [])) == []


def test_shares_of_the_original_are_asked_for_only_where_it_ran() -> None:
    others = [replace(each, model="resnet-200", layers=200) for each in FIGURES[1:]]
    sentences = dict(summarize([*FIGURES, *others]))
    assert sentences["least time within half of original's peak"] == (
        "checkpoints (0.49 × original's peak at 1.20 × its time); original did not run on 1 more"
    )
    assert sentences["least time"] == (
        "checkpoints on 1 of 2 steps (0.49 × original's peak at 1.20 × its time); "
        "original on 1 of 2 steps"
    )
