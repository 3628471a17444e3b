"""The order that comes out when nothing but data holds tasks back."""

import pytest

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.papers.executor import Task, run_order, tasks_of
from memtrade.plan import Action, ActionKind
from memtrade.simulate.bfc import MIB
from memtrade.simulate.timeline import TimeSimulator
from tests.graphs import Builder, chain, on
from tests.simulate.test_timeline import device


def branches() -> StepGraph:
    """Two branches of two ops from x, and their sum."""
    b = Builder()
    (x,) = b.op("x", "Placeholder", sizes=[MIB])
    (left1,) = b.op("left1", "MatMul", [x, x], sizes=[MIB])
    (left2,) = b.op("left2", "MatMul", [left1, x], sizes=[MIB])
    (right1,) = b.op("right1", "MatMul", [x, x], sizes=[MIB])
    (right2,) = b.op("right2", "MatMul", [right1, x], sizes=[MIB])
    (last,) = b.op("last", "MatMul", [left2, right2], sizes=[MIB])
    return b.build(inputs=[x], outputs=[last], loss=last)


def tasks(graph: StepGraph) -> list[Task]:
    """One per op, in the graph's order: a task's position is its op's id."""
    return [
        Task(Action("run", op.id), tuple(graph.tensors[t].op for t in op.inputs))
        for op in graph.ops
    ]


def names(graph: StepGraph, actions: list[Action]) -> list[str]:
    return [
        graph.ops[a.id].name if a.kind == "run" else f"{a.kind} {graph.label(a.id)}"
        for a in actions
    ]


def test_what_is_ready_first_comes_first():
    graph = branches()
    order = run_order(TimeSimulator(graph, on(device())), tasks(graph))
    assert names(graph, order) == ["x", "left1", "right1", "left2", "right2", "last"]


def with_swap(graph: StepGraph) -> list[Task]:
    """left1 leaves, and left2 reads what came back."""
    (left1,) = graph.find(["left1"])
    given = tasks(graph)
    out, back = len(given), len(given) + 1
    given[2] = Task(Action("run", 2), (0, back))
    given.append(Task(Action("swap_out", left1), (1,)))
    given.append(Task(Action("swap_in", left1), (out,)))
    return given


def test_what_waits_for_a_copy_lets_others_pass():
    graph = branches()
    order = names(graph, run_order(TimeSimulator(graph, on(device())), with_swap(graph)))
    copies = ["swap_out left1:0", "swap_in left1:0"]
    assert [each for each in order if each in copies] == copies
    assert order[-3:] == ["right2", "left2", "last"] or order[-2:] == ["left2", "last"]
    assert order.index("right2") < order.index("left2")


def test_the_order_hides_copies_that_a_line_would_wait_for():
    graph = branches()
    (left1,) = graph.find(["left1"])
    simulator = TimeSimulator(graph, on(device(copy=2 * MIB)))  # half a second each way
    found = simulator.timeline(run_order(simulator, with_swap(graph)))
    line = [Action("run", i) for i in range(2)]
    line += [Action("swap_out", left1), Action("swap_in", left1)]
    line += [Action("run", i) for i in range(2, 6)]
    assert simulator.timeline(line).stall_seconds == pytest.approx(1)
    assert found.stall_seconds < 1
    assert found.step_seconds < simulator.timeline(line).step_seconds


def test_a_circle_is_refused():
    graph = branches()
    given = tasks(graph)
    given[1] = Task(given[1].action, (5,))
    with pytest.raises(UnsupportedGraphError, match="waits for itself"):
        run_order(TimeSimulator(graph, on(device())), given)


def test_a_plan_s_tasks_wait_as_the_rewriter_wires_them():
    graph = chain(3)
    (layer2,) = graph.find(["layer2"])
    ids = {op.name: op.id for op in graph.ops}
    actions = [Action("run", i) for i in range(ids["layer2"] + 1)]
    actions += [Action("swap_out", layer2), Action("run", ids["layer3"])]
    actions += [Action("run", ids[name]) for name in ("loss", "seed")]
    actions += [Action("recompute", ids["layer1"]), Action("swap_in", layer2)]
    actions += [Action("run", i) for i in range(ids["grad3"], len(graph.ops))]
    given = tasks_of(graph, actions)
    assert [task.action for task in given] == actions
    place = {(task.action.kind, task.action.id): i for i, task in enumerate(given)}

    def waits(kind: ActionKind, id_: int) -> set[tuple[str, int]]:
        after = given[place[kind, id_]].after
        return {(given[i].action.kind, given[i].action.id) for i in after}

    assert waits("swap_out", layer2) == {("run", ids["layer2"])}
    assert waits("swap_in", layer2) == {("swap_out", layer2), ("run", ids["seed"])}
    assert waits("recompute", ids["layer1"]) == {("run", ids["x"]), ("run", ids["seed"])}
    assert waits("run", ids["grad3"]) == {("run", ids["seed"]), ("swap_in", layer2)}
    assert waits("run", ids["grad2"]) == {("run", ids["grad3"]), ("recompute", ids["layer1"])}


def test_without_a_plan_ops_wait_for_what_they_read():
    graph = branches()
    given = [Task(task.action, tuple(dict.fromkeys(task.after))) for task in tasks(graph)]
    assert tasks_of(graph, ()) == given
