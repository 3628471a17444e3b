"""The graph of a pipelined step, written task by task in the order of the clocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.op_types import SOURCE_TYPES
from memtrade.pipeline.design.batch_norm import MovingAverage, moving_averages
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.schedule import Schedule, StageTask, TaskKind
from memtrade.pipeline.design.stages import StageGraph, leaving, stage_graphs
from memtrade.pipeline.design.work import TaskActions, has_state
from memtrade.pipeline.tf.handover import HandOver, Parcel, Stopwatch
from memtrade.pipeline.tf.nodes import NodeWriter, host_of, output
from memtrade.pipeline.tf.state import DrawnStep, StageState
from memtrade.pipeline.tf.update import StepEnd
from memtrade.plan import Action
from memtrade.tf.nodes import with_nodes
from memtrade.tf.swap import DeviceCopyTransfer, HostTransfer, SerializeTransfer

# Between the seeds of a random op's copies for one micro-batch and the next.
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class PipelineGraph:
    """What a session runs.

    Attributes:
        graph: to make the session of.
        initialize: sets the variables, the batch and the accumulators.
        release: gives their memory back.
        step: runs one step. Nothing is fetched with it: that would arrive on the first stage while
            it computes.
        loss: the mean of the micro-batches' losses, to be fetched once behind each step; None of a
            stage alone that is not the last.
        times: for each stage, [2 x tasks + 1]: when each of its tasks began and ended and when its
            update ended, in seconds; to be fetched likewise.
        values: each variable's value, by the name that it has in the unpipelined step.
        averages: the names of batch norm's moving averages, if their update is deferred.
        parameters: for each stage, the number of elements of its trainable variables.
    """

    graph: tf.Graph
    initialize: tf.Operation
    release: tf.Operation
    step: tf.Operation
    loss: tf.Tensor | None
    times: tuple[tf.Tensor, ...]
    values: dict[str, tf.Tensor]
    averages: frozenset[str]
    parameters: tuple[int, ...]


def build_pipeline(
    step: DrawnStep,
    partition: Partition,
    schedule: Schedule,
    devices: Sequence[str],
    *,
    plans: Sequence[Sequence[Action]] = (),
    deferred_batch_norm: bool = False,
    apart: bool = False,
    alone: int | None = None,
) -> PipelineGraph:
    """The graph that runs `schedule` over the stages of `partition`, stage j on `devices[j]`.

    O(micro-batches x ops).

    Args:
        partition: of the graph of `step.trace`.
        plans: for each stage, the actions of a plan of its graph; an empty one, or none at all,
            keeps every activation between a forward and its backward task.
        deferred_batch_norm: move averages once per step and not once per micro-batch.
        apart: a recomputation waits for the gradient, as its backward task does, so with one
            micro-batch only one stage works at a time; and no update follows.
        alone: the only stage to write, which gets zeros for what others would send. What the graph
            has for each stage, it then has for this one.

    Raises:
        UnsupportedGraphError: a backward op stands on another stage than the variable it needs, or
            batch norm is to be deferred, and there is none.
    """
    deferred = moving_averages(step.trace.graph) if deferred_batch_norm else {}
    if deferred_batch_norm and not deferred:
        raise UnsupportedGraphError(
            f"{step.trace.graph.name} has no batch norm to defer: leave --deferred-batch-norm out"
        )
    return _Builder(step, partition, schedule, devices, plans, deferred, apart, alone).build()


def session_config() -> Any:
    """A ConfigProto under which a session runs the graph as it is, on servers too.

    No optimizer may fold, merge or move ops: a recomputation is there to make again what is
    there already. One inter-op thread, as in the worker. What a GPU has no
    kernel for runs on its host.
    """
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return config


class _Program:
    """A stage's program as its tasks run it, in ids of the whole graph.

    Attributes:
        gradient_of: for each update of a weight, the gradient that it applies, in their order.
    """

    def __init__(self, whole: StepGraph, stage: StageGraph, plan: Sequence[Action]):
        self.whole, self.own = whole, stage.graph
        self.ids = {op.name: op.id for op in whole.ops}
        self.tasks = TaskActions(stage.graph, plan)
        late = [self._in_whole(action).id for action in self.tasks.backward if action.kind == "run"]
        self.gradient_of = {op: stage.gradient_of[op] for op in late if op in stage.gradient_of}

    def of(self, kind: TaskKind, *, recomputed: bool) -> Iterator[Action]:
        """What a task runs; updates stand for the addition to the accumulator."""
        return map(self._in_whole, self.tasks.of(kind, recomputed=recomputed))

    def _in_whole(self, action: Action) -> Action:
        if action.kind in ("run", "recompute"):
            return Action(action.kind, self.ids[self.own.ops[action.id].name])
        t = self.own.tensors[action.id]
        op = self.whole.ops[self.ids[self.own.ops[t.op].name]]
        return Action(action.kind, op.outputs[t.index])


class _Builder:
    """Writes the nodes, stage by stage and task by task, in the order of the clocks.

    Ids are of the whole step's graph; a reference is a tensor as a node's input names it.
    """

    def __init__(
        self,
        step: DrawnStep,
        partition: Partition,
        schedule: Schedule,
        devices: Sequence[str],
        plans: Sequence[Sequence[Action]],
        deferred: dict[int, MovingAverage],
        apart: bool,
        alone: int | None,
    ):
        self.step, self.partition, self.schedule, self.apart = step, partition, schedule, apart
        self.alone, self.deferred = alone, deferred
        self.graph: StepGraph = step.trace.graph
        self.writer = NodeWriter(devices)
        self.state = StageState(self.writer, step, partition, schedule.micro_batches)
        self.stopwatch = Stopwatch(self.writer, self.state, schedule)
        self.hand_over = HandOver(self.writer, self.stopwatch, schedule, apart, alone is not None)
        stages = stage_graphs(self.graph, partition)
        self.programs = [
            _Program(self.graph, stage, plan)
            for stage, plan in zip(stages, plans or [()] * len(stages), strict=True)
        ]
        self.transfers = [_transfer(device) for device in devices]
        self.made: dict[tuple[int, int, int], str] = {}  # (stage, micro-batch, tensor) -> reference
        self.sent: dict[tuple[int, int, int], str] = {}  # likewise, by a forward task
        self.outside: dict[tuple[int, int, int], str] = {}  # what was swapped out, by which name
        self.skipped = {op_id for each in self.deferred.values() for op_id in each.ops}

    def build(self) -> PipelineGraph:
        # What one stage hands over is made before another one reads it.
        count = self.schedule.micro_batches
        stages = range(self.schedule.stages) if self.alone is None else [self.alone]
        tasks = [(t, j) for j in stages for t in self.schedule.tasks[j]]
        for task, stage in sorted(tasks, key=lambda each: each[0].moment):
            self._run_task(stage, task)
        self.hand_over.close()
        end = StepEnd(self.writer, self.state, count, tuple(self.deferred.values()))
        ends = []
        for stage in stages:
            restarted = self.stopwatch.restart(stage)
            end.update(stage, self.programs[stage].gradient_of)
            updated = self.stopwatch.end(stage)
            ends.append(restarted if self.apart else updated)
        self.writer.add(0, "step", "NoOp", [f"^{name}" for name in ends])
        last = self.schedule.stages - 1
        loss = end.mean_loss(last) if last in stages else None
        times = [self.stopwatch.times(stage) for stage in stages]
        values = self.state.values()
        self.state.begin_and_end()
        if self.alone is not None:
            self.writer.leave_only(self.alone, groups=("initialize", "release", "step"))
        return self._import(loss, times, values)

    # Tasks

    def _run_task(self, stage: int, task: StageTask) -> None:
        i = task.micro_batch
        scope = f"stage{stage}/batch{i}/{task.kind}"
        self.hand_over.begin(stage, task, scope)
        recomputed = self.schedule.recomputes(i)
        for action in self.programs[stage].of(task.kind, recomputed=recomputed):
            self._act(stage, i, action, scope)
        if task.kind == "forward":
            # Other stages read what the forward task made, not what a recomputation makes again.
            for t in self.partition.stages[stage].sent:
                self.sent[stage, i, t] = self.made[stage, i, t]
            if stage == self.schedule.stages - 1:
                loss = self.graph.loss
                total, value = self.state.loss_sum(stage), self.made[stage, i, loss]
                self._add_up(stage, f"{scope}/add_loss", total, value, loss)
        if self.alone is not None:
            for t, target in leaving(self.graph, self.partition, stage, task.kind):
                if made := self.made.get((stage, i, t)):
                    self.hand_over.keep(stage, task, target, self._parcel(t, made))
        self.hand_over.end(stage, task, scope)

    def _act(self, stage: int, i: int, action: Action, scope: str) -> None:
        at = len(self.writer.nodes)  # tells several of the same apart
        match action.kind:
            case "run" if action.id in self.deferred:
                self._defer(stage, i, self.deferred[action.id], scope)
            case "run" if action.id not in self.skipped:
                self._run_op(stage, i, action.id, scope)
            case "recompute":
                self._copy(stage, i, action.id, f"{scope}/again{at}")
            case "swap_out":
                name = f"{scope}/out{at}/{self.state.flat(action.id)}"
                source = self._read(stage, i, action.id, scope)
                value = self.graph.tensors[action.id]
                self.writer.chain_group(stage, self.transfers[stage].swap_out(name, source, value))
                self.outside[stage, i, action.id] = name
            case "swap_in":
                name = f"{scope}/in{at}/{self.state.flat(action.id)}"
                out, value = self.outside[stage, i, action.id], self.graph.tensors[action.id]
                self.writer.chain_group(stage, self.transfers[stage].swap_in(name, out, value))
                self.made[stage, i, action.id] = name

    def _defer(self, stage: int, i: int, average: MovingAverage, scope: str) -> None:
        """Adds what the micro-batch has to say of a moving average to the sums of the step.

        The variance's is the mean square: E[x^2] = var + mean^2, of each, the variance over n and
        not, as the op gives it, over n - 1.
        """
        scope = f"{scope}/defer{average.update}"
        chain, dtype = self.writer.chain, self.state.dtype(average.mean)
        mean = self._read(stage, i, average.mean, scope)
        value, attrs = mean, {"T": dtype}
        if average.variance is not None:
            variance = self._read(stage, i, average.variance, scope)
            n = average.elements
            share = self.writer.number(stage, f"{scope}/share", (n - 1) / n, dtype)
            within = chain(stage, f"{scope}/within", "Mul", [variance, share], attrs)
            square = chain(stage, f"{scope}/square", "Mul", [mean, mean], attrs)
            value = chain(stage, f"{scope}/sum", "AddV2", [within, square], attrs)
        total = self.state.sum_of(stage, average)
        self._add_up(stage, f"{scope}/add", total, value, average.mean)

    def _run_op(self, stage: int, i: int, op_id: int, scope: str) -> None:
        gradient = self.programs[stage].gradient_of.get(op_id)
        if gradient is None:
            self._copy(stage, i, op_id, scope)
            return
        variable = self.state.trainable_of(stage, op_id)
        total = self.state.accumulator(stage, variable)
        value = self._read(stage, i, gradient, scope)
        name = f"{scope}/accumulate/{self.state.flat(variable)}"
        self._add_up(stage, name, total, value, gradient)

    def _add_up(self, stage: int, name: str, total: str, value: str, tensor: int) -> None:
        """Adds a value of `tensor` to a sum over the micro-batches."""
        dtype = {"dtype": self.state.dtype(tensor)}
        self.writer.chain(stage, name, "AssignAddVariableOp", [total, value], dtype)

    def _copy(self, stage: int, i: int, op_id: int, scope: str) -> None:
        """The op, behind the last one of its stage."""
        op = self.graph.ops[op_id]
        if op.type in SOURCE_TYPES:
            self.state.constant(stage, op_id)
            return
        inputs = [self._read(stage, i, t, scope) for t in op.inputs]
        source = self.state.sources[op.name]
        node = self.writer.add(stage, f"{scope}/{op.name}", source, inputs)
        if has_state(op) and "seed2" in node.attr:
            node.attr["seed2"].i += i * _SEED_STRIDE  # each micro-batch draws its own numbers
        self.writer.pin(stage, node)
        for t in op.outputs:
            self.made[stage, i, t] = output(node.name, self.graph.tensors[t].index)

    # What ops read

    def _read(self, stage: int, i: int, tensor: int, scope: str) -> str:
        """The reference to the latest version of a tensor on this stage."""
        if tensor in self.graph.data.inputs:
            return self.state.batch_part(stage, i, tensor, scope)
        standing = self.state.standing(stage, tensor)
        if standing is not None:
            return standing
        if (stage, i, tensor) not in self.made:
            self.made[stage, i, tensor] = self._receive(stage, i, tensor)
        return self.made[stage, i, tensor]

    def _receive(self, stage: int, i: int, tensor: int) -> str:
        producer = self.graph.tensors[tensor].op
        source = self.partition.stage_of[producer]
        if source is None or source == stage:
            raise UnsupportedGraphError(
                f"op {self.graph.ops[producer].name!r} has no place in the pipeline: "
                "give other boundaries"
            )
        made, key = "", (source, i, tensor)
        if self.alone is None:
            made = self.sent.get(key) or self.made[key]
        kind = "backward" if producer in self.graph.backward else "forward"
        return self.hand_over.receive(stage, source, kind, i, self._parcel(tensor, made))

    def _parcel(self, tensor: int, reference: str) -> Parcel:
        value, name = self.graph.tensors[tensor], self.state.flat(tensor)
        return Parcel(
            reference, name, self.state.dtype(tensor), value.shape, value.size_bytes, tensor
        )

    def _import(
        self, loss: str | None, times: Sequence[str], values: dict[str, str]
    ) -> PipelineGraph:
        graph_def = with_nodes(self.step.trace.graph_def, self.writer.nodes.values())
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")

        def tensor(name: str) -> tf.Tensor:
            return graph.get_tensor_by_name(f"{name}:0")

        stages = range(self.schedule.stages)
        return PipelineGraph(
            graph=graph,
            initialize=graph.get_operation_by_name("initialize"),
            release=graph.get_operation_by_name("release"),
            step=graph.get_operation_by_name("step"),
            loss=None if loss is None else tensor(loss),
            times=tuple(map(tensor, times)),
            values={name: tensor(value) for name, value in values.items()},
            averages=frozenset(
                self.state.variable_of(each.variable).name for each in self.deferred.values()
            ),
            parameters=tuple(self.state.parameters(i) for i in stages if self.alone in (None, i)),
        )


def _transfer(device: str) -> HostTransfer:
    """How the tensors of a stage leave for its host."""
    host = host_of(device)
    return SerializeTransfer() if host == device else DeviceCopyTransfer(device, host)
