"""How well a partition is balanced: the analysis of FTPipe's partitioning tool, on our partitions.

Which of its definitions are used here, since they changed between its versions:

    cutting edges       one per tensor and stage that reads it (`edge_cut` of the later versions);
                        beside it, every edge between ops of two stages (the earlier ones)
    sequential time     the sum of a stage's op times; forward ops, gradient ops
    parallel time       the longest path through a stage's ops, from what it receives on
    backward times      with recomputation, the forward time is added, on all stages
    real time           the mean of n runs of a stage, after the slowest of n + 1 was dropped
    deviation           variance, and mean absolute deviation, of those n runs
    imbalance           fastest over slowest stage, from 0 to 1, higher is better ("balance" later)
    topology-aware      the same of the two stages of a cutting edge, at the worst edge; where both
                        take no time it is 1, where one does 0; without any cutting edge it is 1
    input, output       bytes that a stage reads of the batch and of other stages, and that it sends
                        to others, once for each that reads them; the last stage sends the loss
    receive, send time  those bytes over the bandwidth, the batch's included ("sum", the later
                        versions), or those of the largest tensor alone ("largest", the earlier)

Theoretical times are a device profile's, so predicted; real times are measured. Updates are left
out: they run once per step.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Literal, TypeVar

import msgspec

from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.pipeline.design.partition import Partition
from memtrade.target import Target

Volumes = Literal["sum", "largest"]
T = TypeVar("T")


class Phases(msgspec.Struct, Generic[T], frozen=True):
    """A figure of the forward part, and the same of the backward part."""

    forward: T
    backward: T


PhaseTimes = Phases[tuple[float, ...]]  # seconds of each stage
Imbalance = Phases[float]  # fastest over slowest, from 0 to 1
StageSamples = Phases[Sequence[float]]  # seconds of one stage's n + 1 runs


class RealTimes(msgspec.Struct, frozen=True):
    """Measured times: of each stage, over the runs that count.

    Attributes:
        iterations: how many count.
        mean: seconds. variance: seconds squared, of the population.
        mean_deviation: mean absolute deviation from the mean, seconds.
    """

    iterations: int
    mean: PhaseTimes
    variance: PhaseTimes
    mean_deviation: PhaseTimes


class Evenness(msgspec.Struct, frozen=True):
    """One kind of times, and how even they are.

    Attributes:
        imbalance: over all stages. topology_aware: over pairs of connected stages.
    """

    times: PhaseTimes
    imbalance: Imbalance
    topology_aware: Imbalance


class Traffic(msgspec.Struct, frozen=True):
    """What goes in and out of one stage in one forward pass."""

    input_bytes: int
    receive_seconds: float
    output_bytes: int
    send_seconds: float


class PartitionReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that there is to say of a partition.

    Attributes:
        step: the name of the step. device_profile: whose times the theoretical ones are.
        boundaries: the ops that end the stages.
        heaviest_over_optimum: the cost of the heaviest stage over the smallest possible.
        cutting_edges: one per tensor and stage that reads it. op_edges: between ops.
        recomputation: whether the backward times include it.
        sequential, parallel: theoretical. real: measured; None where nothing was.
        volumes: the definition of the times in `traffic`. link_bytes_per_s: their bandwidth.
    """

    step: str
    device_profile: str
    partitions: int
    boundaries: tuple[str, ...]
    balanced_by: str
    heaviest_over_optimum: float
    cutting_edges: int
    op_edges: int
    recomputation: bool
    sequential: Evenness
    parallel: Evenness
    real: Evenness | None
    real_times: RealTimes | None
    volumes: Volumes
    link_bytes_per_s: float
    traffic: tuple[Traffic, ...]


def analyse(
    graph: StepGraph,
    partition: Partition,
    target: Target,
    *,
    link_bytes_per_s: float,
    recomputation: bool = True,
    volumes: Volumes = "sum",
    samples: Sequence[StageSamples] | None = None,
    seconds: Sequence[float] | None = None,
) -> PartitionReport:
    """The report of a partition of `graph`.

    Args:
        seconds: of each op, where they are not those that the target says.
        samples: measured runs, one per stage, without recomputation added: the backward runs
            include it if `recomputation` is to be among the real times.

    Raises MemtradeError where a stage has fewer than 2 runs.
    """
    connected = connected_stages(partition)
    of_op = target.op_seconds(graph) if seconds is None else seconds

    def even(time_of: Callable[[Sequence[int]], float]) -> Evenness:
        return evenness(_theoretical(graph, partition, time_of, recomputation), connected)

    real_times = _real_times(samples) if samples is not None else None
    costs = [stage.cost for stage in partition.stages]
    return PartitionReport(
        step=graph.name,
        device_profile=target.name,
        partitions=len(partition.stages),
        boundaries=partition.boundaries,
        balanced_by=partition.balance,
        heaviest_over_optimum=_over(max(costs), partition.optimum),
        cutting_edges=len(connected),
        op_edges=_op_edges(graph, partition),
        recomputation=recomputation,
        sequential=even(lambda ops: sum(of_op[op_id] for op_id in ops)),
        parallel=even(lambda ops: _longest_path(graph, of_op, ops)),
        real=evenness(real_times.mean, connected) if real_times is not None else None,
        real_times=real_times,
        volumes=volumes,
        link_bytes_per_s=link_bytes_per_s,
        traffic=tuple(
            _traffic(graph, partition, stage, volumes, link_bytes_per_s)
            for stage in range(len(partition.stages))
        ),
    )


def _longest_path(graph: StepGraph, seconds: Sequence[float], ops: Sequence[int]) -> float:
    """Along data edges, through ops in topological order."""
    ended: dict[int, float] = {}
    for op_id in ops:
        before = (graph.tensors[t].op for t in graph.ops[op_id].inputs)
        ended[op_id] = seconds[op_id] + max((ended.get(o, 0.0) for o in before), default=0.0)
    return max(ended.values(), default=0.0)


def _theoretical(
    graph: StepGraph,
    partition: Partition,
    time_of: Callable[[Sequence[int]], float],
    recomputation: bool,
) -> PhaseTimes:
    gradients: list[list[int]] = [[] for _ in partition.stages]
    for op_id in sorted(graph.backward):
        stage, op = partition.stage_of[op_id], graph.ops[op_id]
        if stage is not None and not (op.stateful and not op.outputs):
            gradients[stage].append(op_id)
    forward = [time_of(stage.ops) for stage in partition.stages]
    backward = [time_of(ops) for ops in gradients]
    if recomputation:
        backward = [sum(both) for both in zip(backward, forward, strict=True)]
    return PhaseTimes(tuple(forward), tuple(backward))


def _real_times(samples: Sequence[StageSamples]) -> RealTimes:
    phases = Phases([each.forward for each in samples], [each.backward for each in samples])
    fewest = min(len(runs) for runs in (*phases.forward, *phases.backward))
    if fewest < 2:
        raise MemtradeError(
            f"real times take at least 2 runs of each stage, of which the slowest does not count, "
            f"not {fewest}"
        )

    def of_each(figure: Callable[[Sequence[float]], float]) -> PhaseTimes:
        def times(phase: Sequence[Sequence[float]]) -> tuple[float, ...]:
            return tuple(figure(sorted(runs)[:-1]) for runs in phase)

        return PhaseTimes(times(phases.forward), times(phases.backward))

    def mean_deviation(runs: Sequence[float]) -> float:
        mean = statistics.fmean(runs)
        return statistics.fmean(abs(run - mean) for run in runs)

    return RealTimes(
        iterations=fewest - 1,
        mean=of_each(statistics.fmean),
        variance=of_each(statistics.pvariance),
        mean_deviation=of_each(mean_deviation),
    )


def connected_stages(partition: Partition) -> list[tuple[int, int]]:
    """The stages of each cutting edge."""
    return [(each.source, reader) for each in partition.crossings for reader in each.targets]


def evenness(times: PhaseTimes, connected: Sequence[tuple[int, int]]) -> Evenness:
    """Over all stages, and over connected ones."""

    def over(pairs: Iterable[Sequence[float]]) -> float:
        return min((_over(min(each), max(each)) for each in pairs), default=1.0)

    def worst(seconds: Sequence[float]) -> float:
        return over((seconds[u], seconds[v]) for u, v in connected)

    return Evenness(
        times=times,
        imbalance=Imbalance(over([times.forward]), over([times.backward])),
        topology_aware=Imbalance(worst(times.forward), worst(times.backward)),
    )


def _over(smaller: float, larger: float) -> float:
    """The ratio; 1 of two zeros."""
    return smaller / larger if larger else 1.0


def _op_edges(graph: StepGraph, partition: Partition) -> int:
    """Data edges between forward ops of two stages, several of one tensor included."""
    return sum(
        partition.stage_of[reader] in crossing.targets
        for crossing in partition.crossings
        for reader in graph.consumers[crossing.tensor]
        if reader in graph.forward
    )


def _traffic(
    graph: StepGraph, partition: Partition, stage: int, volumes: Volumes, link_bytes_per_s: float
) -> Traffic:
    batch = [graph.tensors[t].size_bytes for t in partition.stages[stage].inputs]
    arriving = batch + [crossing.size_bytes for crossing in partition.receives(stage)]
    leaving = [crossing.size_bytes for crossing in partition.sends(stage) for _ in crossing.targets]
    if partition.stage_of[graph.tensors[graph.loss].op] == stage:
        leaving.append(graph.tensors[graph.loss].size_bytes)

    def seconds(sizes: Sequence[int]) -> float:
        moved = sum(sizes) if volumes == "sum" else max(sizes, default=0)
        return moved / link_bytes_per_s

    return Traffic(sum(arriving), seconds(arriving), sum(leaving), seconds(leaving))
