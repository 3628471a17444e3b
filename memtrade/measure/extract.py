"""The graph of a step, for whoever plans or asks for sizes. A child traces it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.measure.protocol import Event, TrialSpec
from memtrade.measure.trial import run_child


def extract_graph(
    spec: TrialSpec,
    *,
    timeout_seconds: float,
    on_event: Callable[[Event], None] = lambda event: None,
    on_log: Callable[[str], None] = lambda line: None,
) -> StepGraph:
    """The graph of the spec's step, traced in a child, which allocates nothing.

    Raises:
        UnsupportedGraphError: it could not be traced, and why.
    """
    return StepGraph.from_bytes(told_by_child(spec, timeout_seconds, on_event, on_log))


def told_by_child(
    spec: TrialSpec,
    timeout_seconds: float,
    on_event: Callable[[Event], None],
    on_log: Callable[[str], None],
) -> bytes:
    """What a child writes of the step that it traces: its graph, or the findings as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "told"
        outcome = run_child(
            msgspec.structs.replace(spec, graph_path=str(path)),
            timeout_seconds=timeout_seconds,
            on_event=on_event,
            on_log=on_log,
        )
        if outcome.status != "ok":
            status = outcome.status.replace("_", " ")
            raise UnsupportedGraphError(f"the step could not be traced: {status}: {outcome.reason}")
        return path.read_bytes()
