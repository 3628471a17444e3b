"""Targets for a step at any batch size, from what its kernels do at three: no kernel is asked for
each size that a search looks at."""

from collections.abc import Mapping
from functools import cached_property

import msgspec

from memtrade.facts.learned import Learned, LearnedFacts
from memtrade.facts.lines import extended
from memtrade.facts.signature import signature_of
from memtrade.graph import StepGraph
from memtrade.measure.here import learned_target
from memtrade.rebatch import Rebatcher
from memtrade.target import Target

# The smallest of three sizes, each twice the one before: small enough to be quick. A line through
# the outer two that meets the one between is extended. A kernel may be small at these sizes, and
# not at others.
_LEAST = 4


class BatchTargets:
    """Makes the target for the step at one batch size.

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
            self._plain,
            self._graphs.values(),
            environment=self._environment,
            least_bytes=1,
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
