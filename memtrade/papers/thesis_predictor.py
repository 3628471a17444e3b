"""The thesis' steps, predicted: each strategy as the thesis' own tools carried it out, on its card.

Two device parameters are fitted to the five `original` rows at batch 32 (`fit`); all other rows are
predicted with that profile.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pandas as pd

from memtrade.graph import StepGraph
from memtrade.options import Value
from memtrade.papers.executor import run_order, tasks_of
from memtrade.papers.fit import Sample, fit_device
from memtrade.papers.published import load_published, published_lines
from memtrade.papers.thesis_nets import net_name, rules_of
from memtrade.plan import Action, Order, Plan
from memtrade.search import largest
from memtrade.simulate.memory import ROOMY_BYTES, OutOfMemory
from memtrade.simulate.timeline import TimeSimulator
from memtrade.strategies import find_planned, make_options
from memtrade.target import Target, profile_target

CARD = "gtx-1070"
FITTED = "gtx-1070-traced"
# In the log of batch 32, `original` and `lms` ran on in the process in which six checkpointed
# networks had run before; `checkpoints` and `ome` each began one. Their processes held 0.9 GB more
# of host memory, at every depth. What a step takes besides its ops, which the fit to `original`
# finds, is theirs.
AGED = frozenset({"original", "lms"})
TABLES = ("batch 32", "batch 128", "InceptionV4", "max batch")
# (layers or None for InceptionV4, batch size) -> one training step.
Graphs = Callable[[int | None, int], StepGraph]


class Published(NamedTuple):
    """One printed row. `layers`: None is InceptionV4."""

    table: str
    layers: int | None
    batch_size: int
    strategy: str
    seconds: float | None
    peak_mb: float | None

    @property
    def fitted(self) -> bool:
        return self.table == "batch 32" and self.strategy == "original" and bool(self.seconds)


def published() -> list[Published]:
    """The thesis' tables, in its order. A time or peak that it does not print is None."""
    # InceptionV4's times of two strategies are swapped against the log: the log's means count.
    steps = load_published("thesis_log_steps")
    means = steps[steps["model"] == "inception_v4"].groupby("strategy")["step_seconds_unrounded"]
    seconds: dict[str, float] = means.mean().to_dict()
    found = [(f"batch {line['batch_size']}", line) for line in published_lines("thesis_resnet")]
    for line in published_lines("thesis_inception_v4"):
        found.append(("InceptionV4", line | {"step_seconds": seconds[line["strategy"]]}))
    for line in published_lines("thesis_max_batch"):
        found.append(("max batch", line | {"batch_size": line["max_batch"]}))
    names = ("batch_size", "strategy", "step_seconds", "peak_mb")
    return [
        Published(table, line.get("layers"), *(line[name] for name in names))
        for table, line in found
    ]


class ThesisPredictor:
    """Predicts rows with one profile, and with a step's overhead where `AGED` says so."""

    def __init__(self, graph: Graphs, traced: Target):
        self.graph = graph
        self.traced = traced
        fresh = msgspec.structs.replace(traced.device, step_overhead_seconds=0.0)
        self.fresh = traced.replace(device=fresh)

    def row(self, given: Published, *, largest: bool = True) -> dict[str, Any]:
        """One printed row and its prediction; errors are shares of what was printed. `fitted` says
        whether the profile was fitted to its time, `fits` whether the step runs in the card's
        memory: the peak of one that does not is what it takes.

        Args:
            largest: in the table of largest batches, also look for that.
        """
        graph = self.graph(given.layers, given.batch_size)
        simulator = TimeSimulator(graph, self.traced if given.strategy in AGED else self.fresh)
        actions = actions_of(simulator, given)
        timeline = simulator.timeline(actions)
        fits = timeline.memory.out_of_memory is None
        if not fits:
            timeline = simulator.timeline(actions, limit_bytes=ROOMY_BYTES)
        peak_mb = timeline.memory.peak_bytes / 1e6
        of_largest = given.table == "max batch"
        return {
            "table": given.table,
            "model": "inception_v4" if given.layers is None else "resnet",
            "layers": given.layers,
            "batch_size": given.batch_size,
            "strategy": given.strategy,
            "fitted": given.fitted,
            "published_seconds": given.seconds,
            "predicted_seconds": timeline.step_seconds,
            "time_error": given.seconds and timeline.step_seconds / given.seconds - 1,
            "published_peak_mb": given.peak_mb,
            "predicted_peak_mb": peak_mb,
            "peak_error": given.peak_mb and peak_mb / given.peak_mb - 1,
            "fits": fits,
            "published_max_batch": given.batch_size if of_largest else None,
            "predicted_max_batch": self.max_batch(given) if of_largest and largest else None,
        }

    def rows(self, given: Sequence[Published], *, largest: bool = True) -> pd.DataFrame:
        """All of them; `network` names each."""
        found = pd.DataFrame([self.row(each, largest=largest) for each in given])
        return found.assign(network=[net_name(each.layers) for each in given])

    def max_batch(self, given: Published) -> int:
        """The largest batch that fits, below twice the published one."""

        def obstacle(batch: int) -> OutOfMemory | None:
            simulator = TimeSimulator(self.graph(given.layers, batch), self.fresh)
            return simulator.timeline(actions_of(simulator, given)).memory.out_of_memory

        return largest(obstacle, guess=given.batch_size, most=2 * given.batch_size - 1).batch


def lms_otherwise(graph: StepGraph, traced: Target) -> dict[str, tuple[float, float]]:
    """What decides over LMS: (seconds, peak in MB) of a step, one thing changed at a time."""
    device = traced.device
    quick = msgspec.structs.replace(
        device,
        host_to_device_bytes_per_s=1000 * device.host_to_device_bytes_per_s,
        device_to_host_bytes_per_s=1000 * device.device_to_host_bytes_per_s,
    )
    theirs: dict[str, Value] = {"rule": "tflms"}
    choices: dict[str, tuple[str, dict[str, Value], Target, Order]] = {
        "original": ("original", {}, traced, "dataflow"),
        "TFLMS's rule, the executor's order": ("lms", theirs, traced, "dataflow"),
        "one swap-in for all readers": ("lms", {}, traced, "dataflow"),
        "copies that take no time": ("lms", theirs, traced.replace(device=quick), "dataflow"),
        "TFLMS's rule, a pinned order": ("lms", theirs, traced, "pinned"),
        "memtrade's rule, a pinned order": ("lms", {}, traced, "pinned"),
        "both, and copies that take no time": ("lms", {}, traced.replace(device=quick), "pinned"),
    }
    found = {}
    for name, (strategy, options, target, order) in choices.items():
        simulator = TimeSimulator(graph, target)
        made = make_options(strategy, options)
        plan = find_planned(strategy).plan(graph, made, target.replace(order=order))
        actions = plan.actions
        if order == "dataflow":
            actions = run_order(simulator, tasks_of(graph, actions))
        timeline = simulator.timeline(actions, limit_bytes=ROOMY_BYTES)
        found[name] = (timeline.step_seconds, timeline.memory.peak_bytes / 1e6)
    return found


def actions_of(simulator: TimeSimulator, given: Published) -> Sequence[Action]:
    """What the thesis' device did in one step."""
    plan = plan_of(simulator.graph, given.strategy, given.layers)
    return run_order(simulator, tasks_of(simulator.graph, plan.actions))


@cache
def plan_of(graph: StepGraph, strategy: str, layers: int | None) -> Plan:
    """What the strategy decides for a network on the card as it is, whichever parameters are fitted
    later. `layers`: None is InceptionV4, for which the rules are as the log prints them."""
    options = make_options(strategy, rules_of(layers)[strategy])
    return find_planned(strategy).plan(graph, options, profile_target(CARD, order="dataflow"))


def fit(
    graph: Graphs,
    rows: Sequence[Published],
    card: Target,
    parameters: Sequence[str] = ("trace", "step"),
) -> Target:
    """`card` with its two overheads, or other parameters, fitted to the rows that are for that."""
    samples = []
    for row in rows:
        if row.fitted and row.seconds:
            step = graph(row.layers, row.batch_size)
            actions = actions_of(TimeSimulator(step, card), row)
            samples.append(Sample(step, actions, row.seconds))
    fitted = fit_device(card, samples, parameters)
    return card.replace(device=msgspec.structs.replace(fitted, name=FITTED))
