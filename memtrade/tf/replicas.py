"""A traced step on several devices: a trace of each part, and one graph out of all their plans.

    trace ──parts_of──► a Trace per device ──► a Plan each ──apply_plans──► the step, rewritten

What runs on a device without a plan (means of losses on the host) stays as it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import tensorflow as tf

from memtrade.errors import UnsupportedGraphError
from memtrade.graph import StepGraph
from memtrade.op_types import HANDED_TYPES
from memtrade.parts import losses, split
from memtrade.plan import Plan, check_plan
from memtrade.tf.extract import Trace
from memtrade.tf.in_place import settle
from memtrade.tf.meetings import devices_of, replicas
from memtrade.tf.rewrite import SCOPE, apply_plan, import_step, rewrite
from memtrade.tf.swap import HostTransfer

# The strategies with which each replica computes a step of its own, on a device of its own.
MIRRORED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def refuse_mirrored(model: Any, what: str) -> None:
    """Raises UnsupportedGraphError where a Keras model trains on replicas: what is traced of it by
    itself is the step of none of them."""
    strategy = model.distribute_strategy
    if isinstance(strategy, MIRRORED):
        raise UnsupportedGraphError(
            f"{what}, and {model.name} trains with {type(strategy).__name__}: ask it of the same "
            "model, made outside of the strategy's scope"
        )


def parts_of(trace: Trace) -> list[Trace]:
    """A trace for each device that computes a loss, or the trace itself, if there is one device.

    A GPU and the host beside it are one device, as tf.distribute sees it; two GPUs are several,
    and so are two logical CPUs where there is no GPU.

    Raises:
        UnsupportedGraphError: the step's devices wait for each other in a way that would hang.
    """
    data = trace.graph.data
    devices = devices_of(trace.concrete, data)
    computing = replicas(devices)
    if len(computing) < 2:
        loss = losses(data, [""] * len(devices))[""]
        return [replace(trace, graph=StepGraph(msgspec.structs.replace(data, loss=loss)))]
    own = losses(data, devices)
    return [
        replace(
            trace,
            device=part.device,
            graph=StepGraph(
                msgspec.structs.replace(
                    part.data,
                    name=f"{data.name} on {part.device}",
                    loss=part.tensor_of[own[part.device]],
                )
            ),
        )
        for part in split(data, devices)
        if part.device in own and part.device in computing
    ]


def apply_plans(
    trace: Trace,
    parts: Sequence[Trace],
    plans: Sequence[Plan],
    transfers: Sequence[HostTransfer],
) -> Callable[..., Any]:
    """The step that the plans make of its parts, as a tf.function of the same batch.

    Raises InvalidPlanError where a plan does not fit its part, or two of them do not agree on the
    order in which devices wait for each other.
    """
    if len(parts) == 1 and not parts[0].device:
        return apply_plan(parts[0], plans[0], transfers[0])
    made = tf.compat.v1.GraphDef(library=trace.graph_def.library, versions=trace.graph_def.versions)
    planned: set[str] = set()
    for number, (part, plan, transfer) in enumerate(zip(parts, plans, transfers, strict=True)):
        check_plan(plan, part.graph)
        if not plan.actions:
            continue
        settle(part, tables=True)
        scope = f"{SCOPE}/{number}"
        nodes = rewrite(part, plan, transfer, scope=scope).node
        for node in nodes:
            if node.name.startswith(SCOPE) and not node.device:
                node.device = f"/device:{part.device}"
        made.node.extend(nodes)
        planned.update(op.name for op in part.graph.ops if op.type not in HANDED_TYPES)
    left = {op.name for op in trace.graph.ops if op.type != "Placeholder"} - planned
    made.node.extend(node for node in trace.graph_def.node if node.name in left)
    return import_step(trace, made)
