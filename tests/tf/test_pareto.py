"""optimal against every other strategy: at the same peak never slower, and no peak is smaller."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest
import tensorflow as tf

from memtrade.errors import InfeasibleBudgetError, UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.models import make_model, unet
from memtrade.options import Value
from memtrade.plan import check_plan
from memtrade.simulate.memory import ROOMY_BYTES
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import PLANNED, find_planned, make_options
from memtrade.strategies.budget import BudgetOptions
from memtrade.target import Target
from memtrade.tf.build import make_step
from memtrade.tf.extract import trace
from tests.graphs import ARENA, target
from tests.tf.small_models import shallow

# Of the step's time: the programme is solved to within 0.2% of it.
TOLERANCE = 0.003


# Tensors of real size, where plans are no rounding errors: nothing of it is allocated. Each kind of
# block stands there as often as it takes for a plan to choose, no more: a search is long.
STEPS = {
    "resnet-18": ("resnet", {"layers": 18, "batch_size": 32, "image_size": 64}),
    "gpt2": ("gpt2", {"layers": 1, "batch_size": 8}),
    "unet": ("unet", {"num_convs": 1, "base_channels": 32, "batch_size": 8}),
}
TARGETS = {"arena": ARENA, "gtx-1070": target("gtx-1070")}

# Of the way from the smallest peak to the original's, at which strategies with a budget plan, too.
SHARES = (0.25, 0.6)


@functools.cache
def graph_of(name: str) -> StepGraph:
    with shallow(), mock.patch.object(unet, "DEPTH", 2), tf.Graph().as_default():
        return trace(make_step(make_model(*STEPS[name]))).graph


class Judged:
    """Peaks and seconds of plans for one step on one target."""

    def __init__(self, name: str, target: Target):
        self.graph, self.target = graph_of(name), target
        self.times = TimeSimulator(self.graph, target)
        # Strategies often come to the same peak.
        self.of = functools.cache(self._of)

    def _of(self, name: str, **options: Value) -> tuple[int, float]:
        plan = find_planned(name).plan(self.graph, make_options(name, options), self.target)
        check_plan(plan, self.graph)
        timeline = self.times.timeline(plan, limit_bytes=ROOMY_BYTES)
        return timeline.peak_bytes, timeline.step_seconds

    def others(self, budgets: Sequence[int]) -> Iterator[tuple[str, int, float]]:
        """Every other strategy's plan as it comes and, where it takes one, for each budget."""
        for name in [name for name in PLANNED if name not in ("optimal", "original")]:
            takes = issubclass(PLANNED[name].options, BudgetOptions)
            for budget in ["", *(f"{b}B" for b in budgets if takes)]:
                with contextlib.suppress(UnsupportedGraphError, InfeasibleBudgetError):
                    peak, seconds = self.of(name, **({"budget": budget} if budget else {}))
                    yield f"{name} {budget}", peak, seconds


@pytest.mark.parametrize(
    ("name", "device", "shares"),
    [
        ("resnet-18", "arena", SHARES),
        ("gpt2", "arena", ()),
        ("unet", "arena", ()),
        ("resnet-18", "gtx-1070", ()),
    ],
)
def test_never_slower_than_another_strategy_at_its_peak(
    name: str, device: str, shares: Sequence[float]
) -> None:
    judged = Judged(name, TARGETS[device])
    step = judged.times.step_seconds(())
    original, _ = judged.of("original")
    smallest, _ = judged.of("optimal", minimize="memory", tolerance=0.0)
    budgets = [int(smallest + share * (original - smallest)) for share in shares]
    compared = 0
    for other, peak, seconds in judged.others(budgets):
        ours_peak, ours_seconds = judged.of("optimal", budget=f"{peak}B", time_limit="60")
        assert smallest <= ours_peak <= peak, other
        assert ours_seconds <= seconds + TOLERANCE * step, other
        compared += 1
    assert compared >= 6
