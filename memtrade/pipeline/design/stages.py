"""A stage as a training step of its own: a StepGraph, cut out of the whole step's.

    batch, received ─► forward ops ─► Send ─ ─ ─► Receive ─► backward ops ─► gradients to send
    weights ─────────────┘                                        └► accumulators

So all that works on steps works on stages: strategies plan them, the simulator walks them. What
the stage receives lies there before it starts, like a batch. In place of other stages stands a
pair of ops: `Send` reads what leaves, `Receive` makes each gradient that comes back, so that the
gradients descend from the forward part as they do in a whole step. In place of an update stands
the addition to a gradient's accumulator: a pipelined step updates once, when all micro-batches
are through.

GPipe recomputes a stage as a whole. A plan of a stage's graph says it tensor by tensor: what leaves
for host memory between a micro-batch's forward and its backward task, and what is made again.
Schedule, clocks and bubble stay what they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from memtrade.errors import MemtradeError
from memtrade.graph import GraphData, Op, StepGraph, Tensor, reached
from memtrade.graph_writer import GraphWriter
from memtrade.op_types import RECEIVE, SEND
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.schedule import TaskKind
from memtrade.plan import Action
from memtrade.strategies import find_planned
from memtrade.target import Target

ACCUMULATE = "AssignAddVariableOp"
KEEP = "original"  # the strategy that leaves stages as they are

Ids = tuple[int, ...]


@dataclass(frozen=True)
class StageGraph:
    """One stage's work on one micro-batch.

    Attributes:
        graph: the stage as a StepGraph, named after the step and the stage.
        batch, received: its inputs: the batch's tensors, and other stages' forward ones.
        leaving: for each kind of task, (tensor, stage that reads it) of what it makes for others.
        sources: for each tensor that other stages make, the stage that does.
        batch_bytes: of the batch's tensors that the stage reads, for one micro-batch.
        received_bytes: of what it reads of other stages' forward tensors.
        retained_bytes: the part of `received_bytes` that its backward ops read.
        variable_bytes: of the values of weights and moving averages.
        gradient_bytes: of the accumulators.
        slot_bytes: of the optimizer's variables.
        gradient_of: for each update, which runs once per step, the gradient that it applies: ids
            of the whole graph.
    """

    graph: StepGraph
    batch: Ids
    received: Ids
    leaving: dict[TaskKind, list[tuple[int, int]]]
    sources: dict[int, int]
    batch_bytes: int
    received_bytes: int
    retained_bytes: int
    variable_bytes: int
    gradient_bytes: int
    slot_bytes: int
    gradient_of: dict[int, int]

    @property
    def parameter_bytes(self) -> int:
        """What persists between steps: values, gradients and slots."""
        return self.variable_bytes + self.gradient_bytes + self.slot_bytes


def stage_graphs(graph: StepGraph, partition: Partition) -> tuple[StageGraph, ...]:
    """All stages of a partition of `graph`, which is that of the step on one micro-batch.

    Raises MemtradeError where the partition belongs to another graph.
    """
    if partition.fingerprint != graph.fingerprint:
        raise MemtradeError(
            f"the partition was made for another graph ({partition.fingerprint}) than {graph.name} "
            f"({graph.fingerprint}): cut this one at the partition's boundaries"
        )
    return tuple(_Builder(graph, partition, i).build() for i in range(len(partition.stages)))


def plan_stages(
    stages: Sequence[StageGraph], strategy: str, options: Any, target: Target
) -> tuple[tuple[Action, ...], ...]:
    """For each stage, the actions of its plan; empty where every activation is kept.

    Without reservations: they fit one step in an arena of its own, and a stage has many
    micro-batches under way.

    Args:
        options: of the strategy, as `make_options` makes them.

    Raises UnknownNameError, or MemtradeError where a strategy makes no plans or finds none.
    """
    planned = find_planned(strategy)
    plans = (planned.plan(stage.graph, options, target) for stage in stages)
    return tuple(tuple(a for a in plan.actions if a.kind != "reserve") for plan in plans)


def leaving(
    graph: StepGraph, partition: Partition, stage: int, kind: TaskKind
) -> list[tuple[int, int]]:
    """(tensor, stage that reads it) of what a task makes for other stages."""
    if kind == "forward":
        return [(each.tensor, to) for each in partition.sends(stage) for to in each.targets]
    stage_of = partition.stage_of
    return [
        (t, to)
        for op_id in (sorted(graph.backward) if kind == "backward" else ())
        if stage_of[op_id] == stage
        for t in graph.ops[op_id].outputs
        for to in range(len(partition.stages))
        if to != stage and any(stage_of[c] == to for c in graph.consumers[t])
    ]


class _Builder:
    """One stage in the making. Ids are of the whole graph unless they are said to be new."""

    def __init__(self, graph: StepGraph, partition: Partition, stage: int):
        self.whole, self.partition, self.number = graph, partition, stage
        self.stage = partition.stages[stage]
        self.backward = {op_id for op_id in graph.backward if partition.stage_of[op_id] == stage}
        self.gradient_of = self._gradients_of_updates()
        own = self._own_ops()
        late = self._late(own)
        self.forward, self.backward = own - late, self.backward | late
        self.made = GraphWriter()
        self.new_op: dict[int, int] = {}

    def build(self) -> StageGraph:
        whole, stage = self.whole, self.stage
        own = self.forward | self.backward
        read = sorted({t for op_id in own for t in self._inputs(op_id)})
        foreign = [t for t in read if whole.tensors[t].op not in own]
        batch = [t for t in whole.data.inputs if t in foreign]
        captures = [t for t in whole.data.captures if t in foreign or t in stage.variables]
        elsewhere = [t for t in foreign if t not in batch and t not in captures]
        elsewhere.sort(key=self._turn)
        received = [t for t in elsewhere if whole.tensors[t].op not in whole.backward]
        arriving = [t for t in elsewhere if whole.tensors[t].op in whole.backward]
        for t in (*batch, *received, *captures):
            self.made.add(whole.label(t), "Placeholder", (), [whole.tensors[t]])
        accumulators = {t: self._add_accumulator(t) for t in stage.trainable}
        for op_id in sorted(self.forward):
            self._copy(op_id)
        loss = self._end_forward()
        if arriving:
            self.made.add("receive", RECEIVE, (loss,), [whole.tensors[t] for t in arriving])
        for op_id in sorted(self.backward):
            self._copy_backward(op_id, accumulators)
        sizes = whole.capture_bytes
        values = [t for t in stage.variables if t in read]
        late = {t for op_id in self.backward for t in self._inputs(op_id)}
        new = self.made.new
        return StageGraph(
            graph=self._graph(
                loss,
                inputs=tuple(new[t] for t in (*batch, *received)),
                captures=(*(new[t] for t in captures), *accumulators.values()),
                capture_bytes=tuple(sizes[t] for t in (*captures, *stage.trainable)),
            ),
            batch=tuple(new[t] for t in batch),
            received=tuple(new[t] for t in received),
            leaving={kind: self._leaving(kind) for kind in get_args(TaskKind)},
            sources={new[t]: self._source(t) for t in elsewhere},
            batch_bytes=self._bytes(batch),
            received_bytes=self._bytes(received),
            retained_bytes=self._bytes(t for t in received if t in late),
            variable_bytes=sum(sizes[t] for t in values),
            gradient_bytes=sum(sizes[t] for t in stage.trainable),
            slot_bytes=sum(sizes[t] for t in stage.variables if t not in values),
            gradient_of=dict(sorted(self.gradient_of.items())),
        )

    def _graph(self, loss: int, *, inputs: Ids, captures: Ids, capture_bytes: Ids) -> StepGraph:
        """What has been added, as a step's graph."""
        data, made, new = self.whole.data, self.made, self.made.new
        return StepGraph(
            GraphData(
                name=f"{self.whole.name}, stage {self.number + 1}",
                ops=tuple(made.ops),
                tensors=tuple(made.tensors),
                inputs=inputs,
                captures=captures,
                capture_bytes=capture_bytes,
                outputs=(loss, *dict(self._leaving("backward"))),
                control_outputs=tuple(o.id for o in made.ops if o.stateful and not o.outputs),
                loss=loss,
                collection=tuple(new[t] for t in data.collection if t in new),
                nodes=data.nodes,
                functions=data.functions,
                values={new[t]: known for t, known in data.values.items() if t in new},
            )
        )

    def _leaving(self, kind: TaskKind) -> list[tuple[int, int]]:
        made, new = leaving(self.whole, self.partition, self.number, kind), self.made.new
        return [(new[t], to) for t, to in made if t in new]

    def _gradients_of_updates(self) -> dict[int, int]:
        """For each update of a weight, the gradient that it applies."""
        whole, found = self.whole, {}
        for op_id in self.backward:
            op = whole.ops[op_id]
            gradients = [t for t in op.inputs if whole.tensors[t].op in whole.backward]
            if op.stateful and not op.outputs and self._variable(op) is not None and gradients:
                found[op_id] = max(gradients, key=lambda t: whole.tensors[t].size_bytes)
        return found

    def _variable(self, update: Op) -> int | None:
        return next((t for t in update.inputs if t in self.stage.trainable), None)

    def _inputs(self, op_id: int) -> Sequence[int]:
        """What the op reads on this stage: an update only its gradient."""
        if op_id in self.gradient_of:
            return (self.gradient_of[op_id],)
        return self.whole.ops[op_id].inputs

    def _own_ops(self) -> set[int]:
        """The stage's forward ops, and what its backward ops read of ops that belong to no stage,
        such as shapes, constants, and gradients' factors of the forward part's tensors: each stage
        makes its own."""
        whole, stage_of = self.whole, self.partition.stage_of

        def made_here(op_id: int) -> Iterator[int]:
            for producer in (whole.tensors[t].op for t in self._inputs(op_id)):
                beside = producer not in whole.forward and producer not in whole.backward
                here = beside or stage_of[producer] in (self.number, None)
                if here and whole.ops[producer].type != "Placeholder":
                    yield producer

        own = (*self.stage.ops, *self.stage.side_ops, *self.backward)
        return set(reached(own, made_here)) - self.backward

    def _late(self, own: set[int]) -> set[int]:
        """Of the ops, those that belong to the backward part or wait for it, be it by a control
        edge: TensorFlow holds back by one what a gradient makes of the forward part's tensors."""
        late: set[int] = set()
        for op_id in sorted(own):
            op = self.whole.ops[op_id]
            waits_for = [*self._controls(op), *(self.whole.tensors[t].op for t in op.inputs)]
            if any(each in late or each in self.whole.backward for each in (op_id, *waits_for)):
                late.add(op_id)
        return late

    def _turn(self, tensor: int) -> tuple[int, int]:
        """When a tensor of another stage arrives: what was made first, and of that the largest."""
        t, stage = self.whole.tensors[tensor], self._source(tensor)
        return (-stage if t.op in self.whole.backward else stage), -t.size_bytes

    def _source(self, tensor: int) -> int:
        return self.partition.stage_of[self.whole.tensors[tensor].op] or 0

    def _add_accumulator(self, variable: int) -> int:
        """The handle of a variable that sums the gradients of `variable`. Its new tensor id."""
        name = f"{self.whole.ops[self.whole.tensors[variable].op].name}/gradient"
        handle = Tensor(-1, -1, 0, "resource", (), 0)
        return self.made.add(name, "Placeholder", (), [handle]).outputs[0]

    def _copy(self, op_id: int) -> None:
        op = self.whole.ops[op_id]
        self.new_op[op_id] = self.made.add(
            op.name,
            op.type,
            [self.made.new[t] for t in op.inputs],
            [self.whole.tensors[t] for t in op.outputs],
            controls=[self.new_op[c] for c in self._controls(op) if c in self.new_op],
            stateful=op.stateful,
            attrs=op.attrs,
            node=op.node,
        ).id

    def _controls(self, op: Op) -> list[int]:
        """What the op waits for. TensorFlow gathers the gradients of an op by one that does
        nothing and is on no stage: in its place stands what it waits for itself."""
        found: dict[int, None] = {}
        for control in op.controls:
            waited = self.whole.ops[control]
            found |= dict.fromkeys(self._controls(waited) if waited.type == "NoOp" else [control])
        return list(found)

    def _copy_backward(self, op_id: int, accumulators: dict[int, int]) -> None:
        """The op; in place of an update, the addition to the variable's accumulator."""
        op = self.whole.ops[op_id]
        variable = self._variable(op)
        if op_id in self.gradient_of and variable is not None:
            inputs = (accumulators[variable], self.made.new[self.gradient_of[op_id]])
            self.made.add(op.name, ACCUMULATE, inputs, (), stateful=True)
        elif not (op.stateful and not op.outputs):  # no update of an optimizer's own variables
            self._copy(op_id)

    def _end_forward(self) -> int:
        """The loss, or what stands for it where the stage sends. Its new tensor id."""
        if self.whole.tensors[self.whole.loss].op in self.forward:
            return self.made.new[self.whole.loss]
        sent = [self.made.new[t] for t in self.stage.sent]
        return self.made.add("send", SEND, sent, [Tensor(-1, -1, 0, "float32", (), 4)]).outputs[0]

    def _bytes(self, tensors: Iterable[int]) -> int:
        """Of the tensors' buffers, each once."""
        roots = dict.fromkeys(self.whole.root[t] for t in tensors)
        return sum(self.whole.tensors[t].size_bytes for t in roots)
