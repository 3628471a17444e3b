"""The rewriter: a traced step and a plan's actions become a new training step.

    actions   run conv1 · run relu1 · swap_out relu1 · ...  · swap_in relu1 · recompute conv2 · ...
    nodes     conv1 ──► relu1 ──► out/relu1 ── ... ──► in/relu1 ──► again/conv2 ──► ...
              ▲ data edges to the latest version of each input
              ▲ control edges: pinned, from each action to the next; dataflow, only those that hold
                a clone or a swap-in back until the backward op before it has run

It is the only place that changes graphs, and it decides nothing. O(nodes + edges).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memtrade.facts.variables import goes_by_rows, keeps_place, written_rank
from memtrade.graph import Op
from memtrade.kernel_pairs import bias_gradients, biases
from memtrade.op_types import BODY_TYPES, HANDED_TYPES, LOOP_TYPES, SEND, SOURCE_TYPES
from memtrade.plan import Plan, check_plan
from memtrade.simulate.spared import spared
from memtrade.simulate.summands import sums_as_they_came
from memtrade.tf.assigned import write_by_rows, write_in_place
from memtrade.tf.extract import Trace
from memtrade.tf.graft import graft
from memtrade.tf.in_place import settle
from memtrade.tf.meetings import check_meetings
from memtrade.tf.nodes import copied, make_node, with_nodes
from memtrade.tf.swap import HostTransfer, NodeDef, empty_node, size_node

# Names of new nodes start with this; users find them in TensorBoard and in traces.
SCOPE = "memtrade"

# Ops whose shape functions want to know their inputs' shapes, and what comes back from the host has
# none by itself: some refuse what they are told then; StridedSlice does not look at the constants
# where it begins and ends, and a graph keeps what was looked at.
_WANTING_SHAPES = frozenset({"MatrixDiagV2", "MatrixDiagV3", "StridedSlice"})


def apply_plan(trace: Trace, plan: Plan, transfer: HostTransfer) -> Callable[..., tf.Tensor]:
    """The step that `plan` makes of `trace`, as a tf.function of the same batch.

    Raises InvalidPlanError where the plan does not fit the graph. A plan without actions gives
    the step itself back.
    """
    check_plan(plan, trace.graph)
    if not plan.actions:
        return trace.step.function
    settle(trace, tables=True)
    return import_step(trace, rewrite(trace, plan, transfer))


def rewrite(
    trace: Trace, plan: Plan, transfer: HostTransfer, scope: str = SCOPE
) -> tf.compat.v1.GraphDef:
    """The rewritten GraphDef. Inputs, outputs and updates keep their names, new nodes have theirs
    in `scope`."""
    return _Rewriter(trace, plan, transfer, scope).graph_def()


def import_step(trace: Trace, graph_def: Any) -> Any:
    """A tf.function that runs `graph_def`, a rewriting of the trace's own.

    Raises InvalidPlanError where devices would wait for each other for ever.
    """
    check_meetings(graph_def, trace.concrete, trace.graph.data)
    return graft(trace.concrete, graph_def, trace.step.specs)


@dataclass
class _Rewriter:
    trace: Trace
    plan: Plan
    transfer: HostTransfer
    scope: str = SCOPE

    def __post_init__(self) -> None:
        self.graph = self.trace.graph
        self.nodes: list[NodeDef] = []
        self.sources = {node.name: node for node in self.trace.graph_def.node}
        # The name under which each tensor's latest version is read.
        self.latest = [self._reference(t.id) for t in self.graph.tensors]
        self.clones = [0] * len(self.graph.ops)
        self.swaps_in = [0] * len(self.graph.tensors)
        self.previous = ""  # pinned: the action that the next one waits for
        self.awaited: list[str] = []  # what else the action that comes waits for
        self.shapes_wanted = any(op.type in _WANTING_SHAPES for op in self.graph.ops)
        self.without = spared(self.graph)
        self.bias_gradients = bias_gradients(self.graph)
        self.biases = biases(self.graph)
        self.sums = sums_as_they_came(self.graph, self.plan.actions)
        self.at = 0  # the index of the action
        self.holding: list[str] = []  # what holds summands until the action has run
        self.ran = -1  # the op of the action before, if that ran one
        self.filter_gradients: dict[int, NodeDef] = {}  # of the bias gradient that may follow
        self.reserved: list[str] = []  # reservations for the action that comes
        self.numbers: dict[str, str] = {}  # constants that the step did not have: see `brought`
        self.trigger = ""  # dataflow: the last backward op that ran

    def graph_def(self) -> Any:
        for index, action in enumerate(self.plan.actions):
            self.at = index
            getattr(self, f"_{action.kind}")(action.id)
            self.awaited += self.holding
            self.holding = []
            if self.reserved and action.kind != "reserve":
                self._release()
        return with_nodes(self.trace.graph_def, self.nodes)

    def _run(self, op_id: int) -> None:
        op = self.graph.ops[op_id]
        if op.type == "Placeholder" or op.type in HANDED_TYPES:  # the new function brings its
            return  # own, and TensorFlow hands tensors over
        if op_id in self.without.left_out:
            return
        node = self._copy(op_id, op.name)
        if keeps_place(op, self.graph):
            rank = written_rank(op, self.graph)
            self.nodes.extend(write_in_place(node, rank, self.numbers))
        first = node
        if goes_by_rows(op, self.graph):
            *constants, first, count, rows = write_by_rows(node, self.numbers)
            self.nodes.extend((*constants, first, count, rows))
        self.nodes.append(node)
        beside = self.filter_gradients.pop(op_id, None)
        if beside is not None and self.plan.order == "pinned":
            # One kernel with it, if both wait for the same.
            node.input.extend(name for name in beside.input if name.startswith("^"))
            self.awaited.append(op.name)
            return
        node.input.extend("^" + name for name in self._waits(op))
        if op.type in SOURCE_TYPES or self.graph.folded[op_id]:
            return
        self._pin_op(op_id, node, first)
        self._await_body(op, node)
        if op_id in self.bias_gradients:
            self.filter_gradients = {self.bias_gradients[op_id]: node}
        if op_id == self.graph.turn or op_id in self.graph.descendants:
            self.trigger = op.name

    def _waits(self, op: Op) -> Iterator[str]:
        """The names of the ops that `op` is to wait for. What the runtime computes once it would
        compute in each step again, at any time, if someone waited for it: what it waits for is."""
        waits, seen = [*op.controls], set()
        while waits:
            control = waits.pop(0)
            before = self.graph.ops[control]
            if control in seen or before.type == SEND:
                continue
            seen.add(control)
            if self._is_in_no_step(control):
                waits.extend((*before.controls, *(self.graph.tensors[t].op for t in before.inputs)))
            else:
                yield before.name

    def _is_in_no_step(self, op_id: int) -> bool:
        """Whether no step runs it: what it makes is a constant by then, or nobody reads that."""
        return self.graph.folded[op_id] or op_id in self.without.left_out

    def _recompute(self, op_id: int) -> None:
        if self._is_in_no_step(op_id):
            return
        op = self.graph.ops[op_id]
        self.clones[op_id] += 1
        node = self._copy(op_id, f"{self.scope}/again{self.clones[op_id]}/{op.name}")
        self.nodes.append(node)
        for t in op.outputs:
            self.latest[t] = self._reference(t, node.name)
        self._pin_op(op_id, node, again=True)
        self._await_body(op, node)

    def _await_body(self, op: Op, node: NodeDef) -> None:
        """Has the action that comes wait for all that a branch or loop makes. TensorFlow opens it,
        and what nobody waits for runs at any time: the gradient of its argument that the step does
        not want would hold a variable's value while the variable is updated, and so copied."""
        if op.type not in BODY_TYPES or self.plan.order != "pinned":
            return
        dtypes = node.attr["T" if op.type in LOOP_TYPES else "Tout"].list.type
        for i, (t, dtype) in enumerate(zip(op.outputs, dtypes, strict=True)):
            made = [self._reference(t, node.name)]
            reader = make_node("Identity", f"{self.scope}/made{i}/{node.name}", made)
            reader.attr["T"].type = dtype
            self.nodes.append(reader)
            self.awaited.append(reader.name)

    def _swap_out(self, tensor: int) -> None:
        name = f"{self.scope}/out/{self._flat_label(tensor)}"
        made = self.transfer.swap_out(name, self.latest[tensor], self.graph.tensors[tensor])
        self.nodes.extend(made)
        if self.transfer.blocking:
            self._pin(made[0], made[-1])

    def _wait(self, tensor: int) -> None:
        if not self.transfer.blocking:
            self.awaited.append(f"{self.scope}/out/{self._flat_label(tensor)}")

    def _shaped(self, swap_in: NodeDef, tensor: int) -> list[NodeDef]:
        """What says the shape of a tensor that is there again, where an op wants to know it."""
        back = self.graph.tensors[tensor]
        if not self.shapes_wanted or back.shape is None or tensor in self.graph.data.sized:
            return []
        name, shape = f"{swap_in.name}/shaped", tf.TensorShape(back.shape)
        return [make_node("EnsureShape", name, [swap_in.name], T=back.dtype, shape=shape)]

    def _swap_in(self, tensor: int) -> None:
        self.swaps_in[tensor] += 1
        label = self._flat_label(tensor)
        made = self.transfer.swap_in(
            f"{self.scope}/in{self.swaps_in[tensor]}/{label}",
            f"{self.scope}/out/{label}",
            self.graph.tensors[tensor],
        )
        made += self._shaped(made[-1], tensor)
        self.nodes.extend(made)
        self.latest[tensor] = made[-1].name
        self._hold(made[0])
        if self.transfer.blocking:
            self._pin(made[0], made[-1])
        elif self.previous:
            made[0].input.append("^" + self.previous)

    def _reserve(self, size_bytes: int) -> None:
        """An allocation that is held until the next action has run; see `_pin`."""
        made = empty_node(f"{self.scope}/reserve{len(self.nodes)}", size_bytes)
        self.nodes.append(made)
        self._pin(made, made)
        self.reserved.append(made.name)

    def _release(self) -> None:
        """Reads what was reserved for the action before, so that it lives until here: by ops that
        hand it on, as one that made anything would ask for memory where there is none left."""
        for name in self.reserved:
            reader = make_node("Identity", f"{name}/release", [name], T="float32")
            self.nodes.append(reader)
            reader.input.append("^" + self.previous)
            self.previous = reader.name
        self.reserved = []

    def _copy(self, op_id: int, name: str) -> NodeDef:
        """A node of op `op_id` that reads the latest version of its inputs, without controls."""
        op = self.graph.ops[op_id]
        read = [self.latest[t] for t in self.without.inputs(op)]
        node = copied(self.sources[op.name], name, read)
        if op.type == "AddN" and any((op_id, place) in self.without.reads for place in (0, 1)):
            del node.attr["N"]  # one of the two is a number in place of a tensor of it
            node.op = "AddV2"
        if "parallel_iterations" in node.attr:  # one after the other, or the peak would vary
            node.attr["parallel_iterations"].i = 1
        if self.at in self.sums:
            self._add_up_as_it_came(node)
        return node

    def _add_up_as_it_came(self, node: NodeDef) -> None:
        order, held = self.sums[self.at]
        inputs = [*node.input]
        for i in held:
            dtype = tf.dtypes.as_dtype(node.attr["T"].type).name
            reader = size_node(f"{self.scope}/held{i}/{node.name}", inputs[i], dtype)
            reader.input.append("^" + node.name)
            self.nodes.append(reader)
            self.holding.append(reader.name)
        node.input[:] = [inputs[i] for i in order]

    def _pin_op(
        self, op_id: int, node: NodeDef, first: NodeDef | None = None, *, again: bool = False
    ) -> None:
        """Puts a run of an op, which begins with `first`, behind the previous action. Of a
        convolution and the BiasAdd right behind it neither waits for an op, or TensorFlow would not
        merge them: what they read does. A BiasAdd that stands elsewhere waits, and is not merged.
        """
        begins = first or node
        before, self.ran = self.ran, op_id
        if self.biases.get(before) == op_id:
            if self.plan.order == "pinned":
                self.awaited.append(node.name)
            return
        if op_id in self.biases:
            begins = make_node("Identity", f"{self.scope}/before/{node.name}", node.input[:1])
            begins.attr["T"].CopyFrom(node.attr["T"])
            node.input[0] = begins.name
            self.nodes.append(begins)
        # If a convolution's clone and its BiasAdd's wait for the same, TensorFlow ends the process.
        if again and not (node.op == "BiasAdd" and node.input[0].startswith(f"{self.scope}/again")):
            self._hold(begins)
        self._pin(begins, node)

    def _pin(self, first: NodeDef, last: NodeDef) -> None:
        """Puts an action behind the previous one, where the order is pinned."""
        if self.plan.order == "pinned":
            if self.previous:
                first.input.append("^" + self.previous)
            first.input.extend("^" + name for name in self.awaited)
            self.awaited = []
            self.previous = last.name

    def _hold(self, node: NodeDef) -> None:
        """Holds a clone or swap-in back, or the executor would run it at once."""
        if self.plan.order == "dataflow" and self.trigger:
            node.input.append("^" + self.trigger)

    def _reference(self, tensor: int, op_name: str | None = None) -> str:
        t = self.graph.tensors[tensor]
        name = op_name or self.graph.ops[t.op].name
        return name if t.index == 0 else f"{name}:{t.index}"

    def _flat_label(self, tensor: int) -> str:
        return self.graph.label(tensor).replace(":", "_")
