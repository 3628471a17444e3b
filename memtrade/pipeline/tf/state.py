"""What lies on the stages from step to step (variables, sums of gradients, the batch, constants);
and the step that they are cut out of, traced and not allocated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.models.base import Model
from memtrade.op_types import SOURCE_TYPES
from memtrade.pipeline.design.batch_norm import MovingAverage
from memtrade.pipeline.design.partition import Partition
from memtrade.pipeline.design.runnable import check_runs
from memtrade.pipeline.tf.nodes import NodeWriter, const, output
from memtrade.tf.build import make_batch, make_step
from memtrade.tf.extract import Trace, trace
from memtrade.tf.variables import static_shape

# In which order variables are set: the step's own, sums of gradients, the batch, what is the
# harness's own; within these, by a number.
_Place = tuple[int, int]
_STEP, _SUM, _BATCH, _OWN = range(4)


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


def draw_step(
    model: Model, whole: Model, *, optimizer: str, learning_rate: float | None = None
) -> DrawnStep:
    """Traces the step of `model`, one micro-batch of `whole`, within a graph of its own.

    Raises UnsupportedGraphError for models that no pipeline can run.
    """
    check_runs(model)
    outer = tf.Graph()
    with outer.as_default():
        step = make_step(model, optimizer=optimizer, learning_rate=learning_rate)
        traced = trace(step)
        return DrawnStep(traced, outer, step.variables(), make_batch(whole))


class StageState:
    """Writes what lies on a stage when it is first asked for. Ids are of the whole step's graph.

    Args:
        writer: of the nodes.
        micro_batches: into which the batch is cut.
    """

    def __init__(
        self, writer: NodeWriter, step: DrawnStep, partition: Partition, micro_batches: int
    ):
        self.writer, self.step, self.partition = writer, step, partition
        self.micro_batches = micro_batches
        self.graph: StepGraph = step.trace.graph
        self.sources = {node.name: node for node in step.trace.graph_def.node}
        self._outer_nodes = {node.name: node for node in step.outer.as_graph_def().node}
        concrete = step.trace.concrete
        self.captured = dict(zip(self.graph.data.captures, concrete.captured_inputs, strict=True))
        self._home = {t: j for j, s in enumerate(partition.stages) for t in s.variables}
        self._variables = {v.handle.name: v for v in step.variables}
        self._initializers: list[list[tuple[_Place, str]]] = [[] for _ in partition.stages]
        self._handles: dict[tuple[int, int], str] = {}  # (stage, handle) -> reference

    # What ops read

    def standing(self, stage: int, tensor: int) -> str | None:
        """The reference to what no task makes: a constant, or what the step captured."""
        if tensor in self.captured:
            return self._capture(stage, tensor)
        producer = self.graph.ops[self.graph.tensors[tensor].op]
        if producer.type in SOURCE_TYPES:
            return output(self.constant(stage, producer.id), self.graph.tensors[tensor].index)
        return None

    def constant(self, stage: int, op_id: int) -> str:
        """One copy for each stage: a constant lies in memory for as long as its kernel does."""
        op = self.graph.ops[op_id]
        name = f"stage{stage}/constant/{op.name}"
        if name not in self.writer.nodes:
            self.writer.add(stage, name, self.sources[op.name], [])
        return name

    def batch_part(self, stage: int, i: int, tensor: int, scope: str) -> str:
        """A micro-batch's part of an input of the step, read behind the stage's last op."""
        name = f"{scope}/batch/{self.flat(tensor)}"
        if name not in self.writer.nodes:
            handle = self._batch_variable(stage, i, tensor)
            dtype = {"dtype": self.dtype(tensor)}
            self.writer.chain(stage, name, "ReadVariableOp", [handle], dtype)
        return name

    # Variables of the pipeline's own

    def zeros(
        self,
        stage: int,
        name: str,
        shape: Sequence[int],
        dtype: tf.DType,
        place: _Place = (_OWN, 0),
        *,
        on_host: bool = False,
    ) -> str:
        """A variable on the stage, or its host, that starts at 0; written once. The reference to
        its handle."""
        if name in self.writer.nodes:
            return name
        add, number = self.writer.add, self.writer.number
        where = f"stage{stage}/{'host_' if on_host else ''}zero/{dtype.name}"
        zero = number(stage, where, 0, dtype, on_host=on_host)
        dims = f"{name}/shape"
        add(stage, dims, "Const", [], const(shape, tf.int32), on_host=on_host)
        # Filled and not a constant: the first update would copy that, into any place of the arena.
        attrs, filled = {"T": dtype, "index_type": tf.int32}, f"{name}/zeros"
        add(stage, filled, "Fill", [dims, zero], attrs, on_host=on_host)
        return self._variable(stage, name, shape, dtype, filled, place, on_host=on_host)

    def loss_sum(self, stage: int) -> str:
        """The sum of the losses over the micro-batches of a step."""
        return self.zeros(stage, f"stage{stage}/loss", (), self.dtype(self.graph.loss))

    def accumulator(self, stage: int, variable: int) -> str:
        """The sum of a variable's gradients over the micro-batches of a step."""
        name, value = f"stage{stage}/gradient/{self.flat(variable)}", self.variable_of(variable)
        place = (_SUM, self.partition.stages[stage].trainable.index(variable))
        return self.zeros(stage, name, static_shape(value), value.dtype, place)

    def sum_of(self, stage: int, average: MovingAverage) -> str:
        """The sum, over the micro-batches of a step, of what a moving average will move by."""
        mean, name = average.mean, f"stage{stage}/average/{average.update}"
        place = (_SUM, len(self.graph.tensors) + average.update)
        return self.zeros(
            stage, name, self.graph.tensors[mean].shape or (), self.dtype(mean), place
        )

    # Names and types

    def variable_of(self, handle: int) -> tf.Variable:
        return self._variables[self.captured[handle].name]

    def trainable_of(self, stage: int, update: int) -> int:
        """The handle of the weight that the op updates."""
        trainable = self.partition.stages[stage].trainable
        return next(t for t in self.graph.ops[update].inputs if t in trainable)

    def parameters(self, stage: int) -> int:
        """The number of elements of the stage's trainable variables."""
        trainable = self.partition.stages[stage].trainable
        return sum(math.prod(static_shape(self.variable_of(t))) for t in trainable)

    def bookkeeping(self, stage: int) -> list[int]:
        """Updates of what belongs to no stage, such as powers of Adam's decay, where it is used."""
        found = []
        for op in self.graph.ops:
            handles = [t for t in op.inputs if t in self.captured and t not in self._home]
            here = any((stage, t) in self._handles for t in handles)
            if op.stateful and not op.outputs and here and op.type != "NoOp":
                found.append(op.id)
        return found

    def dtype(self, tensor: int) -> tf.DType:
        return tf.as_dtype(self.graph.tensors[tensor].dtype)

    def flat(self, tensor: int) -> str:
        """A name for the tensor that can be part of a node's."""
        if tensor in self.captured:
            return self.captured[tensor].name.replace(":", "_")
        return self.graph.label(tensor).replace(":", "_")

    # All of it

    def values(self) -> dict[str, str]:
        """Reads of all variables of the step, to be fetched between steps."""
        found = {}
        for (stage, handle), reference in sorted(self._handles.items()):
            variable = self.variable_of(handle)
            name = f"stage{stage}/value/{self.flat(handle)}"
            dtype = {"dtype": variable.dtype}
            self.writer.add(stage, name, "ReadVariableOp", [reference], dtype)
            found.setdefault(variable.name, name)
        return found

    def begin_and_end(self) -> None:
        """The ops "initialize" and "release", of all that was asked for."""
        add = self.writer.add
        last = [self._chain_initializers(stage) for stage in range(len(self._initializers))]
        add(0, "initialize", "NoOp", [f"^{name}" for name in last if name])
        handles = [node for node in self.writer.nodes.values() if node.op == "VarHandleOp"]
        released = []
        for handle in handles:
            node = add(0, f"{handle.name}/release", "DestroyResourceOp", [handle.name])
            node.device = handle.device
            released.append(f"^{node.name}")
        add(0, "release", "NoOp", released)

    def _capture(self, stage: int, tensor: int) -> str:
        """A captured constant, or the handle of a variable that lives here."""
        if self.graph.tensors[tensor].dtype != "resource":
            return self._outer(stage, self.captured[tensor].name)
        # A variable that no op of the line reads serves all updates: each stage has its own.
        if self._home.get(tensor, stage) != stage:
            raise UnsupportedGraphError(
                f"a variable of stage {self._home[tensor] + 1} ({self.flat(tensor)}) is used by an "
                f"op on stage {stage + 1}: give other boundaries"
            )
        key = (stage, tensor)
        if key not in self._handles:
            handle = self._outer(stage, self.captured[tensor].name)
            variable = self.variable_of(tensor)
            initializer = self._outer(stage, variable.initializer.name)
            position = self.graph.data.captures.index(tensor)
            self._initializers[stage].append(((_STEP, position), initializer))
            self._handles[key] = handle
        return self._handles[key]

    def _batch_variable(self, stage: int, i: int, tensor: int) -> str:
        """The micro-batch's part of an input, in a variable of the stage: set once, it lies there
        as a batch does in an unpipelined step."""
        name = f"stage{stage}/batch{i}/input/{self.flat(tensor)}"
        if name in self.writer.nodes:
            return name
        position = self.graph.data.inputs.index(tensor)
        dtype = self.dtype(tensor)
        shape = self.graph.tensors[tensor].shape or ()
        value = self._outer(stage, self.step.batch[position].name)
        axis = self.writer.number(stage, f"stage{stage}/axis", 0, tf.int32)
        split = f"stage{stage}/split/{self.flat(tensor)}"
        if split not in self.writer.nodes:
            attrs = {"T": dtype, "num_split": self.micro_batches}
            self.writer.add(stage, split, "Split", [axis, value], attrs)
        return self._variable(stage, name, shape, dtype, output(split, i), (_BATCH, i))

    def _outer(self, stage: int, reference: str) -> str:
        """A copy on the stage of an op of the outer graph, with all that it is computed from."""
        name, _, index = reference.removeprefix("^").partition(":")
        prefix = f"stage{stage}/initial/"
        stack = [name]
        while stack:
            at = stack.pop()
            if prefix + at in self.writer.nodes:
                continue
            source = self._outer_nodes[at]
            inputs = []
            for each in source.input:
                control = "^" if each.startswith("^") else ""
                inputs.append(control + prefix + each.removeprefix("^"))
                stack.append(each.removeprefix("^").partition(":")[0])
            node = self.writer.add(stage, prefix + at, source, inputs)
            if "shared_name" in node.attr:
                node.attr["shared_name"].s = node.name.encode()
        return output(prefix + name, int(index or 0))

    def _variable(
        self,
        stage: int,
        name: str,
        shape: Sequence[int],
        dtype: tf.DType,
        initial: str,
        place: _Place,
        *,
        on_host: bool = False,
    ) -> str:
        assign, attrs = f"{name}/assign", {"dtype": dtype}
        shaped = attrs | {"shape": tf.TensorShape(shape), "shared_name": name}
        self.writer.add(stage, name, "VarHandleOp", [], shaped, on_host=on_host)
        inputs = [name, initial]
        self.writer.add(stage, assign, "AssignVariableOp", inputs, attrs, on_host=on_host)
        self._initializers[stage].append((place, assign))
        return name

    def _chain_initializers(self, stage: int) -> str:
        """Puts a stage's into the order in which the simulator lays variables down: where they
        lie decides on the holes between them. The last one."""
        nodes, seen, last = self.writer.nodes, set[str](), ""
        for _, initializer in sorted(self._initializers[stage]):
            stack = [initializer]
            while stack:
                name = stack.pop()
                if name in seen:
                    continue
                seen.add(name)
                node = nodes[name]
                stack.extend(each.removeprefix("^").partition(":")[0] for each in node.input)
                if last and node.op not in ("Const", "VarHandleOp"):
                    node.input.append("^" + last)
            last = initializer
        return last
