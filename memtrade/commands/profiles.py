"""What the commands that only plan and predict share: a traced step, a target, plans made here.

A child traces the step, which takes seconds; this process plans and simulates. Nothing runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from memtrade.commands.progress import Reporter, asking, extract_graph, reporting
from memtrade.graph import StepGraph
from memtrade.measure.flags import DeviceFlags, StepFlags, make_specs
from memtrade.measure.here import learned_target
from memtrade.measure.protocol import Progress, TrialSpec
from memtrade.plan import Plan
from memtrade.results.simulated import SimulatedStep
from memtrade.results.words import seconds, strategy_label
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import use_of_memory
from memtrade.strategies import PLANNED, find_planned, make_options
from memtrade.strategies.known import plan_with_known
from memtrade.target import ARENA, Target


@dataclass(frozen=True)
class Foresight:
    """A traced step, the strategies asked for, and the target that they plan for."""

    graph: StepGraph
    target: Target
    specs: tuple[TrialSpec, ...]

    def in_turn(self, reporter: Reporter) -> Iterator[TrialSpec]:
        """The strategies asked for, one by one; the reporter says which is planned."""
        for position, spec in enumerate(self.specs, start=1):
            reporter.trial(position, len(self.specs), strategy_label(spec))
            reporter.event(Progress("plan"))
            yield spec

    def plan(self, spec: TrialSpec, known: Sequence[Plan] = ()) -> Plan:
        """Raises what the strategy raises. `known`: plans that were made for other budgets."""
        options = make_options(spec.strategy, spec.strategy_options)
        strategy = find_planned(spec.strategy)
        return plan_with_known(strategy, self.graph, options, self.target, known)


def foresee(step: StepFlags, *, default: Sequence[str], verbose: bool) -> Foresight:
    """Checks all flags, then traces the step. `default`: the strategies if none are named."""
    chosen = step.strategy.names(default, everything=PLANNED)
    names = [find_planned(name).name for name in chosen]
    target, timeout = step.device.target(step.strategy.order), step.device.timeout
    tracing = replace(step, device=DeviceFlags(device=ARENA, timeout=timeout))
    specs = make_specs(tracing, task="extract", names=names)
    graph = extract_graph(specs[0], timeout_seconds=timeout, verbose=verbose)
    with reporting() as reporter:
        target = learned_target(target, [graph], on_progress=asking(reporter, target.name))
    planned = tuple(
        msgspec.structs.replace(spec, device=target.name, memory_limit_bytes=target.limit_bytes)
        for spec in specs
    )
    return Foresight(graph, target, planned)


def simulate_all(
    foresight: Foresight, clock: TimeSimulator | None = None
) -> Iterator[SimulatedStep]:
    """The step under each strategy, with progress on stderr."""
    clock = clock or TimeSimulator(foresight.graph, foresight.target)
    with reporting() as reporter:
        for spec in foresight.in_turn(reporter):
            plan = foresight.plan(spec)
            usage = use_of_memory(clock, plan)
            bound = usage.timeline.memory.bound(foresight.graph, plan)
            made = SimulatedStep(strategy_label(spec), foresight.graph, usage, bound)
            took = seconds(made.step_seconds)
            reporter.ended(f"predicted peak {made.peak_text} MB, {took} s a step")
            yield made
