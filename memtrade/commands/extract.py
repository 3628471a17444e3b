"""The graph of a step, traced in a child, while stderr shows what it does."""

from __future__ import annotations

from memtrade.commands.progress import ignore, log, reporting
from memtrade.graph import StepGraph
from memtrade.measure import extract
from memtrade.measure.protocol import TrialSpec


def extract_graph(spec: TrialSpec, *, timeout_seconds: float, verbose: bool = False) -> StepGraph:
    """The graph of the spec's step. Raises UnsupportedGraphError where it could not be traced."""
    with reporting() as reporter:
        reporter.trial(1, 1, spec.model)
        return extract.extract_graph(
            spec,
            timeout_seconds=timeout_seconds,
            on_event=reporter.event,
            on_log=log if verbose else ignore,
        )
