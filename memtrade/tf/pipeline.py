"""A pipelined training step as one TensorFlow graph, its stages on devices of their own.

    stage 0   batch ─ F0 ─ F1 ─ ─ ─ ─ ─ ─ R1 B1 ─ R0 B0 ─ update
                       │send  │send         ▲      ▲                 F forward, R recompute,
    stage 1            └► F0  └► F1 ─ R1 B1 ┘ R0 B0┘ ─ update        B backward, of micro-batch i

The loop over micro-batches is unrolled: each task of the schedule is a copy of the stage's ops, and
a session runs the graph once per step. TensorFlow cuts it by device and moves what crosses through
its own rendezvous, between devices of one process or between `tf.distribute.Server`s over gRPC.

Why one graph and not functions placed on remote devices. A function holds its arguments until it
returns, so a backward function would hold all residuals of its micro-batch to its end; and eager
remote tensors live as long as Python's references to them. In a graph a tensor is free after its
last reader, wherever that is. On each stage control edges put all ops in one total order, the
simulator's base order of the stage (`pipeline.stages`), so the peak of a stage is the same in every
step, and what the simulator walked is what runs.

Hand-over. What a stage makes may be read later than it is ready. So that it does not pile up, it is
sent once its reader has ended the task of the clock before, and the sender's next task waits until
it has been received; this only where the schedule's clocks say that nobody waits longer for it.
All such edges lead from one clock to a later one: there is no deadlock.

Recomputation. The forward task of a recomputed micro-batch keeps nothing but what it received.
The stateful ops (moving averages, random numbers) run in it alone: a recomputation reads again what
they made.

Swapping, and recomputation within a stage: a plan of the stage's graph, by any strategy, stands in
place of the order. Its forward part runs as the forward task, its backward part as the backward
task, for each micro-batch; of a micro-batch that the schedule recomputes, the forward task keeps
nothing, and the plan's whole program runs later.

Batch norm normalizes by micro-batch, and moves its averages for each of them. Deferred, it moves
them once per step, by the whole batch's mean and variance (`pipeline.batch_norm`).

One update per step: gradients are added up in variables, and the step's own update ops run on
their mean behind the stage's last task. For a loss that is the mean over independent examples that
is the unpipelined step's update, but for the order of additions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import READ_TYPES, SOURCE_TYPES, StepGraph
from memtrade.models.base import DrawnModel, Model
from memtrade.pipeline.batch_norm import MovingAverage, moving_averages
from memtrade.pipeline.partition import Partition
from memtrade.pipeline.schedule import Schedule, Task
from memtrade.pipeline.stages import RECEIVE, SEND, StageGraph, stage_graphs
from memtrade.pipeline.work import split_program
from memtrade.plan import Action
from memtrade.schedule import base_order
from memtrade.tf.build import make_batch, make_step
from memtrade.tf.extract import Trace, trace
from memtrade.tf.layers import static_shape
from memtrade.tf.swap import DeviceCopyTransfer, HostTransfer, SerializeTransfer

NodeDef = Any  # protobuf classes, unseen by type checkers

# Between the seeds of a random op's copies for one micro-batch and the next.
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class DrawnStep:
    """A step that was traced without allocating anything, and the batch that it shall run on.

    Attributes:
        trace: of the step on one micro-batch.
        outer: the graph of the variables' initial values and of the batch.
        variables: of the step.
        batch: the whole batch, in the order of the step's arguments.
    """

    trace: Trace
    outer: tf.Graph
    variables: tuple[tf.Variable, ...]
    batch: tuple[tf.Tensor, ...]


@dataclass(frozen=True)
class PipelineGraph:
    """What a session runs.

    Attributes:
        graph: to make the session of.
        initialize: sets the variables, the batch and the accumulators.
        release: gives their memory back.
        loss: the mean of the micro-batches' losses; fetching it with `times` runs one step.
        times: for each stage, [2 x tasks]: when each of its tasks began and ended, in seconds.
        updated: for each stage, when its update ended, in seconds.
        values: each variable's value, by the name that it has in the unpipelined step.
        averages: the names of batch norm's moving averages, if their update is deferred.
        parameters: for each stage, the number of elements of its trainable variables.
    """

    graph: tf.Graph
    initialize: tf.Operation
    release: tf.Operation
    loss: tf.Tensor
    times: tuple[tf.Tensor, ...]
    updated: tuple[tf.Tensor, ...]
    values: dict[str, tf.Tensor]
    averages: frozenset[str]
    parameters: tuple[int, ...]


def draw_step(
    model: Model, whole: Model, *, optimizer: str, learning_rate: float | None = None
) -> DrawnStep:
    """Traces the step of `model`, one micro-batch of `whole`, within a graph of its own.

    Raises UnsupportedGraphError for Keras models, whose weights are made at once.
    """
    if not isinstance(model, DrawnModel):
        raise UnsupportedGraphError(
            f"a pipeline runs built-in models, and {model.name} is Keras's: try --model gpt2"
        )
    outer = tf.Graph()
    with outer.as_default():
        step = make_step(model, optimizer=optimizer, learning_rate=learning_rate)
        traced = trace(step)
        return DrawnStep(traced, outer, step.variables(), make_batch(whole))


def build_pipeline(
    step: DrawnStep,
    partition: Partition,
    schedule: Schedule,
    devices: Sequence[str],
    *,
    plans: Sequence[Sequence[Action]] = (),
    deferred_batch_norm: bool = False,
    apart: bool = False,
) -> PipelineGraph:
    """The graph that runs `schedule` over the stages of `partition`, stage j on `devices[j]`.

    O(micro-batches x ops).

    Args:
        partition: of the graph of `step.trace`.
        plans: for each stage, the actions of a plan of its graph; an empty one, or none at all,
            keeps every activation between a forward and its backward task.
        deferred_batch_norm: move averages once per step and not once per micro-batch.
        apart: a recomputation waits for the gradient, as its backward task does, so with one
            micro-batch only one stage works at a time.

    Raises:
        UnsupportedGraphError: a backward op stands on another stage than the variable it needs, or
            batch norm is to be deferred, and there is none.
    """
    return _Builder(step, partition, schedule, devices, plans, deferred_batch_norm, apart).build()


def session_config() -> Any:
    """A ConfigProto under which a session runs the graph as it is, on servers too.

    No optimizer may fold, merge or move ops: a recomputation is there to make again what is
    there already. One inter-op thread, as in the worker. What a GPU has no kernel for, such as a
    look at the clock, runs on its host.
    """
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return config


class _Builder:
    """Writes the nodes, stage by stage and task by task, in the order of the clocks.

    A *reference* is a tensor as a node's input names it, "op" or "op:1". Ids are of the whole
    step's graph.
    """

    def __init__(
        self,
        step: DrawnStep,
        partition: Partition,
        schedule: Schedule,
        devices: Sequence[str],
        plans: Sequence[Sequence[Action]],
        deferred_batch_norm: bool,
        apart: bool,
    ):
        self.step, self.partition, self.schedule = step, partition, schedule
        self.devices, self.apart = devices, apart
        self.graph: StepGraph = step.trace.graph
        self.stages = stage_graphs(self.graph, partition)
        self.programs = [
            _Program(self.graph, stage, plan)
            for stage, plan in zip(self.stages, plans or [()] * len(self.stages), strict=True)
        ]
        self.sources = {node.name: node for node in step.trace.graph_def.node}
        self.outer = {node.name: node for node in step.outer.as_graph_def().node}
        concrete = step.trace.concrete
        self.captured = dict(zip(self.graph.data.captures, concrete.captured_inputs, strict=True))
        self.home = {t: j for j, s in enumerate(partition.stages) for t in s.variables}
        self.nodes: dict[str, NodeDef] = {}
        self.last: list[str] = [""] * schedule.stages  # the last op of each stage's chain
        self.acknowledged: list[tuple[int, Task, str]] = []  # what a task waits for, too
        self.arrivals: list[str] = []  # what the task in the making has received
        self.ends: dict[tuple[int, Task], str] = {}
        self.starts: dict[tuple[int, Task], str] = {}
        self.made: dict[tuple[int, int, int], str] = {}  # (stage, micro-batch, tensor), sent from
        self.initializers: list[str] = []
        self.initial: dict[tuple[int, int], str] = {}  # (stage, handle) -> reference
        self.losses: list[str] = []
        self.transfers = [_transfer(device) for device in devices]
        self.outside: dict[tuple[int, int, int], str] = {}  # what was swapped out, by which name
        self.deferred = moving_averages(self.graph) if deferred_batch_norm else {}
        if deferred_batch_norm and not self.deferred:
            raise UnsupportedGraphError(
                f"{self.graph.name} has no batch norm to defer: leave --deferred-batch-norm out"
            )
        self.means: dict[int, str] = {}  # of the whole batch, by the tensor of a micro-batch's
        self.skipped = {op_id for each in self.deferred.values() for op_id in each.ops}

    def build(self) -> PipelineGraph:
        # What one stage hands over is made before another one reads it: by clock, recomputation
        # before the backward task of the same clock (the sort is stable).
        tasks = [(t, j) for j, own in enumerate(self.schedule.tasks) for t in own]
        for task, stage in sorted(tasks, key=lambda each: each[0].clock):
            self._run_task(stage, task)
        for stage, task, received in self.acknowledged:
            self.nodes[self.starts[stage, task]].input.append("^" + received)
        loss = self._mean_loss()
        updated = [self._update(stage) for stage in range(self.schedule.stages)]
        times = [self._times(stage) for stage in range(self.schedule.stages)]
        values = self._values()
        self._add("initialize", "NoOp", [f"^{name}" for name in self.initializers], 0)
        self._add("release", "NoOp", [f"^{name}" for name in self._destroyed()], 0)
        return self._import(loss, times, updated, values)

    # Tasks

    def _run_task(self, stage: int, task: Task) -> None:
        program, i = self.programs[stage], task.micro_batch
        scope = f"stage{stage}/batch{i}/{task.kind}"
        self.starts[stage, task] = self._timestamp(stage, f"{scope}/begin")
        self.arrivals = []
        if task.kind == "backward":
            for action in program.backward:
                self._act(stage, i, action, scope)
        elif task.kind == "recompute":
            for action in program.forward:
                if not self._is_beside(stage, action):
                    self._act(stage, i, action, scope)
        else:
            bare = self.schedule.recomputes(stage, i)
            for action in program.forward:
                if action.kind == "run" or not bare:
                    self._act(stage, i, action, scope)
        if task.kind == "forward":
            loss = (stage, i, self.graph.loss)
            if stage == self.schedule.stages - 1:
                self.losses.append(self.made[loss])
            self._keep_sent(stage, i)
        self.ends[stage, task] = self._timestamp(stage, f"{scope}/end")
        self._wait(stage, task)

    def _wait(self, stage: int, task: Task) -> None:
        """A task begins when all that it reads has arrived: waiting is no work."""
        starts = [self.starts[stage, task]]
        if self.apart and task.kind == "backward":
            own = self.schedule.tasks[stage]
            before = own[own.index(task) - 1]
            starts += [self.starts[stage, before]] if before.kind == "recompute" else []
        for start in starts:
            self.nodes[start].input.extend("^" + name for name in self.arrivals)

    def _keep_sent(self, stage: int, i: int) -> None:
        """Other stages read what the forward task made, not what a recomputation makes again."""
        made = self.made
        for t in self.partition.stages[stage].sent:
            made[stage, ~i, t] = made[stage, i, t]

    def _is_beside(self, stage: int, action: Action) -> bool:
        """Whether a recomputation leaves the action out."""
        if action.kind == "run":
            return action.id in self.programs[stage].only_beside or self._has_state(action.id)
        return self.graph.tensors[action.id].op in self.programs[stage].only_beside

    def _act(self, stage: int, i: int, action: Action, scope: str) -> None:
        if action.kind == "run":
            if action.id in self.deferred:
                self._defer(stage, i, self.deferred[action.id], scope)
            elif action.id not in self.skipped:
                self._run_op(stage, i, action.id, scope)
        elif action.kind == "recompute":
            self._copy(stage, i, action.id, f"{scope}/again{len(self.nodes)}")
        elif action.kind == "swap_out":
            self._swap_out(stage, i, action.id, scope)
        elif action.kind == "swap_in":
            self._swap_in(stage, i, action.id, scope)

    def _swap_out(self, stage: int, i: int, tensor: int, scope: str) -> None:
        name = f"{scope}/out{len(self.nodes)}/{self._flat(tensor)}"
        source = self._read(stage, i, tensor, scope)
        value = self.graph.tensors[tensor]
        self._chain_nodes(stage, self.transfers[stage].swap_out(name, source, value))
        self.outside[stage, i, tensor] = name

    def _swap_in(self, stage: int, i: int, tensor: int, scope: str) -> None:
        name = f"{scope}/in{len(self.nodes)}/{self._flat(tensor)}"
        out, value = self.outside[stage, i, tensor], self.graph.tensors[tensor]
        self._chain_nodes(stage, self.transfers[stage].swap_in(name, out, value))
        self.made[stage, i, tensor] = name

    def _chain_nodes(self, stage: int, nodes: Sequence[NodeDef]) -> None:
        """Puts the nodes of a swap at the end of the stage's order; the first one starts it, the
        last one ends it, and those between hang together by themselves."""
        for node in nodes:
            node.device = node.device or self.devices[stage]
            self.nodes[node.name] = node
        self._pin(stage, nodes[0])
        self.last[stage] = nodes[-1].name

    def _defer(self, stage: int, i: int, average: MovingAverage, scope: str) -> None:
        """Adds what the micro-batch has to say of a moving average to the sums of the step.

        The variance's is the mean square: E[x^2] = var + mean^2, of each, the variance over n and
        not, as the op gives it, over n - 1.
        """
        scope = f"{scope}/defer{average.update}"
        mean = self._read(stage, i, average.mean, scope)
        value, attrs = mean, {"T": self._dtype(average.mean)}
        if average.variance is not None:
            variance = self._read(stage, i, average.variance, scope)
            n = average.elements
            share = self._number(f"{scope}/share", (n - 1) / n, attrs["T"], stage)
            within = self._chain(stage, f"{scope}/within", "Mul", [variance, share], attrs)
            square = self._chain(stage, f"{scope}/square", "Mul", [mean, mean], attrs)
            value = self._chain(stage, f"{scope}/sum", "AddV2", [within, square], attrs)
        total = self._sum_of(stage, average)
        dtype = {"dtype": attrs["T"]}
        self._chain(stage, f"{scope}/add", "AssignAddVariableOp", [total, value], dtype)

    def _run_op(self, stage: int, i: int, op_id: int, scope: str) -> None:
        gradient = self.programs[stage].gradient_of.get(op_id)
        if gradient is None:
            self._copy(stage, i, op_id, scope)
            return
        variable = self._trainable_of(stage, op_id)
        accumulator = self._accumulator(stage, variable)
        value = self._read(stage, i, gradient, scope)
        name = f"{scope}/accumulate/{self._flat(variable)}"
        dtype = self._dtype(gradient)
        self._chain(stage, name, "AssignAddVariableOp", [accumulator, value], {"dtype": dtype})

    def _copy(self, stage: int, i: int, op_id: int, scope: str) -> None:
        """The op, behind the last one of its stage."""
        op = self.graph.ops[op_id]
        if op.type in SOURCE_TYPES:
            self._constant(stage, op_id)
            return
        inputs = [self._read(stage, i, t, scope) for t in op.inputs]
        node = self._add(f"{scope}/{op.name}", "", inputs, stage, like=self.sources[op.name])
        if self._has_state(op_id) and "seed2" in node.attr:
            node.attr["seed2"].i += i * _SEED_STRIDE  # each micro-batch draws its own numbers
        self._pin(stage, node)
        for t in op.outputs:
            self.made[stage, i, t] = _output(node.name, self.graph.tensors[t].index)

    def _has_state(self, op_id: int) -> bool:
        """Whether running the op again would change what it makes, or something else."""
        op = self.graph.ops[op_id]
        return op.stateful and op.type not in READ_TYPES | SOURCE_TYPES

    def _constant(self, stage: int, op_id: int) -> None:
        """One copy for each stage: a constant lies in memory for as long as its kernel does."""
        op = self.graph.ops[op_id]
        name = f"stage{stage}/constant/{op.name}"
        if name not in self.nodes:
            self._add(name, "", [], stage, like=self.sources[op.name])

    # What ops read

    def _read(self, stage: int, i: int, tensor: int, scope: str) -> str:
        """The reference to the latest version of a tensor on this stage."""
        t, graph = self.graph.tensors[tensor], self.graph
        producer = graph.ops[t.op]
        if tensor in self.captured:
            return self._capture(stage, tensor)
        if tensor in graph.data.inputs:
            return self._batch_part(stage, i, tensor, scope)
        if producer.type in SOURCE_TYPES:
            self._constant(stage, t.op)
            return _output(f"stage{stage}/constant/{producer.name}", t.index)
        if (stage, i, tensor) not in self.made:
            self._receive(stage, i, tensor)
        return self.made[stage, i, tensor]

    def _receive(self, stage: int, i: int, tensor: int) -> None:
        """A tensor of another stage, handed over as the module's docstring says."""
        producer = self.graph.tensors[tensor].op
        source = self.partition.stage_of[producer]
        kind = "backward" if producer in self.graph.backward else "forward"
        if source is None or source == stage:
            raise UnsupportedGraphError(
                f"op {self.graph.ops[producer].name!r} has no place in the pipeline: "
                "give other boundaries"
            )
        sent = self._task(source, kind, i)
        reading = self._reading_task(stage, i, sent)
        name = f"stage{source}/batch{i}/send{stage}/{self._flat(tensor)}"
        original = self.made.get((source, ~i, tensor)) or self.made[source, i, tensor]
        dtype = {"T": self._dtype(tensor)}
        out = self._add(name, "Identity", [original], source, dtype)
        name = f"stage{stage}/batch{i}/receive/{self._flat(tensor)}"
        into = self._add(name, "Identity", [out.name], stage, dtype)
        before = [each for each in self.schedule.tasks[stage] if each.clock < reading.clock]
        own = self.schedule.tasks[source]
        after = own[own.index(sent) + 1 :]
        if before:
            out.input.append("^" + self.ends[stage, before[-1]])
            if after and before[-1].clock < after[0].clock:
                self.acknowledged.append((source, after[0], into.name))
        self.arrivals.append(into.name)
        self.made[stage, i, tensor] = into.name

    def _task(self, stage: int, kind: str, i: int) -> Task:
        return next(
            task
            for task in self.schedule.tasks[stage]
            if (task.kind, task.micro_batch) == (kind, i)
        )

    def _reading_task(self, stage: int, i: int, sent: Task) -> Task:
        """The first of the stage's tasks on the micro-batch that can read what was sent."""
        return next(
            task
            for task in self.schedule.tasks[stage]
            if task.micro_batch == i and task.clock > sent.clock
        )

    def _batch_part(self, stage: int, i: int, tensor: int, scope: str) -> str:
        name = f"{scope}/batch/{self._flat(tensor)}"
        if name not in self.nodes:
            handle = self._batch_variable(stage, i, tensor)
            dtype = {"dtype": self._dtype(tensor)}
            self._chain(stage, name, "ReadVariableOp", [handle], dtype)
        return name

    def _batch_variable(self, stage: int, i: int, tensor: int) -> str:
        """The micro-batch's part of an input, in a variable of the stage: set once, it lies there
        as a batch does in an unpipelined step."""
        name = f"stage{stage}/batch{i}/input/{self._flat(tensor)}"
        if name in self.nodes:
            return name
        position = self.graph.data.inputs.index(tensor)
        whole = self.step.batch[position]
        dtype = self._dtype(tensor)
        shape = self.graph.tensors[tensor].shape or ()
        value = self._outer(stage, whole.name)
        axis = self._number(f"stage{stage}/axis", 0, tf.int32, stage)
        split = f"stage{stage}/split/{self._flat(tensor)}"
        count = self.schedule.micro_batches
        if split not in self.nodes:
            attrs = {"T": dtype, "num_split": count}
            self._add(split, "Split", [axis, value], stage, attrs)
        return self._variable(stage, name, shape, dtype, _output(split, i))

    def _capture(self, stage: int, tensor: int) -> str:
        """A captured constant, or the handle of a variable that lives here."""
        t = self.graph.tensors[tensor]
        if t.dtype != "resource":
            return self._outer(stage, self.captured[tensor].name)
        # A variable that no op of the line reads serves all updates: each stage has its own.
        if self.home.get(tensor, stage) != stage:
            raise UnsupportedGraphError(
                f"a variable of stage {self.home[tensor] + 1} ({self._flat(tensor)}) is used by an "
                f"op on stage {stage + 1}: give other boundaries"
            )
        key = (stage, tensor)
        if key not in self.initial:
            handle = self._outer(stage, self.captured[tensor].name)
            variable = self._variable_of(tensor)
            self.initializers.append(self._outer(stage, variable.initializer.name))
            self.initial[key] = handle
        return self.initial[key]

    def _variable_of(self, handle: int) -> tf.Variable:
        name = self.captured[handle].name
        return next(v for v in self.step.variables if v.handle.name == name)

    def _outer(self, stage: int, reference: str) -> str:
        """A copy on the stage of an op of the outer graph, with all that it is computed from."""
        name, _, index = reference.removeprefix("^").partition(":")
        prefix = f"stage{stage}/initial/"
        stack = [name]
        while stack:
            at = stack.pop()
            if prefix + at in self.nodes:
                continue
            source = self.outer[at]
            inputs = []
            for each in source.input:
                control = "^" if each.startswith("^") else ""
                inputs.append(control + prefix + each.removeprefix("^"))
                stack.append(each.removeprefix("^").partition(":")[0])
            node = self._add(prefix + at, "", inputs, stage, like=source)
            if "shared_name" in node.attr:
                node.attr["shared_name"].s = node.name.encode()
        return _output(prefix + name, int(index or 0))

    # Variables of the pipeline's own

    def _variable(
        self, stage: int, name: str, shape: Sequence[int], dtype: tf.DType, initial: str
    ) -> str:
        """A variable on the stage. Its name is the reference to its handle."""
        attrs = {"dtype": dtype, "shape": tf.TensorShape(shape), "shared_name": name}
        self._add(name, "VarHandleOp", [], stage, attrs)
        self._add(f"{name}/assign", "AssignVariableOp", [name, initial], stage, {"dtype": dtype})
        self.initializers.append(f"{name}/assign")
        return name

    def _accumulator(self, stage: int, variable: int) -> str:
        """The sum of a variable's gradients over the micro-batches of a step."""
        name = f"stage{stage}/gradient/{self._flat(variable)}"
        if name not in self.nodes:
            value = self._variable_of(variable)
            self._add_zeros(stage, name, static_shape(value), value.dtype)
        return name

    def _sum_of(self, stage: int, average: MovingAverage) -> str:
        """The sum, over the micro-batches of a step, of what a moving average will move by."""
        name = f"stage{stage}/average/{average.update}"
        if name not in self.nodes:
            shape = self.graph.tensors[average.mean].shape or ()
            self._add_zeros(stage, name, shape, self._dtype(average.mean))
        return name

    def _add_zeros(self, stage: int, name: str, shape: Sequence[int], dtype: tf.DType) -> None:
        """A variable that starts at 0."""
        dims = self._add(f"{name}/shape", "Const", [], stage, _const(shape, tf.int32)).name
        zero = self._number(f"stage{stage}/zero/{dtype.name}", 0, dtype, stage)
        attrs = {"T": dtype, "index_type": tf.int32}
        self._add(f"{name}/zeros", "Fill", [dims, zero], stage, attrs)
        self._variable(stage, name, shape, dtype, f"{name}/zeros")

    # The end of a step

    def _mean_loss(self) -> str:
        stage = self.schedule.stages - 1
        dtype = self._dtype(self.graph.loss)
        count = len(self.losses)
        self._chain(stage, "loss/sum", "AddN", self.losses, {"T": dtype, "N": count})
        share = self._number("loss/share", 1 / count, dtype, stage)
        self._chain(stage, "loss/mean", "Mul", ["loss/sum", share], {"T": dtype})
        return "loss/mean"

    def _update(self, stage: int) -> str:
        """Runs the step's own updates on the mean gradients, and empties the accumulators."""
        program = self.programs[stage]
        scope = f"stage{stage}/update"
        for op_id, gradient in program.gradient_of.items():
            variable = self._trainable_of(stage, op_id)
            accumulator = self._accumulator(stage, variable)
            flat, dtype = self._flat(variable), self._dtype(gradient)
            mean = self._take_mean(stage, accumulator, flat, dtype)
            self._copy_late(stage, op_id, scope, {gradient: mean})
        for average in self.deferred.values():
            if self.partition.stage_of[average.update] == stage:
                self._move(stage, average, scope)
        for op_id in self._bookkeeping(stage):
            self._copy_late(stage, op_id, scope, {})
        return self._timestamp(stage, f"{scope}/end")

    def _take_mean(self, stage: int, accumulator: str, flat: str, dtype: tf.DType) -> str:
        """The mean over the micro-batches of what was added up; the sum is 0 again."""
        scope = f"stage{stage}/update"
        share = self._number(
            f"{scope}/share/{dtype.name}", 1 / self.schedule.micro_batches, dtype, stage
        )
        one = self._number(f"{scope}/one/{dtype.name}", 1, dtype, stage)
        total, copy = f"{scope}/total/{flat}", f"{scope}/copy/{flat}"
        empty, mean = f"{scope}/empty/{flat}", f"{scope}/mean/{flat}"
        # Subtracted from itself, the sum is 0 in its own buffer. A new one would land in
        # another place of the arena, step by step.
        self._chain(stage, total, "ReadVariableOp", [accumulator], {"dtype": dtype})
        self._chain(stage, copy, "Mul", [total, one], {"T": dtype})
        self._chain(stage, empty, "AssignSubVariableOp", [accumulator, copy], {"dtype": dtype})
        return self._chain(stage, mean, "Mul", [copy, share], {"T": dtype})

    def _move(self, stage: int, average: MovingAverage, scope: str) -> None:
        """Moves an average by the whole batch's mean or variance, over N - 1 as the op's."""
        key, dtype = str(average.update), self._dtype(average.mean)
        mean = self._take_mean(stage, self._sum_of(stage, average), f"average/{key}", dtype)
        if average.variance is None:
            self.means[average.mean] = mean
            self._copy_late(stage, average.update, scope, {average.mean: mean})
            return
        attrs = {"T": dtype}
        count = average.elements * self.schedule.micro_batches
        within = self._number(f"{scope}/bessel/{key}", count / max(count - 1, 1), dtype, stage)
        middle = self.means[average.mean]
        square = self._chain(stage, f"{scope}/square/{key}", "Mul", [middle, middle], attrs)
        biased = self._chain(stage, f"{scope}/biased/{key}", "Sub", [mean, square], attrs)
        variance = self._chain(stage, f"{scope}/variance/{key}", "Mul", [biased, within], attrs)
        self._copy_late(stage, average.update, scope, {average.variance: variance})

    def _copy_late(self, stage: int, op_id: int, scope: str, given: dict[int, str]) -> None:
        """An update, with what it reads that is neither given nor made by the stage's tasks."""
        op = self.graph.ops[op_id]
        if f"{scope}/{op.name}" in self.nodes:
            return
        inputs = []
        for t in op.inputs:
            producer = self.graph.tensors[t].op
            if t in given:
                inputs.append(given[t])
            elif t in self.captured or self.graph.ops[producer].type in SOURCE_TYPES:
                inputs.append(self._read(stage, 0, t, scope))
            else:
                self._copy_late(stage, producer, scope, given)
                name = f"{scope}/{self.graph.ops[producer].name}"
                inputs.append(_output(name, self.graph.tensors[t].index))
        node = self._add(f"{scope}/{op.name}", "", inputs, stage, like=self.sources[op.name])
        self._pin(stage, node)

    def _bookkeeping(self, stage: int) -> list[int]:
        """Updates of what belongs to no stage, such as powers of Adam's decay, where it is used."""
        found = []
        for op in self.graph.ops:
            handles = [t for t in op.inputs if t in self.captured and t not in self.home]
            here = any((stage, t) in self.initial for t in handles)
            if op.stateful and not op.outputs and here and op.type != "NoOp":
                found.append(op.id)
        return found

    def _trainable_of(self, stage: int, update: int) -> int:
        trainable = self.partition.stages[stage].trainable
        return next(t for t in self.graph.ops[update].inputs if t in trainable)

    def _times(self, stage: int) -> str:
        own = self.schedule.tasks[stage]
        stamps = [name[stage, task] for task in own for name in (self.starts, self.ends)]
        attrs = {"T": tf.float64, "N": len(stamps), "axis": 0}
        return self._add(f"stage{stage}/times", "Pack", stamps, stage, attrs).name

    def _values(self) -> dict[str, str]:
        """Reads of all variables of the step, to be fetched between steps."""
        found = {}
        for (stage, handle), reference in sorted(self.initial.items()):
            variable = self._variable_of(handle)
            name = f"stage{stage}/value/{self._flat(handle)}"
            self._add(name, "ReadVariableOp", [reference], stage, {"dtype": variable.dtype})
            found.setdefault(variable.name, name)
        return found

    def _destroyed(self) -> list[str]:
        """An op for each variable that takes its memory back."""
        handles = [node for node in self.nodes.values() if node.op == "VarHandleOp"]
        stages = {device: stage for stage, device in enumerate(self.devices)}
        return [
            self._add(
                f"{node.name}/release", "DestroyResourceOp", [node.name], stages[node.device]
            ).name
            for node in handles
        ]

    # Nodes

    def _timestamp(self, stage: int, name: str) -> str:
        return self._chain(stage, name, "Timestamp", [], {})

    def _number(self, name: str, value: float, dtype: tf.DType, stage: int) -> str:
        if name not in self.nodes:
            self._add(name, "Const", [], stage, _const(value, dtype))
        return name

    def _chain(
        self, stage: int, name: str, op: str, inputs: Sequence[str], attrs: dict[str, Any]
    ) -> str:
        self._pin(stage, self._add(name, op, inputs, stage, attrs))
        return name

    def _pin(self, stage: int, node: NodeDef) -> None:
        """Puts a node at the end of its stage's order."""
        if self.last[stage]:
            node.input.append("^" + self.last[stage])
        self.last[stage] = node.name

    def _add(
        self,
        name: str,
        op: str,
        inputs: Iterable[str],
        stage: int,
        attrs: dict[str, Any] | None = None,
        *,
        like: NodeDef = None,
    ) -> NodeDef:
        node = tf.compat.v1.NodeDef()
        if like is None:
            node.op = op
        else:
            node.CopyFrom(like)
            node.attr.pop("_class", None)  # colocation with ops by their old names
            del node.input[:]
        node.name = name
        node.device = self.devices[stage]
        node.input.extend(inputs)
        for key, value in (attrs or {}).items():
            node.attr[key].CopyFrom(_attr(value))
        self.nodes[name] = node
        return node

    def _dtype(self, tensor: int) -> tf.DType:
        return tf.as_dtype(self.graph.tensors[tensor].dtype)

    def _flat(self, tensor: int) -> str:
        if tensor in self.captured:
            return self.captured[tensor].name.replace(":", "_")
        return self.graph.label(tensor).replace(":", "_")

    def _import(
        self,
        loss: str,
        times: Sequence[str],
        updated: Sequence[str],
        values: dict[str, str],
    ) -> PipelineGraph:
        source = self.step.trace.graph_def
        graph_def = tf.compat.v1.GraphDef(
            node=self.nodes.values(), library=source.library, versions=source.versions
        )
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")

        def tensor(name: str) -> tf.Tensor:
            return graph.get_tensor_by_name(f"{name}:0")

        return PipelineGraph(
            graph=graph,
            initialize=graph.get_operation_by_name("initialize"),
            release=graph.get_operation_by_name("release"),
            loss=tensor(loss),
            times=tuple(map(tensor, times)),
            updated=tuple(map(tensor, updated)),
            values={name: tensor(value) for name, value in values.items()},
            averages=frozenset(
                self._variable_of(each.variable).name for each in self.deferred.values()
            ),
            parameters=tuple(
                sum(math.prod(static_shape(self._variable_of(t))) for t in stage.trainable)
                for stage in self.partition.stages
            ),
        )


class _Program:
    """A stage's program as its tasks run it, in ids of the whole graph.

    Attributes:
        forward: the actions of a forward task and of a recomputation.
        backward: likewise; updates stand for the addition to the accumulator.
        only_beside: forward ops that a recomputation leaves out.
        gradient_of: for each update of a weight, the gradient that it applies.
    """

    def __init__(self, whole: StepGraph, stage: StageGraph, plan: Sequence[Action]):
        own = stage.graph
        program = plan or [Action("run", op_id) for op_id in base_order(own)]
        split = split_program(own, program)
        self.forward = list(_translated(program[:split], own, whole))
        self.backward = list(_translated(program[split:], own, whole))
        updates = set(stage.updates)
        late = [action.id for action in self.backward if action.kind == "run"]
        self.gradient_of = {
            update: max(
                (t for t in whole.ops[update].inputs if whole.tensors[t].op in whole.backward),
                key=lambda t: whole.tensors[t].size_bytes,
            )
            for update in late
            if update in updates
        }
        needed, early = set(late), [a.id for a in self.forward if a.kind == "run"]
        for op_id in reversed(early):
            if any(c in needed for t in whole.ops[op_id].outputs for c in whole.consumers[t]):
                needed.add(op_id)
        self.only_beside = frozenset(early) - needed


def _translated(actions: Iterable[Action], own: StepGraph, whole: StepGraph) -> Iterable[Action]:
    """A stage's actions in the whole graph's ids, without the ops that stand for other stages.

    Reservations are left out: they fit one step in an arena of its own, and here many micro-batches
    share one. Nothing waits for a copy: it has ended before the next action starts.
    """
    ids = {op.name: op.id for op in whole.ops}
    for action in actions:
        if action.kind in ("run", "recompute"):
            op = own.ops[action.id]
            if op.type not in _STAND_INS:
                yield Action(action.kind, ids[op.name])
        elif action.kind in ("swap_out", "swap_in"):
            t = own.tensors[action.id]
            yield Action(action.kind, whole.ops[ids[own.ops[t.op].name]].outputs[t.index])


# Ops of a stage's graph that stand for other stages.
_STAND_INS = frozenset({SEND, RECEIVE, "Placeholder"})


def _transfer(device: str) -> HostTransfer:
    """How the tensors of a stage leave for its host."""
    place, _, kind = device.rpartition("/device:")
    if kind.startswith("GPU"):
        return DeviceCopyTransfer(device=device, host=f"{place}/device:CPU:0")
    return SerializeTransfer()


def _output(name: str, index: int) -> str:
    return f"{name}:{index}" if index else name


def _const(value: Any, dtype: tf.DType) -> dict[str, Any]:
    return {"dtype": dtype, "value": tf.make_tensor_proto(value, dtype)}


def _attr(value: Any) -> Any:
    """An AttrValue of a dtype, shape, tensor, string or whole number."""
    made = tf.compat.v1.AttrValue()
    if isinstance(value, tf.DType):
        made.type = value.as_datatype_enum
    elif isinstance(value, tf.TensorShape):
        made.shape.CopyFrom(value.as_proto())
    elif isinstance(value, str):
        made.s = value.encode()
    elif isinstance(value, int):
        made.i = value
    else:
        made.tensor.CopyFrom(value)
    return made
