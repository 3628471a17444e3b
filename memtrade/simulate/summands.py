"""With which summand TensorFlow's AddN begins, as the step came and in a plan.

    original   m ─► AddN_1(m, n, a)     of the three, a alone is read by nobody else: (a + n) + m
               n ─► AddN_2(m, n, b)     nobody reads m any more:                      (m + n) + b
    plan       m, n are made twice, m again for AddN_2: nobody else reads what AddN_1 does

The kernel adds to the first input whose buffer it may take, and puts that one in the place of the
first. Three numbers or more, added up in another order, differ in the last bits. O(ops + edges).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from memtrade.facts import OUTPUTS, shipped
from memtrade.graph import Op, StepGraph, once_per_graph
from memtrade.plan import Action
from memtrade.simulate.program import ALIAS, COMPUTE, SWAP_IN, Linker, Program
from memtrade.simulate.unplanned import merged_tensors, usual_order


class Sum(NamedTuple):
    """How a plan's action adds up as the step did that came.

    Attributes:
        order: the positions of its inputs.
        held: those whose buffers it must not take, or it would begin with another.
    """

    order: tuple[int, ...]
    held: tuple[int, ...]


def sums_as_they_came(graph: StepGraph, actions: Sequence[Action]) -> dict[int, Sum]:
    """For each action whose sum would be another by itself: how it is the same."""
    taken = taken_by_sums(graph)
    if not taken:
        return {}
    made: dict[int, Sum] = {}
    for index, free in _free(Linker(graph, shipped(OUTPUTS)), actions, taken, {}):
        op = graph.ops[actions[index].id]
        begin, _ = taken[op.id]
        order = [*range(len(op.inputs))]
        order[0], order[begin] = begin, 0
        held = free if free.isdisjoint(taken[op.id]) else ()
        if begin or held:
            made[index] = Sum(tuple(order), tuple(held))
    return made


@once_per_graph
def taken_by_sums(graph: StepGraph) -> dict[int, tuple[int, int]]:
    """Of each sum that has an order, the two inputs that it adds up first, as when the step came:
    of these, a plan's may take the buffer of either. All others are held (`Sum.held`)."""
    sums = {op.id for op in graph.ops if _has_an_order(op, graph)}
    if not sums:
        return {}
    same = merged_tensors(graph)
    came = [Action("run", op_id) for op_id in usual_order(graph)]
    free = _free(Linker(graph, shipped(OUTPUTS)), came, sums, same)
    first = {came[index].id: min(places, default=0) for index, places in free}
    taken: dict[int, tuple[int, int]] = {}
    for op_id in sums:
        t = graph.ops[op_id].outputs[0]
        # The kernel of a whole sum chooses among its first group.
        later = graph.ops[op_id].attrs.get("later_group")
        begin = 0 if later else first.get(graph.tensors[same.get(t, t)].op, 0)
        taken[op_id] = (begin if begin > 1 else 0), 1
    return taken


def _has_an_order(op: Op, graph: StepGraph) -> bool:
    if op.type != "AddN" or len(op.inputs) < 3:
        return False
    return graph.tensors[op.outputs[0]].dtype not in ("int32", "int64")


def _free(
    linker: Linker, actions: Sequence[Action], sums: Collection[int], same: Mapping[int, int]
) -> Iterator[tuple[int, set[int]]]:
    """For each action that runs one of these ops: its inputs that nobody reads after it."""
    program = linker.link(actions, linker.graph.data.outputs, same)
    buffers, last = _buffers(program)
    for number, row in enumerate(program.rows):
        action = actions[row.action]
        if action.kind in ("run", "recompute") and action.id in sums:
            read = [buffers.get(version, -1) for version in row.inputs]
            yield (
                row.action,
                {
                    i
                    for i, each in enumerate(read)
                    if each >= 0 and last[each] == number and read.count(each) == 1
                },
            )


def _buffers(program: Program) -> tuple[dict[int, int], dict[int, int]]:
    """For each version in a buffer that a kernel may take, the version whose buffer it is; and for
    each of these the row that reads it last."""
    buffers: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, row in enumerate(program.rows):
        for version in row.inputs:
            if version in buffers:
                last[buffers[version]] = number
        for version in row.outputs:
            if row.code in (COMPUTE, SWAP_IN):
                buffers[version] = version
            elif row.code == ALIAS and row.inputs[0] in buffers:
                buffers[version] = buffers[row.inputs[0]]
    last.update((buffers[each], len(program.rows)) for each in program.returned if each in buffers)
    return buffers, last
