"""What the commands that only predict share: the flags of a device profile, and plans made here.

A child traces the step, which takes seconds; this process plans and simulates. Nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cyclopts import Parameter

from memtrade.commands.extract import extract_graph
from memtrade.commands.flags import DeviceFlags, ModelFlags, StrategyFlags, make_specs
from memtrade.commands.plan import make_plan
from memtrade.commands.progress import reporting
from memtrade.errors import MemtradeError
from memtrade.graph import StepGraph
from memtrade.measure.defaults import with_default
from memtrade.measure.protocol import Progress, TrialSpec
from memtrade.plan import Plan
from memtrade.results.tables import seconds, spec_label
from memtrade.simulate.devices import Device, load_device
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import Usage, use_of_memory
from memtrade.strategies import PLANNED, find_planned
from memtrade.units import megabytes, parse_bytes


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProfileFlags:
    """For what device.

    Attributes:
        device: A device profile: a name out of `memtrade devices`, or a .toml file of one's own
            (`memtrade calibrate`).
        memory_limit: The device's memory, such as 7254MiB. Unless given: the profile's.
        timeout: Seconds that tracing the step may take.
    """

    device: str = "arena"
    memory_limit: str | None = None
    timeout: float = 3600.0

    def resolve(self) -> tuple[Device, int]:
        """The profile and the memory in bytes.

        Raises:
            UnknownNameError: no such profile.
            MemtradeError: the profile or the limit is wrong; the message names the field.
        """
        device = load_device(self.device)
        if self.memory_limit is None:
            return device, device.memory_bytes
        limit_bytes = parse_bytes(self.memory_limit)
        if limit_bytes < 1 << 20:
            raise MemtradeError(f"--memory-limit must be at least 1MiB, not {self.memory_limit}")
        return device, limit_bytes


@dataclass(frozen=True)
class Foresight:
    """A traced step, the strategies asked for, and the device that they plan for.

    Attributes:
        labels: of the strategies, with the options that were asked for.
    """

    graph: StepGraph
    device: Device
    limit_bytes: int
    specs: tuple[TrialSpec, ...]
    labels: tuple[str, ...]

    def plan(self, spec: TrialSpec) -> Plan:
        """Raises what the strategy raises."""
        return make_plan(spec, self.graph)


def foresee(
    model: ModelFlags,
    strategy: StrategyFlags,
    profile: ProfileFlags,
    *,
    default: Sequence[str],
    verbose: bool,
) -> Foresight:
    """Checks all flags, then traces the step. `default`: the strategies if none are named."""
    chosen = strategy.names(default, everything=PLANNED)
    names = [find_planned(name).name for name in chosen]
    device, limit_bytes = profile.resolve()
    tracing = DeviceFlags(device="arena", timeout=profile.timeout)
    specs = make_specs(model, strategy, tracing, task="extract", names=names)
    graph = extract_graph(specs[0], timeout_seconds=profile.timeout, verbose=verbose)
    # A strategy that asks what things cost has an option `device`.
    planned = tuple(with_default(spec, "device", profile.device) for spec in specs)
    return Foresight(graph, device, limit_bytes, planned, tuple(map(spec_label, specs)))


def use_all(foresight: Foresight) -> Iterator[tuple[str, Usage]]:
    """Each strategy's label and the use of memory over its step, with progress on stderr."""
    clock = TimeSimulator(foresight.graph, foresight.device)
    with reporting() as reporter:
        for position, label in enumerate(foresight.labels):
            reporter.trial(position + 1, len(foresight.labels), label)
            reporter.event(Progress("plan"))
            plan = foresight.plan(foresight.specs[position])
            usage = use_of_memory(clock, plan, limit_bytes=foresight.limit_bytes)
            peak, took = megabytes(usage.peak_bytes), seconds(usage.timeline.step_seconds)
            reporter.ended(f"predicted peak {peak} MB, {took} s a step")
            yield label, usage
