"""A step's memory by layer, or by line of the user's program: what each one owns, and what it holds
at the peak.

    weights        what the forward part reads, and moving averages
    slots          what only gradients reach: the optimizer's
    activations    made by the forward part and kept for the gradients, as the step came
    scratch        the most that one of its kernels asks for beside its outputs
    at the peak    what it holds when most is in use, of the simulated step

An op of the backward part belongs to the layer that it is the gradient of, and counts as that
layer's line of the program. O(ops + edges) behind one simulated step.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from memtrade.errors import check_name
from memtrade.facts import SCRATCH, most_bytes
from memtrade.graph import StepGraph
from memtrade.op_types import READ_TYPES
from memtrade.simulate.program import Linker
from memtrade.simulate.usage import Usage

By = Literal["layer", "source"]

# The name of what belongs to no layer: the batch, constants, padding.
REST = ""


@dataclass(kw_only=True)
class LayerRow:
    """One layer, or one line.

    Attributes:
        source: the line that made its first forward op.
        output: the shape of what it last made in the forward part.
        peak_bytes: what it holds at the step's peak, its weights and slots included.
        at_peak: whether the op that runs then is one of its own.
    """

    name: str
    source: str = ""
    output: tuple[int, ...] | None = None
    weight_bytes: int = 0
    slot_bytes: int = 0
    activation_bytes: int = 0
    scratch_bytes: int = 0
    peak_bytes: int = 0
    at_peak: bool = False


class _Rows(dict[str, LayerRow]):
    def __missing__(self, name: str) -> LayerRow:
        self[name] = LayerRow(name=name)
        return self[name]


def by_layer(
    graph: StepGraph, linker: Linker, usage: Usage, by: By = "layer"
) -> tuple[LayerRow, ...]:
    """In the order of the forward part; what belongs to none comes last.

    The rows' `peak_bytes` add up to the step's peak.
    """
    names, rows = owners(graph, by), _Rows()
    for op_id in sorted(graph.from_batch):
        op, row = graph.ops[op_id], rows[names[op_id]]
        row.source = row.source or op.source
        row.output = next((graph.tensors[t].shape for t in op.outputs[:1]), None) or row.output
    for handle, size in graph.capture_bytes.items():
        if graph.tensors[handle].dtype != "resource":
            continue
        row = rows[names[graph.tensors[handle].op]]
        row.peak_bytes += size
        rows[REST].peak_bytes -= size  # "variables" among the holders are those of all layers
        if _is_slot(graph, handle):
            row.slot_bytes += size
        else:
            row.weight_bytes += size
    for t in graph.activations:
        rows[names[graph.tensors[t].op]].activation_bytes += graph.tensors[t].size_bytes
    for op, spec in zip(graph.ops, linker.specs, strict=True):
        if spec is not None:
            scratch = (each.size_bytes for each in spec.requests if each.output == SCRATCH)
            row = rows[names[op.id]]
            row.scratch_bytes = max(row.scratch_bytes, most_bytes(scratch))
    for each in usage.holders:
        rows[names[each.op] if each.op >= 0 else REST].peak_bytes += each.size_bytes
    running = _running(usage)
    if running >= 0:
        rows[names[running]].at_peak = True
    rest = rows.pop(REST, LayerRow(name=REST))
    return tuple(filter(_says_something, (*rows.values(), rest)))


def owners(graph: StepGraph, by: By = "layer") -> list[str]:
    """For each op the layer, or the line, that it counts for; "" where nothing is known. A line
    stands in for a layer where ops lie in no scope.

    Raises:
        UnknownNameError: `by` is neither.
    """
    check_name("by", by, get_args(By))
    first: dict[str, str] = {}  # layer -> the line of its first forward op
    for op in graph.ops:
        if op.layer and op.source and op.id in graph.forward:
            first.setdefault(op.layer, op.source)
    if by == "source":
        return [
            op.source if op.id in graph.forward else first.get(op.layer, op.source)
            for op in graph.ops
        ]
    return [op.layer or op.source for op in graph.ops]


def _running(usage: Usage) -> int:
    action = usage.actions[usage.moments[usage.peak].action]
    return action.id if action.kind in ("run", "recompute") else -1


def _is_slot(graph: StepGraph, handle: int) -> bool:
    """Whether only what descends from the loss touches a variable."""
    touching = set(graph.consumers[handle])
    for op_id in graph.consumers[handle]:
        if graph.ops[op_id].type in READ_TYPES:
            touching.update(c for t in graph.ops[op_id].outputs for c in graph.consumers[t])
    return touching.isdisjoint(graph.forward) and not touching.isdisjoint(graph.descendants)


def _says_something(row: LayerRow) -> bool:
    return any(
        (row.weight_bytes, row.slot_bytes, row.activation_bytes, row.peak_bytes, row.at_peak)
    )
