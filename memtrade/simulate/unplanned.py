"""The order in which TensorFlow runs a step that no plan puts in order, as far as it can be known.

The executor starts ops as they become ready, first come, first served. What the step as it came
gathers (Keras's optimizers hand all gradients through one IdentityN, which waits for the last of
them) is read no earlier than that. O(ops + edges).
"""

from __future__ import annotations

from collections import deque

from memtrade.graph import StepGraph


def arrival_order(graph: StepGraph) -> list[int]:
    """Op ids in the order in which they become ready."""
    before = [{graph.tensors[t].op for t in op.inputs} | set(op.controls) for op in graph.ops]
    for group in graph.data.gathered:
        producers = {graph.tensors[t].op for t in group}
        if not producers.isdisjoint(graph.descendants):
            ahead = _leading_to(graph, producers)
            for reader in {c for t in group for c in graph.consumers[t]} - ahead:
                before[reader] |= producers
    successors: list[list[int]] = [[] for _ in graph.ops]
    for op_id, waits in enumerate(before):
        for producer in sorted(waits):
            successors[producer].append(op_id)
    waiting = [len(each) for each in before]
    ready = deque(op.id for op in graph.ops if not waiting[op.id])
    order: list[int] = []
    while ready:
        order.append(ready.popleft())
        for successor in successors[order[-1]]:
            waiting[successor] -= 1
            if not waiting[successor]:
                ready.append(successor)
    return order


def _leading_to(graph: StepGraph, ops: set[int]) -> set[int]:
    """`ops` and all that they wait for."""
    seen = set(ops)
    for op in reversed(graph.ops):
        if op.id in seen:
            seen.update(graph.tensors[t].op for t in op.inputs)
            seen.update(op.controls)
    return seen
