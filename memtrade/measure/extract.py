"""The graph of a step, for whoever plans or asks for sizes. A child traces it."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.measure.protocol import Event, TrialSpec
from memtrade.measure.trial import run_child
from memtrade.units import mebibytes

# More than any device has, and any machine.
_MOST_BYTES = 1 << 45


def extract_graph(
    spec: TrialSpec,
    *,
    timeout_seconds: float,
    on_event: Callable[[Event], None] = lambda event: None,
    on_log: Callable[[str], None] = lambda line: None,
) -> StepGraph:
    """The graph of the spec's step, traced in a child, which allocates nothing.

    Raises:
        UnsupportedGraphError: it could not be traced, and why; or one of its tensors or variables
            is too large for any device.
    """
    graph = StepGraph.from_bytes(told_by_child(spec, timeout_seconds, on_event, on_log))
    sizes = [(t.size_bytes, t.id) for t in graph.tensors]
    sizes += zip(graph.data.capture_bytes, graph.data.captures, strict=True)
    most_bytes, largest = max(sizes, key=lambda pair: pair[0], default=(0, 0))
    if most_bytes > _MOST_BYTES:
        raise UnsupportedGraphError(
            f"{graph.name} has {graph.label(largest)} of {mebibytes(most_bytes)}, which no device "
            "holds: give a smaller batch, smaller examples or fewer classes"
        )
    return graph


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
