"""Where a step's ops run, and the gate that a rewritten one passes: do its devices meet as before?

A collective waits until every device of its group has come to it. Devices that come to two of them
in different orders wait for ever, and in no edge of the graph can one see that. Here one can: those
of a group count as one op, and on each device each waits for the one before it in the step as it
came. If no op then waits for itself, every device comes to all of them, in the same order.
"""

from graphlib import CycleError, TopologicalSorter
from typing import Any

import tensorflow as tf

from memtrade.errors import InvalidPlanError, UnsupportedGraphError
from memtrade.graph import GraphData
from memtrade.parts import groups_of, is_collective
from memtrade.tf.captured import captures

# The jobs of a cluster that hold variables for the others, and what tf.distribute calls them.
_SERVERS = frozenset({"ps"})


def devices_of(concrete: Any, data: GraphData) -> list[str]:
    """Of each op the device that it runs on ("CPU:1"), by its own word, that of the variable that
    it uses, that of what it reads, or else that of its first reader."""
    graph = concrete.graph
    found = [_short(graph.get_operation_by_name(op.name).device) for op in data.ops]
    held = {inner.op.name: outer for inner, outer in captures(concrete)}
    for op in data.ops:
        if not found[op.id] and op.name in held and held[op.name].dtype == tf.resource:
            found[op.id] = _short(held[op.name].device)
        for t in op.inputs:
            found[op.id] = found[op.id] or found[data.tensors[t].op]
    for op in reversed(data.ops):
        for t in op.inputs:
            made_by = data.tensors[t].op
            found[made_by] = found[made_by] or found[op.id]
    first = next((each for each in found if each), "CPU:0")
    return [each or first for each in found]


def replicas(devices: list[str]) -> list[str]:
    """The devices that compute: the GPUs, or where there are none, the CPUs."""
    gpus = [each for each in dict.fromkeys(devices) if not each.startswith("CPU")]
    return gpus or list(dict.fromkeys(devices))


def refuse_elsewhere(concrete: Any) -> None:
    """Raises UnsupportedGraphError for a step with ops or variables in several processes, or of
    devices that nothing is known of."""
    placed = [op.device for op in concrete.graph.get_operations()]
    placed += [outer.device for _, outer in captures(concrete) if outer.dtype == tf.resource]
    specs = {name: tf.DeviceSpec.from_string(name) for name in set(placed) if name}
    for name, spec in specs.items():
        if spec.job in _SERVERS:
            raise UnsupportedGraphError(
                f"a part of the step lies on {name}, a parameter server: workers would wait for "
                "its variables at times that no plan knows. Use MultiWorkerMirroredStrategy"
            )
        if spec.device_type and "TPU" in spec.device_type:
            raise UnsupportedGraphError(
                f"a part of the step runs on {name}: XLA compiles all that runs on a TPU, and "
                "orders it anew. Plans are for CPUs and GPUs"
            )
    named = (spec for spec in specs.values() if spec.job is not None and spec.task is not None)
    processes = {(spec.job, spec.task) for spec in named}
    if len(processes) > 1:
        first, second, *_ = sorted(f"/job:{job}/task:{task}" for job, task in processes)
        raise UnsupportedGraphError(
            f"the step runs in several processes, {first} and {second}: a plan is for one. Use "
            "MultiWorkerMirroredStrategy, where each process has a step of its own"
        )


def check_meetings(graph_def: Any, concrete: Any, data: GraphData) -> None:
    """Raises InvalidPlanError where `graph_def`, made of the step that `data` is read from, could
    hang: a device comes to two collectives in another order than it did, or than the others do.

    O(nodes + edges).
    """
    devices = devices_of(concrete, data)
    stands_for: dict[str, str] = {}
    for group in groups_of(data, devices):
        stands_for.update({data.ops[op_id].name: data.ops[group[0]].name for op_id in group})
    waits: dict[str, set[str]] = {}
    for node in graph_def.node:
        name, inputs = str(node.name), [str(each) for each in node.input]
        before = [each.removeprefix("^").partition(":")[0] for each in inputs]
        one = stands_for.get(name, name)
        waits.setdefault(one, set()).update(stands_for.get(each, each) for each in before)
    last: dict[str, str] = {}
    for op in data.ops:
        if is_collective(op):
            one = stands_for[op.name]
            if devices[op.id] in last:
                waits.setdefault(one, set()).add(last[devices[op.id]])
            last[devices[op.id]] = one
    stuck = _waiting_for_itself(waits)
    if stuck:
        raise InvalidPlanError(
            f"the plan has devices wait for each other at {stuck!r}: they come to it in different "
            "orders, and the step would hang"
        )


def _waiting_for_itself(waits: dict[str, set[str]]) -> str:
    """A node that waits for itself, by way of others, or ""."""
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        return error.args[1][0]
    return ""


def _short(device: str) -> str:
    """ "CPU:1", or "" where it names none."""
    spec = tf.DeviceSpec.from_string(device) if device else tf.DeviceSpec()
    return f"{spec.device_type}:{spec.device_index or 0}" if spec.device_type else ""
