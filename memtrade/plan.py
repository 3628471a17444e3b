"""Plan: what a strategy decided, as frozen data that is saved, compared and checked.

A plan says two things of a training step. `fates` holds the decision for each activation, with
its reason: what people read. `actions` is the step's program that follows from it: what the
rewriter builds and the simulator walks.

    run 17        the original op 17
    recompute 4   op 4 again: consumers after this line read the new output
    swap_out 9    tensor 9 to host memory
    wait 9        until tensor 9 has left; on a GPU the host would else run ahead of the copy
    swap_in 9     tensor 9 back: consumers after this line read the copy
    reserve 4096  hold that many bytes of device memory during the next line, unused: it makes the
                  allocator split a free piece that it would otherwise hand out whole

Every consumer reads the latest version of its input, and a version's memory is free once its
last reader has run, so "drop" needs no action of its own.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from memtrade.errors import InvalidPlanError, reason_of
from memtrade.files import write_whole
from memtrade.graph import StepGraph

Decision = Literal["keep", "recompute", "swap"]
ActionKind = Literal["run", "recompute", "swap_out", "wait", "swap_in", "reserve"]
Order = Literal["pinned", "dataflow"]


# How the reasons of checkpoints begin, kept or swapped.
CHECKPOINT = "checkpoint"


class Fate(msgspec.Struct, frozen=True, array_like=True):
    """What becomes of one activation: the decision and, in a few words, why."""

    tensor: int
    decision: Decision
    reason: str = ""


class Action(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of the program. `id` is an op for run and recompute, a tensor for the swaps, and
    a number of bytes for reserve."""

    kind: ActionKind
    id: int


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A strategy's decision for one graph.

    Attributes:
        strategy: the name in the registry.
        options: the strategy's options, spelled out.
        fingerprint: of the graph that the plan was made for.
        order: "pinned" runs the actions one by one in the given order; "dataflow" leaves the
            order to the executor and only holds recomputations and swap-ins back.
        fates: one per activation that the strategy looked at.
        actions: the program; empty means the graph stays untouched.
        gap: how much better any plan could be, as a share of this one's time, or of its peak where
            that is the goal; proven in the strategy's model. None where nothing is.
        remarks: what the strategy says of its plan as a whole, such as which limit binds.
        target: the name of the device that it was made for.
        found_for: the budget that it was found for, where that was a smaller one.
    """

    strategy: str
    options: dict[str, Any]
    fingerprint: str
    order: Order
    fates: tuple[Fate, ...]
    actions: tuple[Action, ...]
    gap: float | None = None
    remarks: tuple[str, ...] = ()
    target: str = ""
    found_for: str = ""

    def save(self, path: Path) -> None:
        """Raises OSError where it cannot be written; a plan that was there stays."""
        write_whole(path, msgspec.json.encode(self))

    def tensors(self, decision: Decision) -> list[int]:
        return [fate.tensor for fate in self.fates if fate.decision == decision]


def load_plan(path: Path) -> Plan:
    """The plan in a file. Raises InvalidPlanError, with the reason, where it is not one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except (OSError, ValueError) as error:  # no JSON, no UTF-8, or no plan
        raise InvalidPlanError(
            f"cannot read a plan from {str(path)!r}: {reason_of(error)}"
        ) from error


def check_plan(plan: Plan, graph: StepGraph) -> None:
    """Raises InvalidPlanError unless `plan` can be carried out on `graph`.

    Checked: the fingerprint; every id is one of the graph's; each original op runs exactly once,
    after its inputs and controls; nothing stateful is recomputed; what is swapped in was swapped
    out. Not checked: whether the plan saves anything.
    """
    if plan.fingerprint != graph.fingerprint:
        raise InvalidPlanError(
            f"the plan was made for another graph ({plan.fingerprint}) than {graph.name} "
            f"({graph.fingerprint}): plan anew with `memtrade plan`"
        )
    for fate in plan.fates:
        _check_id(fate.decision, "tensor", fate.tensor, len(graph.tensors))
    if not plan.actions:
        done = next((fate for fate in plan.fates if fate.decision != "keep"), None)
        if done is not None:
            what = f"{done.decision} {graph.label(done.tensor)}"
            raise InvalidPlanError(f"the plan says {what}, but has no actions: plan anew")
        return
    ran: set[int] = set()
    outside: set[int] = set()
    for action in plan.actions:
        if action.kind in ("run", "recompute"):
            _check_id(action.kind, "op", action.id, len(graph.ops))
            _check_run(action, graph, ran)
            ran.add(action.id)
        elif action.kind == "reserve":
            if action.id <= 0:
                raise InvalidPlanError(f"the plan reserves {action.id} bytes: it must be some")
        else:
            _check_id(action.kind, "tensor", action.id, len(graph.tensors))
            _check_swap(action, graph, ran, outside)
    if len(ran) != len(graph.ops):
        forgotten = next(op for op in graph.ops if op.id not in ran)
        raise InvalidPlanError(f"the plan never runs {forgotten.name}")


def _check_id(what: str, kind: str, number: int, count: int) -> None:
    if not 0 <= number < count:  # a negative one would be another, counted from the end
        raise InvalidPlanError(
            f"the plan says {what} {number}, but the graph's {kind}s are 0 to {count - 1}"
        )


def _check_run(action: Action, graph: StepGraph, ran: set[int]) -> None:
    op = graph.ops[action.id]
    missing = [t for t in op.inputs if graph.tensors[t].op not in ran]
    if missing:
        raise InvalidPlanError(
            f"the plan runs {op.name} before its input {graph.label(missing[0])}"
        )
    if action.kind == "recompute" and (op.stateful or op.id not in ran):
        why = "it is stateful" if op.stateful else "it has not run yet"
        raise InvalidPlanError(f"the plan recomputes {op.name}, but {why}")
    if action.kind == "run":
        early = [c for c in op.controls if c not in ran]
        if early or op.id in ran:
            why = f"before {graph.ops[early[0]].name}" if early else "twice"
            raise InvalidPlanError(f"the plan runs {op.name} {why}")


def _check_swap(action: Action, graph: StepGraph, ran: set[int], outside: set[int]) -> None:
    """Takes note in `outside` of what is swapped out."""
    if graph.tensors[action.id].op not in ran:
        raise InvalidPlanError(f"the plan swaps {graph.label(action.id)} before it exists")
    if action.kind == "swap_out":
        outside.add(action.id)
    elif action.id not in outside:
        what = "waits for" if action.kind == "wait" else "swaps in"
        raise InvalidPlanError(
            f"the plan {what} {graph.label(action.id)}, but never swapped it out"
        )
