"""Follows one tensor of ResNet-18 through the code, and prints the objects that it passes.

    python docs/follow.py graph

Stages: graph, fate, actions, nodes, program, moments, record. Tracing takes some seconds and
nothing is run; the record is one that is kept under `results/`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from memtrade.graph import StepGraph
from memtrade.measure.records import load_records
from memtrade.models import MODELS
from memtrade.plan import Action, Plan
from memtrade.results.tables import compare
from memtrade.simulate.timeline import TimeSimulator
from memtrade.simulate.usage import GROUPS, use_of_memory
from memtrade.strategies import PLANNED, make_options
from memtrade.target import profile_target
from memtrade.tf.build import make_step
from memtrade.tf.extract import Trace, trace
from memtrade.tf.rewrite import SCOPE, rewrite
from memtrade.tf.swap import SerializeTransfer

RECORDS = Path(__file__).resolve().parents[1] / "results" / "measured"
OPTIONS = {"layers": 18, "batch_size": 32}


def follow() -> dict[str, str]:
    """What each stage prints."""
    with tf.Graph().as_default():  # nothing is allocated
        traced = trace(make_step(MODELS["resnet"](**OPTIONS)))
    graph = traced.graph
    target = profile_target("arena")
    plan = PLANNED["ome"].plan(graph, make_options("ome"), target)
    tensor = plan.tensors("swap")[0]
    clock = TimeSimulator(graph, target)
    return {
        "graph": _graph(graph, tensor),
        "fate": _objects(fate for fate in plan.fates if fate.tensor == tensor),
        "actions": _actions(graph, plan, tensor),
        "nodes": _nodes(traced, plan, tensor),
        "program": _program(clock, plan, tensor),
        "moments": _moments(clock, plan, tensor),
        "record": _record(),
    }


def _graph(graph: StepGraph, tensor: int) -> str:
    """The tensor, who makes it, and who reads it: forward, then backward."""
    found = graph.tensors[tensor]
    readers = [graph.ops[op] for op in graph.consumers[tensor]]
    sides = [("forward" if op.id in graph.forward else "backward", op) for op in readers]
    lines = [_object(found), _object(graph.ops[found.op])]
    lines += [f"{side}: {op.type} {op.name}" for side, op in sides]
    return _block(lines)


def _actions(graph: StepGraph, plan: Plan, tensor: int) -> str:
    """The lines of the plan's program that name the tensor or an op around it."""
    near = {graph.tensors[tensor].op, *graph.consumers[tensor]}

    def touches(action: Action) -> bool:
        if action.kind in ("run", "recompute"):
            return action.id in near
        return action.kind != "reserve" and action.id == tensor

    lines = []
    for place, action in enumerate(plan.actions):
        if touches(action):
            of = graph.ops[action.id].name if action.id in near else graph.label(tensor)
            lines.append(f"{place:4}  {action.kind:<9} {action.id:4}  {of}")
    return _block([f"{len(plan.actions)} actions, of which", *lines])


def _nodes(traced: Trace, plan: Plan, tensor: int) -> str:
    """What the rewriter writes for the swap: each new node with its inputs; ^ is a control edge."""
    label = traced.graph.label(tensor).replace(":", "_")
    names = {f"{SCOPE}/out/{label}", f"{SCOPE}/in1/{label}"}
    made = [n for n in rewrite(traced, plan, SerializeTransfer()).node if n.name in names]
    return _block([f"{node.op} {node.name}\n    {', '.join(node.input)}" for node in made])


def _program(clock: TimeSimulator, plan: Plan, tensor: int) -> str:
    """The rows that the simulator walks for the first action after the swap."""
    simulator = clock.simulator
    program = simulator.link(simulator.actions(plan))
    out = next(i for i, action in enumerate(plan.actions) if action == Action("swap_out", tensor))
    return _block([_object(row) for row in program.rows if row.action == out])


def _moments(clock: TimeSimulator, plan: Plan, tensor: int) -> str:
    """Memory and time just before the copy out, after it, and around the copy in."""
    usage = use_of_memory(clock, plan)
    lines = ["   second   MB in use   of which activations   swapped in   host MB  during"]
    for moment in usage.moments:
        action = usage.actions[moment.action]
        if action.id == tensor and action.kind in ("swap_out", "swap_in"):
            by_group = dict(zip(GROUPS, moment.by_group, strict=True))
            lines.append(
                f"{moment.seconds:9.4f}{moment.in_use_bytes / 1e6:12,.1f}"
                f"{by_group['activations'] / 1e6:23,.1f}{by_group['swapped in'] / 1e6:13,.1f}"
                f"{moment.host_bytes / 1e6:10,.1f}  {action.kind}"
            )
    lines.append(f"peak of the step: {usage.peak_bytes:,} bytes")
    return _block(lines)


def _record() -> str:
    """The row that a table makes of the record of the same trial."""
    found = load_records(RECORDS)
    of_step = [each for each in found if OPTIONS.items() <= each.spec.model_options.items()]
    [sheet] = compare([each for each in of_step if each.spec.model == "resnet"])
    [row] = [row for row in sheet.rows if row[0] == "ome"]
    return _block([f"{name:<28} {cell}" for name, cell in zip(sheet.names, row, strict=True)])


def _objects(found: Iterable[Any]) -> str:
    return _block(map(_object, found))


def _object(found: Any) -> str:
    """`Tensor(id=7, op=3, ...)`, without the attributes that say nothing."""
    fields = msgspec.structs.asdict(found) if isinstance(found, msgspec.Struct) else found._asdict()
    said = {name: value for name, value in fields.items() if value not in ("", (), {}, None)}
    if "attrs" in said:  # TensorFlow hands them out in any order
        said["attrs"] = dict(sorted(said["attrs"].items()))
    inside = ", ".join(f"{name}={value!r}" for name, value in said.items())
    return f"{type(found).__name__}({inside})"


def _block(lines: Iterable[str]) -> str:
    return "\n".join(["```text", *lines, "```"])


if __name__ == "__main__":
    print(follow()[sys.argv[1]])
