"""What a stage would hold and move if chains of elementwise ops were one kernel each.

TensorFlow's graph computes a layer norm or a GELU by many ops, each of which leaves its output to
its gradient. PyTorch's kernels, and compilers that fuse, keep and move only what the chain reads
and what it ends in. The model:

    a tensor lies inside a kernel if an elementwise op makes it, one elementwise op alone reads it
    in its own part (forward or backward), and nothing but elementwise ops read it in the backward
    part

What lies inside is not moved, and not held between a forward and its backward task: the backward
kernel makes it anew as it goes. No parameter is fitted. What it misses: a library may fuse more (a
layer norm's branches), or less (an activation function behind a norm).
"""

from collections.abc import Sequence

import msgspec

from memtrade.costs import OpClass, OpCost, op_cost
from memtrade.devices import Device
from memtrade.graph import StepGraph
from memtrade.op_types import ALIAS_TYPES
from memtrade.pipeline.design.stages import StageGraph
from memtrade.pipeline.design.work import (
    StageBytes,
    StageSeconds,
    TaskSeconds,
    Timer,
    split_program,
    stage_bytes,
    stage_program,
    update_costs,
    update_seconds,
)
from memtrade.plan import Action, Decision
from memtrade.schedule import lower
from memtrade.target import Target


class Fusion:
    """The kernels of one graph.

    Attributes:
        inside: root ids of the tensors that lie inside a kernel.
        costs: for each op, with nothing moved for what lies inside.
        starts: for each op, whether a kernel is started for it; the last of a chain starts it.
    """

    def __init__(self, graph: StepGraph):
        self.graph = graph
        plain = [op_cost(op, graph) for op in graph.ops]
        self._elementwise = [cost.op_class is OpClass.ELEMENTWISE for cost in plain]
        self.inside = frozenset(
            t.id for t in graph.tensors if graph.root[t.id] == t.id and self._lies_inside(t.id)
        )
        self.costs = [self._cost(op_id, cost) for op_id, cost in enumerate(plain)]
        self.starts = [
            cost.op_class is not OpClass.FREE
            and not (op.outputs and self.inside.issuperset(op.outputs))
            for op, cost in zip(graph.ops, plain, strict=True)
        ]

    def seconds(self, device: Device) -> list[float]:
        """Of each op, on the device; no launch for what another op's kernel takes along."""
        unstarted = msgspec.structs.replace(device, launch_overhead_seconds=0.0)
        return [
            (device if started else unstarted).seconds(cost)
            for cost, started in zip(self.costs, self.starts, strict=True)
        ]

    def program(self) -> tuple[Action, ...]:
        """The graph's program in which the activations inside kernels are recomputed."""
        decisions: dict[int, Decision] = {
            t: "recompute" for t in self.graph.activations if t in self.inside
        }
        return lower(self.graph, decisions)

    def _lies_inside(self, tensor: int) -> bool:
        graph = self.graph
        producer = graph.tensors[tensor].op
        if graph.ops[producer].stateful or not self._elementwise[producer]:
            return False
        readers = {c for c in graph.readers(tensor) if graph.ops[c].type not in ALIAS_TYPES}
        part = [r for r in readers if (r in graph.backward) == (producer in graph.backward)]
        return len(part) == 1 and all(self._elementwise[reader] for reader in readers)

    def _cost(self, op_id: int, cost: OpCost) -> OpCost:
        if not self._elementwise[op_id]:
            return cost
        op, root = self.graph.ops[op_id], self.graph.root
        spared = sum(
            self.graph.tensors[t].size_bytes
            for t in (*op.inputs, *op.outputs)
            if root[t] in self.inside
        )
        return cost._replace(bytes_moved=max(0, cost.bytes_moved - spared))


def fused_kernels(
    stage: StageGraph, whole: StepGraph, target: Target, plan: Sequence[Action]
) -> tuple[Timer, StageBytes]:
    """A stage with fused kernels, for `PipelinePredictor`. There are no plans for them."""
    assert not plan
    fusion = Fusion(stage.graph)
    needed = stage_bytes(stage, target, fusion.program())
    return FusedTimer(stage, whole, target, fusion), needed


class FusedTimer:
    """The seconds of one stage's tasks, with fused kernels, on one device after another."""

    def __init__(self, stage: StageGraph, whole: StepGraph, target: Target, fusion: Fusion):
        self._fusion = fusion
        program = stage_program(stage.graph, ())
        split = split_program(stage.graph, program)
        self._parts = [
            [action.id for action in part] for part in (program[:split], program[split:])
        ]
        self._updates = update_costs(stage, whole, target)

    def seconds(self, device: Device) -> StageSeconds:
        forward, backward = (self._task(part, device) for part in self._parts)
        return StageSeconds(
            forward=forward,
            bare_forward=forward,
            backward=backward,
            update=update_seconds(self._updates, device),
        )

    def _task(self, ops: list[int], device: Device) -> TaskSeconds:
        seconds, starts = self._fusion.seconds(device), self._fusion.starts
        host = sum(starts[op_id] for op_id in ops) * device.dispatch_seconds
        return TaskSeconds(device=sum(seconds[op_id] for op_id in ops), host=host)
