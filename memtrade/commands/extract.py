"""The graph of a step, for commands that plan or ask for sizes. A child traces it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from memtrade.commands.progress import ignore, log, reporting
from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.measure.protocol import TrialSpec
from memtrade.measure.trial import run_child
from memtrade.results.tables import status_text


def extract_graph(spec: TrialSpec, *, timeout_seconds: float, verbose: bool = False) -> StepGraph:
    """The graph of the spec's step, traced in a child, which allocates nothing."""
    with tempfile.TemporaryDirectory() as folder, reporting() as reporter:
        path = Path(folder) / "graph.msgpack"
        reporter.trial(1, 1, spec.model)
        outcome = run_child(
            msgspec.structs.replace(spec, graph_path=str(path)),
            timeout_seconds=timeout_seconds,
            on_event=reporter.event,
            on_log=log if verbose else ignore,
        )
        if outcome.status != "ok":
            raise UnsupportedGraphError(
                f"the step could not be traced: {status_text(outcome.status)}: {outcome.reason}"
            )
        return StepGraph.from_bytes(path.read_bytes())
