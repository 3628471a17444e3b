"""The order in which TensorFlow's executor runs a step that no plan puts in order.

A pinned plan is a line of actions. Without one, an op starts as soon as what it waits for is there,
first come first served, and copies start beside it. `run_order` plays that through once, with the
device's times, and returns the line of actions that comes out, for the simulators of memory and
time.

    ready    what a task waits for: an op on the device must have been started (its result is there
             for the next op, in the device's order), a copy must have ended
    host     starts one ready op after the other, `dispatch_seconds` each, ahead of the device
    copies   start when they are ready, one after the other in each direction, and not before the
             device is done with all that was started until then

Assumed: one queue. The real executor has a thread pool and hands ops out in an order that varies a
little from run to run. O(tasks log tasks + edges).
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.plan import Action
from memtrade.simulate.timeline import TimeSimulator


class Task(NamedTuple):
    """An action, and the positions of the tasks that it waits for."""

    action: Action
    after: tuple[int, ...]


def tasks_of(graph: StepGraph, actions: Sequence[Action]) -> list[Task]:
    """What the actions of a plan wait for in order "dataflow", as the rewriter wires them: for what
    they read and for control edges; clones and copies in for the backward op before them, too.

    A second copy of a tensor waits for the readers of the first, which a line of actions could not
    tell apart. Without actions, the step's ops. O(actions + edges).
    """
    tasks: list[Task] = []
    maker: dict[int, int] = {}  # tensor -> who makes its latest version
    ran: dict[int, int] = {}
    left: dict[int, int] = {}  # tensor -> its copy out
    readers: dict[int, list[int]] = {}  # tensor that came back -> who has read it
    trigger: list[int] = []  # the last backward op, if any
    for action in actions or [Action("run", op.id) for op in graph.ops]:
        kind, id_, here = action.kind, action.id, len(tasks)
        if kind in ("wait", "reserve"):
            continue
        if kind == "swap_out":
            after = [maker[id_]]
            left[id_] = here
        elif kind == "swap_in":
            after = [left[id_], *trigger, *readers.get(id_, ())]
            maker[id_], readers[id_] = here, []
        else:
            op = graph.ops[id_]
            after = [maker[t] for t in op.inputs]
            after += trigger if kind == "recompute" else [ran[c] for c in op.controls]
            for t in readers.keys() & op.inputs:
                readers[t].append(here)
            maker.update(dict.fromkeys(op.outputs, here))
            if kind == "run":
                ran[id_] = here
                if id_ == graph.turn or id_ in graph.descendants:
                    trigger = [here]
        tasks.append(Task(action, tuple(dict.fromkeys(after))))
    return tasks


def run_order(simulator: TimeSimulator, tasks: Sequence[Task]) -> list[Action]:
    """The actions of `tasks` in the order in which they start.

    Raises:
        UnsupportedGraphError: tasks wait for each other in a circle.
    """
    waiting = [len(task.after) for task in tasks]
    successors: list[list[int]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        for before in task.after:
            successors[before].append(index)
    # (when a task became ready, which one that was, the task): first come, first served
    ready = [(0.0, index, index) for index, count in enumerate(waiting) if not count]
    arrived = len(tasks)
    began = [0.0] * len(tasks)  # when the last of what a task waits for was there
    order: list[Action] = []
    host = compute = 0.0
    channels = {"swap_out": 0.0, "swap_in": 0.0}
    while ready:
        came, _, index = heapq.heappop(ready)
        action = tasks[index].action
        order.append(action)
        if action.kind in channels:
            seconds = simulator.out_seconds if action.kind == "swap_out" else simulator.in_seconds
            start = max(channels[action.kind], came, compute)
            there = channels[action.kind] = start + seconds[action.id]
        else:
            host = max(host, came) + simulator.dispatch_seconds[action.id]
            compute = max(host, compute) + simulator.op_seconds[action.id]
            there = host
        for successor in successors[index]:
            began[successor] = max(began[successor], there)
            waiting[successor] -= 1
            if not waiting[successor]:
                heapq.heappush(ready, (began[successor], arrived, successor))
                arrived += 1
    if len(order) < len(tasks):
        stuck = next(task.action for task, count in zip(tasks, waiting, strict=True) if count)
        raise UnsupportedGraphError(f"{stuck.kind} {stuck.id} waits for itself")
    return order
