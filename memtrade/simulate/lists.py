"""Lists of a step as it came, whose loops run as loops: what an unrolled step does without.

    x ─► elements of x, each a copy ─► loop ─┬─► loss ─► an element's gradient ─► sum ─► dx
                                             └─► zeros for each element ─────────┘

TensorFlow copies all elements of a tensor that a loop reads into a list, at once, and the list
holds them until the loop is done. Then it makes the zeros that the gradient begins with, for all
elements; each goes with its sum, whose result is another tensor. `memtrade.tf.unroll` has a loop
read its elements where they lie in x, and writes the sum with a single zero. O(ops + edges).
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from memtrade.facts import Request
from memtrade.graph import Op, StepGraph, once_per_graph
from memtrade.iterations import loops_read, places_of
from memtrade.plan import Action
from memtrade.simulate.program import COMPUTE, Program, Row

# What `memtrade.tf.tensor_lists` calls elements of a tensor, and sums of two lists' elements.
_ELEMENT, _SUM = re.compile(r"/row\d+$"), re.compile(r"/\d+$")


class _Lists(NamedTuple):
    """Attributes:
    elements: ops that read an element of a tensor, and the tensor.
    holders: of such tensors, the loops that hold them as lists.
    sums: the sums that have zeros, and the loops in which they stand.
    """

    elements: dict[int, int]
    holders: dict[int, str]
    sums: dict[int, str]


def with_lists(program: Program, actions: Sequence[Action], graph: StepGraph) -> Program:
    """`program`, which was linked of the `actions` of the step as it came, with its lists."""
    lists = _lists(graph)
    if not lists.elements and not lists.sums:
        return program
    turns, made = _Turns(graph, actions), _Maker(program, graph)
    elements: dict[int, list[Row]] = defaultdict(list)
    for row in program.rows:
        if (tensor := lists.elements.get(actions[row.action].id)) is not None:
            elements[tensor].append(row)
    for row in program.rows:
        op_id = actions[row.action].id
        if (tensor := lists.elements.get(op_id)) is not None:
            if tensor in elements:
                until = turns.last.get(lists.holders.get(tensor, ""), row.action)
                made.copies(elements.pop(tensor), until)
        elif op_id in lists.sums and row.code == COMPUTE:
            made.sum(row, turns.begin(lists.sums[op_id]))
        else:
            made.rows.append(row)
    return made.program()


class _Turns:
    """When loops begin and end: places in `actions`."""

    def __init__(self, graph: StepGraph, actions: Sequence[Action]):
        self.first, self.last = dict[str, int](), dict[str, int]()
        self._read = loops_read(graph)
        places = places_of(graph)
        for index, action in enumerate(actions):
            for place in places.get(action.id, ()):
                self.first.setdefault(place.loop, index)
                self.last[place.loop] = index

    def begin(self, loop: str) -> int:
        """Behind what the zeros of a gradient's loop are made: the loop whose gradient it is; in
        another loop, and where that is not known, what is before it."""
        before = max(self.first[loop] - 1, 0)
        read = self._read.get(loop)
        return before if read is None else min(self.last.get(read, before), before)


class _Maker:
    """Makes a program of another one's rows."""

    def __init__(self, program: Program, graph: StepGraph):
        self._program, self._graph = program, graph
        self._tensor_of, self._readers = [*program.tensor_of], [*program.readers]
        self._zeros: dict[int, list[int]] = defaultdict(list)
        self._holders: list[Row] = []
        self.rows: list[Row] = []

    def copies(self, elements: Sequence[Row], until: int) -> None:
        """One row in place of all that make elements of one tensor, and a list that holds them
        `until` an action."""
        first, *others = elements
        for version in (each for row in others for each in row.inputs):
            self._readers[version] -= 1
        versions = [row.outputs[0] for row in elements]
        self.rows.append(self._making(first.action, versions, first.inputs))
        if until > first.action:
            for version in versions:
                self._readers[version] += 1
            self._holders.append(Row(until, COMPUTE, (), versions, (), ()))

    def sum(self, row: Row, begin: int) -> None:
        """With zeros that are made behind the action `begin`, in a buffer of its own."""
        zero = len(self._tensor_of)
        self._tensor_of.append(self._tensor_of[row.outputs[0]])
        self._readers.append(1)
        self._zeros[begin].append(zero)
        wanted = [each._replace(forwarded=()) for each in row.requests]
        read = [*row.inputs, zero]
        self.rows.append(msgspec.structs.replace(row, requests=wanted, inputs=read))

    def program(self) -> Program:
        zeros = [self._making(action, these) for action, these in self._zeros.items()]
        # Of one action, in this order.
        rows = sorted(self.rows + self._holders + zeros, key=lambda row: row.action)
        return self._program._replace(rows=rows, tensor_of=self._tensor_of, readers=self._readers)

    def _making(self, action: int, versions: Sequence[int], inputs: Sequence[int] = ()) -> Row:
        tensors = (self._graph.tensors[self._tensor_of[version]] for version in versions)
        wanted = [Request(each.size_bytes, place) for place, each in enumerate(tensors)]
        return Row(action, COMPUTE, wanted, inputs, versions, ())


@once_per_graph
def _lists(graph: StepGraph) -> _Lists:
    places = places_of(graph)
    found = _Lists({}, {}, {})
    for op in graph.ops:
        if op.type == "StridedSlice" and _ELEMENT.search(op.name):
            tensor = op.inputs[0]
            found.elements[op.id] = tensor
            readers = (places[c] for t in op.outputs for c in graph.consumers[t] if c in places)
            if graph.tensors[tensor].op not in graph.backward and (read := next(readers, None)):
                found.holders.setdefault(tensor, read[-1].loop)
        elif op.id in places and _adds_zero(op, graph):
            found.sums[op.id] = places[op.id][-1].loop
    return found


def _adds_zero(op: Op, graph: StepGraph) -> bool:
    if op.type != "AddV2" or not _SUM.search(op.name):
        return False
    zeros = (t for t in op.inputs if graph.ops[graph.tensors[t].op].type == "Const")
    made = graph.tensors[op.outputs[0]].shape
    return bool(made) and any(graph.tensors[t].shape == () for t in zeros)
