"""A plan's actions, linked: which version of each tensor every action reads and makes.

    action            reads        makes
    run conv          x@0          conv@0
    swap_out conv     conv@0       host conv
    swap_in conv      host conv    conv@1
    run grad          conv@1, ...  grad@0

A consumer reads the latest version of its input, as the rewriter wires it, so after linking each
version's number of readers is known, and with it the moment of its death.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple, Self

import msgspec

from memtrade.facts import SCRATCH, Facts, Request
from memtrade.facts.kernel import END, NOTHING
from memtrade.facts.variables import (
    brought,
    copied_variables,
    goes_by_rows,
    keeps_place,
    moved,
    reads_by_copying,
)
from memtrade.facts.views import viewed
from memtrade.graph import Op, StepGraph
from memtrade.iterations import places_of
from memtrade.kernel_pairs import POOL_GRADIENTS, bias_gradients
from memtrade.op_types import (
    ALIAS_TYPES,
    CALL_TYPES,
    ITERATING_TYPES,
    READ_TYPES,
    READING_TYPES,
    SOURCE_TYPES,
    UPDATE_TYPES,
)
from memtrade.plan import Action
from memtrade.simulate.constants import Constants
from memtrade.simulate.spared import Spared, nothing_spared, spared

_NUMBER_BYTES = 4  # of a row
_MERGED_DTYPES = ("bfloat16", "float32")  # other convolutions are not oneDNN's


class Code(IntEnum):
    """How an action treats memory."""

    COMPUTE = 0
    ALIAS = 1  # the output is the input's buffer
    READ = 2  # the output is the variable's buffer
    UPDATE = 3  # writes variables in place, or into a copy if a read value is held, or reads copy
    ASSIGN = 4  # has the value's buffer, too, unless reads copy
    SWAP_OUT = 5
    SWAP_IN = 6
    RESERVE = 7  # held until the next action has run
    MOVE = 8  # variables lie in other buffers from here on: a branch may have assigned them


# For loops over rows: to look up `Code.COMPUTE` takes as long as much of what is done with it.
COMPUTE, ALIAS, READ, UPDATE, ASSIGN, SWAP_OUT, SWAP_IN, RESERVE, MOVE = Code


class Spec(NamedTuple):
    """What is known of an op before any plan.

    Attributes:
        inputs: tensor ids, in the kernel's order; resources left out. `forwarded` of a request
            counts along these.
        outputs: tensor ids, a hidden output (MaxPool's workspace) last.
        requests: see `facts.Request`; a margin is scratch.
        variables: (tensor id of the handle, bytes) of the variables read or updated.
    """

    code: Code
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    requests: tuple[Request, ...] = ()
    variables: tuple[tuple[int, int], ...] = ()
    workspace: int | None = None  # of MaxPool's gradient: what spares it all but its outputs
    handed: tuple[tuple[int, int], ...] = ()  # of a loop: (input, place of the output that it is)
    assigned: tuple[tuple[int, int], ...] = ()  # of a branch or loop, as `variables`


class Row(msgspec.Struct, gc=False):
    """An action after linking. `inputs` and `outputs` are versions."""

    action: int
    code: Code
    requests: Sequence[Request]
    inputs: Sequence[int]
    outputs: Sequence[int]
    variables: Sequence[tuple[int, int]]


class Program(NamedTuple):
    """Linked actions.

    Attributes:
        tensor_of: for each version, the tensor id it is a version of; versions up to the number of
            tensors are the tensors as the original ops make them.
        readers: for each version, how many input slots read it, the caller's included.
        returned: the versions that the step hands out.
        constants: of a rewritten step, or of the step as it came.
    """

    rows: list[Row]
    tensor_of: list[int]
    readers: list[int]
    returned: list[int]
    constants: Constants

    @property
    def without_moves(self) -> Self | None:
        """As it runs where no branch moves variables; None where none may."""
        rows = [row for row in self.rows if row.code != MOVE]
        return self._replace(rows=rows) if len(rows) < len(self.rows) else None

    def shrunk(self, tensors: Collection[int], share: float) -> Self:
        """As it runs where all of these have so much of their bytes."""

        def less(row: Row) -> Row:
            these = [i for i, each in enumerate(row.outputs) if self.tensor_of[each] in tensors]
            if not these:
                return row
            wanted = [
                each._replace(size_bytes=int(share * each.size_bytes))
                if each.output in these
                else each
                for each in row.requests
            ]
            return msgspec.structs.replace(row, requests=wanted)

        return self._replace(rows=[*map(less, self.rows)])


class Linker:
    """Links programs of one graph. What does not depend on the plan is worked out once.

    Attributes:
        walked: rows of programs that were walked so far: what simulating has cost, on any machine.
        copied: handles of variables that reads copy, and that whatever writes all of them copies.
        specs: of each op, in rewritten steps. constants: of these.
        unplanned: both, of the step as it came.
        merged: of a convolution's filter gradient, that of its bias, and what both are as one.
        ready: bytes of each tensor that a data set has ready, where these lie beside the step's.
    """

    def __init__(
        self, graph: StepGraph, facts: Facts, margin_bytes: int = 0, *, on_host: bool = False
    ):
        self.graph, self.margin_bytes = graph, margin_bytes
        self.ready = _ready(graph) if on_host else ()
        self.walked = 0
        self.known = [facts.of(op, graph) for op in graph.ops]
        self.sizes = [t.size_bytes for t in graph.tensors]
        self.labels_of_hidden: list[str] = []
        self.hidden_of: dict[int, int] = {}  # MaxPool's output -> its workspace
        self.copied = copied_variables(graph)
        self._add_workspaces()
        in_place = frozenset(op.id for op in graph.ops if keeps_place(op, graph))
        alone, without, beside = nothing_spared(graph), spared(graph), brought(graph)
        self.constants = Constants(graph, self._hide, alone, with_loops=True)
        self.specs = self._known_of(self.constants, alone)
        self.unplanned = self.specs, self.constants
        if without.reads or beside or in_place or places_of(graph):
            self.constants = Constants(graph, self._hide, without, beside)
            self.specs = self._known_of(self.constants, without, in_place)
        self.specs = self.specs.copy()
        for op in graph.ops:
            if goes_by_rows(op, graph):
                rows = (graph.tensors[op.inputs[1]].shape or (0,))[0]
                wanted = Request(_NUMBER_BYTES), Request(rows * _NUMBER_BYTES)
                spec = self.specs[op.id]
                self.specs[op.id] = spec and spec._replace(requests=wanted, variables=())
        pairs = bias_gradients(graph) if facts.merges else {}
        both = {each: (bias, self._both(each, bias)) for each, bias in pairs.items()}
        self.merged = {each: (bias, spec) for each, (bias, spec) in both.items() if spec}

    def restrict(self, taken: Mapping[int, Sequence[int]]) -> None:
        """In rewritten steps these ops take no buffers but those of inputs in these places, the
        first that is free."""
        for op_id, places in taken.items():
            if spec := self.specs[op_id]:
                wanted = tuple(each.trying(places) for each in spec.requests)
                self.specs[op_id] = spec._replace(requests=wanted)

    def _both(self, filter_gradient: int, bias_gradient: int) -> Spec | None:
        """oneDNN's kernel asks for the filter's first, and needs no scratch to sum the bias's."""
        spec, other = self.specs[filter_gradient], self.specs[bias_gradient]
        if spec is None or other is None:
            return None
        (made,), (bias,) = spec.outputs, other.outputs
        if self.graph.tensors[made].dtype not in _MERGED_DTYPES:
            return None
        wanted = *spec.requests[:1], Request(self.sizes[bias], 1), *spec.requests[1:]
        inputs, outputs = spec.inputs + other.inputs, (made, bias)
        return spec._replace(inputs=inputs, outputs=outputs, requests=wanted)

    def _as_one(self, actions: Sequence[Action]) -> dict[int, Spec | None]:
        """By places in `actions`: what runs as one with the next, and nothing for that."""
        found: dict[int, Spec | None] = {}
        if self.merged:
            for index, (action, after) in enumerate(pairwise(actions)):
                if action.kind == after.kind == "run" and action.id in self.merged:
                    bias, spec = self.merged[action.id]
                    if after.id == bias:
                        found |= {index: spec, index + 1: None}
        return found

    def _add_workspaces(self) -> None:
        """oneDNN's MaxPool makes a workspace for its gradient, which reads it if both meet."""
        for op, fact in zip(self.graph.ops, self.known, strict=True):
            if fact.workspace_bytes:
                hidden = self._hide(fact.workspace_bytes, f"{op.name}:workspace")
                self.hidden_of[op.outputs[0]] = hidden

    def _hide(self, size_bytes: int, label: str) -> int:
        """A tensor that the graph does not have. Its id."""
        self.sizes.append(size_bytes)
        self.labels_of_hidden.append(label)
        return len(self.sizes) - 1

    def label(self, tensor: int) -> str:
        hidden = tensor - len(self.graph.tensors)
        return self.graph.label(tensor) if hidden < 0 else self.labels_of_hidden[hidden]

    def _known_of(
        self, constants: Constants, without: Spared, in_place: Container[int] = ()
    ) -> list[Spec | None]:
        """Of each op. `in_place`: the assignments that a rewritten step writes in place."""
        return [self._spec(op, without, constants, op.id in in_place) for op in self.graph.ops]

    def _spec(self, op: Op, without: Spared, constants: Constants, in_place: bool) -> Spec | None:
        graph, op_id = self.graph, op.id
        if op_id in without.left_out or op.type in SOURCE_TYPES or graph.folded[op_id]:
            return None
        read = without.inputs(op)
        handles = [t for t in op.inputs if graph.tensors[t].dtype == "resource"]
        variables = tuple((t, graph.capture_bytes.get(t, 0)) for t in handles)
        inputs = tuple(constants.folded.get(t, t) for t in read if t not in handles)
        if reads_by_copying(op, graph):
            request = Request(self.sizes[op.outputs[0]], 0)
            return Spec(Code.COMPUTE, (), op.outputs, (request,))
        if op.type in READ_TYPES:
            return Spec(Code.READ, (), op.outputs, variables=variables[:1])
        if op.type == "AssignVariableOp" and not in_place:
            return Spec(Code.ASSIGN, inputs, (), variables=variables[:1])
        if handles and op.type not in READING_TYPES | CALL_TYPES:
            wanted = _without(handles, op, self.known[op_id].requests)
            handed = _handed(op, graph)
            elsewhere = moved(op)
            assigned = tuple(each for each in variables if each[0] in elsewhere and each[1])
            if not op.type.startswith(UPDATE_TYPES):  # nothing copies what is read by copying
                variables = tuple(each for each in variables if each[0] not in self.copied)
            return Spec(Code.UPDATE, inputs, op.outputs, wanted, variables, None, handed, assigned)
        if op.type in ALIAS_TYPES:
            return Spec(Code.ALIAS, inputs, op.outputs)
        if (place := viewed(op, graph)) is not None:
            others = inputs[:place] + inputs[place + 1 :]  # where it begins: read all the same
            return Spec(Code.ALIAS, (inputs[place],) * len(op.outputs) + others, op.outputs)
        fact = self.known[op_id]
        wanted = [*_without(handles, op, fact.requests)]
        if fact.margin_bytes:
            wanted.append(Request(fact.margin_bytes))
        outputs, workspace = op.outputs, None
        if fact.workspace_bytes:
            hidden = self.hidden_of[op.outputs[0]]
            outputs = (*outputs, hidden)
            wanted.append(Request(self.sizes[hidden], len(outputs) - 1))
        if op.type in POOL_GRADIENTS:
            workspace = self.hidden_of.get(op.inputs[1])
        return Spec(
            Code.COMPUTE,
            inputs,
            outputs,
            tuple(wanted),
            workspace=workspace,
            handed=_handed(op, graph),
        )

    def link(
        self,
        actions: Sequence[Action],
        returned: Sequence[int],
        same: Mapping[int, int] | None = None,
    ) -> Program:
        """`returned`: tensor ids that the step hands out, which therefore live to its end.
        `same`: of the step as it came, tensors that nothing makes, and those that are read in their
        place."""
        specs, constants = (self.specs, self.constants) if same is None else self.unplanned
        same = same or {}
        latest = [same.get(t, t) for t in range(len(self.sizes))]
        tensor_of, readers = [*range(len(latest))], [0] * len(latest)
        outside, rows = dict[int, int](), list[Row]()
        lost: set[int] = set()  # workspaces whose MaxPool output came back from the host
        merged = self._as_one(actions)
        for index, action in enumerate(actions):
            kind, id_ = action.kind, action.id
            if kind == "run" or kind == "recompute":
                spec = merged[index] if index in merged else specs[id_]
                if spec is None:
                    continue
                _, inputs, outputs, wanted, variables, workspace, handed, assigned = spec
                inputs = [latest[t] for t in inputs]
                if workspace is not None and workspace not in lost:
                    inputs.append(latest[workspace])
                    wanted = _outputs_alone(wanted)
                for version in inputs:
                    readers[version] += 1
                if kind == "recompute":
                    made = len(tensor_of)
                    tensor_of += outputs
                    readers += [0] * len(outputs)
                    for version, t in enumerate(outputs, made):
                        latest[t] = version
                    lost.difference_update(outputs)
                    outputs = range(made, len(tensor_of))
                if handed:
                    rows.append(_views(index, handed, latest, outputs, readers))
                rows.append(Row(index, spec.code, wanted, inputs, outputs, variables))
                if assigned:
                    rows.append(Row(index, MOVE, (), (), (), assigned))
            elif kind == "swap_out" or kind == "swap_in":
                leaves, made = kind == "swap_out", len(tensor_of)
                source = latest[id_] if leaves else outside[id_]
                readers[source] += 1
                (outside if leaves else latest)[id_] = made
                tensor_of.append(id_)
                readers.append(0)
                code, wanted = SWAP_OUT if leaves else SWAP_IN, (Request(self.sizes[id_], 0),)
                rows.append(Row(index, code, wanted, (source,), (made,), ()))
                if not leaves:
                    lost.add(self.hidden_of.get(id_, SCRATCH))
            elif kind == "reserve":
                rows.append(Row(index, RESERVE, (Request(id_),), (), (), ()))
        handed = [latest[constants.folded.get(t, t)] for t in returned]
        for version in handed:
            readers[version] += 1
        return Program(rows, tensor_of, readers, handed, constants)


def _ready(graph: StepGraph) -> tuple[int, ...]:
    """Of the batch that waits to be asked for, and of the one that is made of another meanwhile."""
    takers = (op for op in graph.ops if op.type in ITERATING_TYPES)
    return 3 * tuple(graph.tensors[t].size_bytes for op in takers for t in op.outputs)


def _without(handles: Sequence[int], op: Op, requests: Sequence[Request]) -> tuple[Request, ...]:
    """An op's requests for any bytes, whose `forwarded` count along the inputs but the handles."""
    asked = (each for each in requests if each.size_bytes)
    if not handles:
        return tuple(asked)
    places = [i for i, t in enumerate(op.inputs) if t not in handles]
    number = {place: i for i, place in enumerate(places)}

    def place(i: int) -> int:
        return i if i == END else number.get(i, NOTHING)

    return tuple(
        each._replace(
            forwarded=tuple(number[i] for i in each.forwarded if i in number),
            relief=tuple((most_bytes, place(i)) for most_bytes, i in each.relief),
        )
        for each in asked
    )


def _outputs_alone(wanted: Iterable[Request]) -> list[Request]:
    """In buffers of their own."""
    return [each._replace(forwarded=()) for each in wanted if each.output != SCRATCH]


def _views(
    index: int,
    handed: Sequence[tuple[int, int]],
    latest: Sequence[int],
    outputs: Sequence[int],
    readers: list[int],
) -> Row:
    """The row that has outputs lie in the buffers of inputs; `handed`: see `Spec`."""
    given = [latest[t] for t, _ in handed]
    for version in given:
        readers[version] += 1
    return Row(index, ALIAS, (), given, [outputs[i] for _, i in handed], ())


def _handed(op: Op, graph: StepGraph) -> tuple[tuple[int, int], ...]:
    """A loop's inputs that it hands on as they came, and the outputs that they are."""
    return tuple(
        (op.inputs[i], i)
        for i in op.attrs.get("handed", ())
        if graph.tensors[op.outputs[i]].size_bytes
    )
