"""StepGraph: a training step as plain data, which strategies and the simulator read.

    ops ──outputs──► tensors ──consumers──► ops

Ids are positions: `graph.ops[op.id] is op` and `graph.tensors[t.id] is t`. Ops stand in the order
in which the program created them, which is a topological order. Nothing here changes after
construction, and nothing here knows TensorFlow beyond the names of its op types.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from memtrade.errors import UnsupportedGraphError
from memtrade.folding import Folding, folding_of
from memtrade.op_types import ALIAS_TYPES, GIVEN_TYPES

T = TypeVar("T")

# How a tensor's size is known that tracing does not tell.
BOUND, TRIP_COUNT, WATCHED = "bound", "trip count", "watched"

# What the backward part reads of the forward part alone (x - mean in a gradient) waits for its
# reader if it is larger than this; shapes and the like are made at once.
_LATE_BYTES = 64 * 1024


class Op(msgspec.Struct, frozen=True, gc=False):
    """One operation. `inputs` and `outputs` are tensor ids, `controls` op ids.

    `node` is the place of its definition in `GraphData.nodes`; -1 where it has none. `layer` and
    `source` say where it was made: the Keras layer or the name scope ("block1/conv"), and the line
    of the user's program ("train.py:41"); "" where nothing is known.
    """

    id: int
    name: str
    type: str
    inputs: tuple[int, ...]
    controls: tuple[int, ...]
    outputs: tuple[int, ...]
    stateful: bool
    attrs: dict[str, Any]
    node: int = -1
    layer: str = ""
    source: str = ""


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """Output `index` of op `op`. `size_bytes` is 0 for resources and unknown shapes."""

    id: int
    op: int
    index: int
    dtype: str
    shape: tuple[int, ...] | None
    size_bytes: int


class GraphData(msgspec.Struct, frozen=True):
    """What a StepGraph is made of, as it travels between processes.

    Attributes:
        inputs: tensor ids of the batch, in the order of the step's arguments.
        captures: tensor ids of what the step closes over (variable handles, constants).
        capture_bytes: bytes behind each capture: a variable's value, a constant's own.
        outputs: tensor ids that the step returns.
        control_outputs: op ids that must run although nothing reads them (the updates).
        loss: the tensor id of the loss.
        collection: tensor ids that the model or the user named as checkpoints.
        nodes: the distinct definitions of ops, each a NodeDef without name, inputs and device, as
            bytes: what it takes to run such a kernel elsewhere.
        functions: place in `nodes` of a call -> what it calls, a FunctionDefLibrary as bytes.
        values: tensor id -> the numbers in it, of small whole-number tensors that tracing knows
            (shapes, axes, paddings).
        gathered: tensor ids that the step as it came hands on together (`IdentityN`): Keras's
            optimizers do so with all gradients. Rewritten steps do not wait for the last of them.
        behind: for each input, how many captures were made before it; all, where it does not say.
        repeated: inputs that are the same tensor as an input before them -> that one.
        equal: constants, and what is made of them alone, that hold the same as one before them ->
            that one.
        uniform: constants that hold one number all over -> its type and bytes.
        sized: how tensors' sizes are known that tracing does not: BOUND, WATCHED or TRIP_COUNT.
        unsized: names of the tensors whose sizes nothing tells, and that so count as nothing.
    """

    name: str
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    captures: tuple[int, ...]
    capture_bytes: tuple[int, ...]
    outputs: tuple[int, ...]
    control_outputs: tuple[int, ...]
    loss: int
    collection: tuple[int, ...]
    nodes: tuple[bytes, ...] = ()
    functions: dict[int, bytes] = {}
    values: dict[int, tuple[int, ...]] = {}
    gathered: tuple[tuple[int, ...], ...] = ()
    behind: tuple[int, ...] = ()
    repeated: dict[int, int] = {}
    equal: dict[int, int] = {}
    uniform: dict[int, bytes] = {}
    sized: dict[int, str] = {}
    unsized: tuple[str, ...] = ()


def led_to(ops: Sequence[Op], tensors: Sequence[Tensor], start: Iterable[int]) -> set[int]:
    """Ids of the ops that make the tensors `start`, and of all that these lead to. Linear."""
    found = {tensors[t].op for t in start}
    for op in ops:
        if any(tensors[t].op in found for t in op.inputs):
            found.add(op.id)
    return found


def reached(seeds: Iterable[T], following: Callable[[T], Iterable[T]]) -> list[T]:
    """What `following` leads to from `seeds`, these first: breadth first."""
    order = dict.fromkeys(seeds)
    queue = deque(order)
    while queue:
        for each in following(queue.popleft()):
            if each not in order:
                order[each] = None
                queue.append(each)
    return list(order)


def repeats(keyed: Iterable[tuple[int, Hashable]]) -> dict[int, int]:
    """Of (number, key): each number whose key was there before -> the first one with that key."""
    first: dict[Hashable, int] = {}
    return {
        number: one for number, key in keyed if (one := first.setdefault(key, number)) != number
    }


class StepGraph:
    """A training step's graph with what follows from it: consumers, phases, aliases.

    Raises UnsupportedGraphError where the ops are not in a topological order.
    """

    def __init__(self, data: GraphData):
        self.data = data
        self.name = data.name
        self.ops, self.tensors = data.ops, data.tensors
        for op in data.ops:
            late = [data.tensors[t].op for t in op.inputs if data.tensors[t].op >= op.id]
            if late:
                raise UnsupportedGraphError(
                    f"op {op.name!r} reads {data.ops[late[0]].name!r}, which comes after it: "
                    "the graph has a loop (tf.while_loop must be functional, as in TensorFlow 2)"
                )

    @classmethod
    def from_bytes(cls, encoded: bytes) -> StepGraph:
        return cls(msgspec.msgpack.decode(encoded, type=GraphData))

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self.data)

    @cached_property
    def fingerprint(self) -> str:
        """Same graph, same fingerprint: what a saved plan is checked against.

        Everything that tells a step from another counts: ops with their attributes, tensors with
        their types, what is given, returned and updated, and which tensor is the loss. TensorFlow
        names the placeholders of captured variables after the way it was traced, so their names do
        not count.
        """
        digest = hashlib.sha256()
        for op in self.ops:
            name = "" if op.type == "Placeholder" else op.name
            attrs = sorted((key, repr(value)) for key, value in op.attrs.items())
            made = [(self.tensors[t].dtype, self.tensors[t].shape) for t in op.outputs]
            told = (name, op.type, op.stateful, op.inputs, op.controls, attrs, made)
            digest.update(repr(told).encode())
        data = self.data
        told = (data.inputs, data.captures, data.outputs, data.control_outputs, data.loss)
        digest.update(repr(told).encode())
        return digest.hexdigest()[:16]

    @cached_property
    def consumers(self) -> list[list[int]]:
        """consumers[t]: ids of the ops that read tensor t, ascending, each once."""
        consumers: list[list[int]] = [[] for _ in self.tensors]
        for op in self.ops:
            for t in dict.fromkeys(op.inputs):
                consumers[t].append(op.id)
        return consumers

    @cached_property
    def capture_bytes(self) -> dict[int, int]:
        """Tensor id of each capture -> the bytes behind it."""
        return dict(zip(self.data.captures, self.data.capture_bytes, strict=True))

    def bytes_of(self, tensors: Iterable[int]) -> int:
        """Of all of these tensors together."""
        return sum(self.tensors[t].size_bytes for t in tensors)

    def sized(self, how: str) -> list[int]:
        """Ids of the tensors whose size is known so. Those bounded by nothing are nothing."""
        return [
            t for t, known in self.data.sized.items() if known == how and self.tensors[t].size_bytes
        ]

    @property
    def loss(self) -> int:
        """The loss where it is computed: what is returned is a copy that waits for the updates."""
        return self.root[self.data.loss]

    @cached_property
    def forward(self) -> frozenset[int]:
        """Ids of the forward ops: ancestors of the loss through data edges only."""
        seen = {self.tensors[self.loss].op}
        for op_id in range(self.tensors[self.loss].op, -1, -1):
            if op_id in seen:
                seen.update(self.tensors[t].op for t in self.ops[op_id].inputs)
        return frozenset(seen)

    @cached_property
    def batch(self) -> tuple[int, ...]:
        """Tensor ids of the batch; of a step that is given none, what it draws from constants, or
        in a shape that it captured."""
        if self.data.inputs:
            return self.data.inputs
        fixed = {t for t in self.data.captures if t in self.data.values}
        fixed.update(t for op in self.ops if op.type == "Const" for t in op.outputs)
        steps = (op for op in self.ops if op.stateful and op.id in self.forward)
        drawn = (op for op in steps if op.type not in GIVEN_TYPES)
        return tuple(t for op in drawn if fixed.issuperset(op.inputs) for t in op.outputs)

    @cached_property
    def from_batch(self) -> frozenset[int]:
        """Ids of the forward ops that the batch leads to, the inputs themselves left out."""
        batch = {self.tensors[t].op for t in self.batch}
        return frozenset((self.forward & led_to(self.ops, self.tensors, self.batch)) - batch)

    @cached_property
    def turn(self) -> int:
        """The forward op from which the gradients descend.

        For a classifier it is the softmax cross-entropy. Going back from the loss it is the op
        from which most ops outside the forward part descend, not counting those that descend
        from a later one: metrics read the loss, too. It comes from the batch, unlike the number
        of examples, by which the gradients are divided. O(ops + edges).
        """
        best, most = self.tensors[self.loss].op, 0
        seen: set[int] = set()
        for op_id in sorted(self.from_batch or self.forward, reverse=True):
            before = len(seen)
            self._descend(op_id, seen)
            if len(seen) - before > most:
                best, most = op_id, len(seen) - before
        return best

    @cached_property
    def descendants(self) -> frozenset[int]:
        """Ids of the ops that descend from the turn through data edges: none can run before it."""
        seen: set[int] = set()
        self._descend(self.turn, seen)
        return frozenset(seen)

    @cached_property
    def backward(self) -> frozenset[int]:
        """Ids of the ops that belong behind the turn: gradients and updates.

        Its descendants, and what was created behind it, is large, and could run earlier but would
        only lie about (x - mean in a gradient, the decay of a weight), with what descends from
        that.
        """
        found = set(self.descendants)
        for op in self.ops[self.turn + 1 :]:
            if op.id in self.forward or op.id in found or op.type in GIVEN_TYPES:
                continue
            large = self.bytes_of(op.outputs) > _LATE_BYTES
            if large or any(self.tensors[t].op in found for t in op.inputs):
                found.add(op.id)
        return frozenset(found)

    def _descend(self, start: int, seen: set[int]) -> None:
        """Adds to `seen` the ops outside the forward part that `start` leads to through such ops
        alone, but for what the ops in `seen` lead to."""
        stack = [start]
        while stack:
            for t in self.ops[stack.pop()].outputs:
                for c in self.consumers[t]:
                    if c not in seen and c not in self.forward:
                        seen.add(c)
                        stack.append(c)

    @cached_property
    def root(self) -> list[int]:
        """root[t]: the tensor whose buffer t is. Its own id unless t comes from an alias op."""
        root = list(range(len(self.tensors)))
        for op in self.ops:
            if op.type in ALIAS_TYPES:
                for t, source in zip(op.outputs, op.inputs, strict=False):
                    root[t] = root[source]
        return root

    @cached_property
    def _views(self) -> dict[int, list[int]]:
        views: dict[int, list[int]] = {}
        for t, root in enumerate(self.root):
            views.setdefault(root, []).append(t)
        return views

    def views(self, tensor: int) -> list[int]:
        """The tensors that share the buffer of root `tensor`, itself first."""
        return self._views[tensor]

    def readers(self, tensor: int) -> list[int]:
        """Ids of the ops that read root `tensor` or a view of it; those of several come again."""
        return [c for view in self._views[tensor] for c in self.consumers[view]]

    @cached_property
    def activations(self) -> list[int]:
        """Root ids of the forward tensors that the backward part reads, in creation order.

        Variables' values and the step's own inputs are not activations: nothing frees them.
        """
        read = {
            self.root[t]
            for op_id in self.backward
            for t in self.ops[op_id].inputs
            if self.tensors[t].op in self.forward
        }
        return [t for t in sorted(read) if self.is_intermediate(t)]

    def is_intermediate(self, tensor: int) -> bool:
        """Whether the step itself allocates `tensor`: no variable, constant or input."""
        producer = self.ops[self.tensors[tensor].op]
        there = producer.type in GIVEN_TYPES or self.folded[producer.id]
        return self.tensors[tensor].size_bytes > 0 and not there

    @cached_property
    def folding(self) -> Folding:
        """What of the step the runtime computes once, before it."""
        return folding_of(self)

    @cached_property
    def folded(self) -> list[bool]:
        """For each op, whether no step runs it: what is read of it is a constant by then."""
        return self.folding.folded

    def label(self, tensor: int) -> str:
        """TensorFlow's name of a tensor, such as "block1/Relu:0"."""
        t = self.tensors[tensor]
        return f"{self.ops[t.op].name}:{t.index}"

    def find(self, labels: Iterable[str]) -> list[int]:
        """Tensor ids of TensorFlow names ("op" means "op:0"). Raises on an unknown name."""
        by_label = {self.label(t.id): t.id for t in self.tensors}
        found = []
        for label in labels:
            full = label if ":" in label else f"{label}:0"
            if full not in by_label:
                raise UnsupportedGraphError(
                    f"there is no tensor {label!r} in {self.name}: `memtrade plan` lists the names"
                )
            found.append(by_label[full])
        return found


def once_per_graph(find: Callable[[StepGraph], T]) -> Callable[[StepGraph], T]:
    """What `find` says of a graph is kept as long as the graph: strategies ask about many programs
    of one."""
    known: weakref.WeakKeyDictionary[StepGraph, T] = weakref.WeakKeyDictionary()

    @functools.wraps(find)
    def of(graph: StepGraph) -> T:
        if graph not in known:
            known[graph] = find(graph)
        return known[graph]

    return of
