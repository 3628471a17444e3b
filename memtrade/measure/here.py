"""The target of a device that is here: what commands, trials and the library run on."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from memtrade.devices import device_names
from memtrade.facts import CPU, OUTPUTS, shipped
from memtrade.facts.learned import Learned, LearnedFacts
from memtrade.facts.lines import extended
from memtrade.facts.signature import LEAST_BYTES, signature_of
from memtrade.facts.surroundings import ONEDNN, Surroundings, surroundings
from memtrade.graph import StepGraph
from memtrade.measure import host
from memtrade.measure.environment import child_environment
from memtrade.measure.learning import Asker, learn
from memtrade.measure.protocol import TrialSpec
from memtrade.plan import Order
from memtrade.rebatch import Rebatcher
from memtrade.simulate.calibration import measured_device
from memtrade.target import ARENA, Target, profile_target

# What stands for a card like none that has a profile: the slowest copies, so that none is taken
# for hidden that is not.
GENERIC = "gtx-1070"

# "0" in this variable of the environment: no kernel is asked, shipped facts and profiles count.
ASK = "MEMTRADE_ASK"

# What the child that asks kernels may take, at most and of what is free.
_ASKER_BYTES, _ASKER_SHARE = 4 << 30, 0.4

# The smallest of three sizes, each twice the one before: small enough to be quick. A line through
# the outer two that meets the one between is extended. A kernel may be small at these sizes, and
# not at others.
_LEAST = 4


def here_target(
    device_name: str,
    *,
    profile: str | Path | None = None,
    order: Order = "pinned",
    limit_bytes: int | None = None,
) -> Target:
    """The target of "arena" or "gpu:N".

    Args:
        profile: in place of the device's own; then nothing is learned of its kernels.
        limit_bytes: None is the memory that the profile says.
    """
    chosen = profile or profile_of(device_name)
    target = profile_target(chosen, order=order, limit_bytes=limit_bytes)
    return target.replace(here="" if profile else device_name)


def learned_target(
    target: Target,
    graphs: Iterable[StepGraph],
    *,
    anew: frozenset[str] = frozenset(),
    environment: Mapping[str, str] | None = None,
    least_bytes: int = LEAST_BYTES,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> Target:
    """`target` with what its own kernels do: those of the graphs that nobody knows yet are asked.

    A target that is not here stays as it is.

    Args:
        anew: the keys of kernels that are asked again though they are known.
        environment: of the process that will run the step; None is that of a trial's child.
        least_bytes: see `learn`.
        on_progress: called with how many kernels have been asked, and how many there are.
    """
    device_name = target.here
    if not device_name or os.environ.get(ASK) == "0":
        return target
    limit_bytes = min(_ASKER_BYTES, int(host.free_memory_bytes() * _ASKER_SHARE))
    spec = TrialSpec(device=device_name, memory_limit_bytes=limit_bytes)
    made = child_environment(spec, environment)
    if environment is not None and ONEDNN not in environment:
        del made[ONEDNN]  # TensorFlow is imported already, and has decided for itself
    where = surroundings_of(device_name, made)
    asker = Asker(device_name, made, limit_bytes)
    table, rates = learn(
        graphs, where, asker, anew=anew, least_bytes=least_bytes, on_progress=on_progress
    )
    if rates is None:
        return target
    shipped_too = CPU if rates.onednn else OUTPUTS
    return target.replace(
        facts=LearnedFacts(shipped(shipped_too), table),
        device=measured_device(target.device, table, rates),
    )


def surroundings_of(device_name: str, environment: Mapping[str, str]) -> Surroundings:
    """Those of a process with that environment which runs on a device that is here."""
    return surroundings(_device_text(device_name), host.tensorflow_version() or "", environment)


def _device_text(device_name: str) -> str:
    """What facts are kept under: "cpu", or the card's name and its driver."""
    if device_name == ARENA:
        return "cpu"
    card = next((gpu for gpu in host.gpus() if f"gpu:{gpu.index}" == device_name), None)
    return f"{card.name}, driver {card.driver or 'unknown'}" if card else device_name


def profile_of(device_name: str) -> str:
    """The profile of the arena; of a GPU, the one whose name is nearest to the card's."""
    if device_name == ARENA:
        return ARENA
    card = next((gpu.name for gpu in host.gpus() if f"gpu:{gpu.index}" == device_name), "")
    words = set(re.findall(r"\w+", card.lower()))

    def likeness(name: str) -> float:
        own = set(name.split("-"))
        return len(own & words) / len(own)

    nearest = max(device_names(), key=likeness)
    return nearest if likeness(nearest) >= 0.5 else GENERIC


class BatchTargets:
    """Makes the target for the step at one batch size, from what its kernels do at three: no kernel
    is asked for each size that a search looks at.

    Args:
        target: without what was learned.
        rebatcher: of the step.
        environment: of the process that will run the step; None is that of a trial's child.
        unit: what batch sizes are multiples of.
    """

    def __init__(
        self,
        target: Target,
        rebatcher: Rebatcher,
        *,
        environment: Mapping[str, str] | None = None,
        unit: int = 1,
    ):
        self._plain, self._rebatcher = target, rebatcher
        least = unit * -(-_LEAST // unit)
        self._environment, self._sizes = environment, (least, 2 * least, 4 * least)

    @cached_property
    def _graphs(self) -> dict[int, StepGraph]:
        return {size: self._rebatcher.at(size) for size in self._sizes}

    @cached_property
    def _learned(self) -> Target:
        return learned_target(
            self._plain, self._graphs.values(), environment=self._environment, least_bytes=1
        )

    def step(self, batch: int) -> tuple[StepGraph, Target]:
        """The step at `batch`, and its target."""
        graph = self._rebatcher.at(batch)
        return graph, self.at(batch, graph)

    def at(self, batch: int, graph: StepGraph) -> Target:
        """The target for `graph`, which is the step at `batch`."""
        facts = self._learned.facts
        if not isinstance(facts, LearnedFacts):
            return self._learned  # a device that is not here, or nothing is asked
        table = dict(facts.table)
        for index, op in enumerate(graph.ops):
            signature = signature_of(op, graph)
            if signature is None or signature.key in table:
                continue
            fitted = self._fitted(index, batch, facts.table)
            if fitted is not None:
                table[signature.key] = msgspec.structs.replace(fitted, key=signature.key)
        return self._learned.replace(facts=LearnedFacts(facts.base, table))

    def _fitted(self, index: int, batch: int, known: Mapping[str, Learned]) -> Learned | None:
        """What the op with that index does at `batch`; None where the sizes do not tell."""
        runs = {}
        for size, graph in self._graphs.items():
            signature = signature_of(graph.ops[index], graph, least_bytes=1)
            run = known.get(signature.key) if signature else None
            if run is None or not run.requests:
                return None
            runs[size] = run
        line = extended(runs, batch)
        if line is None:
            return None
        return msgspec.structs.replace(
            runs[self._sizes[-1]], requests=line.requests, seconds=line.seconds, source=line.source
        )
