"""What the parent and the child of a trial say to each other. No TensorFlow here.

    parent ──TrialSpec, one JSON document, then end of file──► child's stdin
    parent ◄──one JSON object per line, tagged by "type"────── child's stdout

The child's logs go to its stderr. It speaks in this order, and may fail at any point:

    task      events
    measure   Ready  Progress*  Planned  Simulated  (Progress | StepDone)*  Done(measured)
              where a step breaks its budget: Corrected, and once more from Planned on
    verify    Ready  Progress*  Planned  (Progress | StepDone)*  Verified  Done
    extract   Ready  Progress*  Done                  the StepGraph is in the file spec.graph_path
    inspect   Ready  Progress*  Done                  and so are the findings
    calibrate Ready  Progress*  Calibrated  Done

A strategy that has no plan says neither Planned nor Simulated. `Failed` in place of `Done` ends it
too. A child that ends without either one has crashed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from memtrade.comparison import Verified
from memtrade.devices import Device
from memtrade.graph import StepGraph
from memtrade.plan import CHECKPOINT, Decision, Order, Plan
from memtrade.simulate.predict import Predicted

ChildTask = Literal["measure", "verify", "extract", "inspect", "calibrate"]

# How a child says that it ended early. "bad_input" is an error of the user that only the child
# can see (a limit below the variables' size): it makes no record.
FailedStatus = Literal["out_of_memory", "infeasible", "unsupported", "crashed", "bad_input"]

# How a trial ended, as the parent sees it and as records say it.
Status = Literal[
    "ok", "out_of_memory", "out_of_host_memory", "timeout", "crashed", "infeasible", "unsupported"
]

# By these, a trial told nothing of its step: a command ends with 1. Out of memory is a result.
FAILED: frozenset[str] = frozenset({"crashed", "timeout"})


# Actions that are ops of their own in the rewritten step.
_ADDED = frozenset({"recompute", "swap_out", "swap_in"})


class TrialSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One trial: all that the child needs to know, and what makes a trial the same trial.

    Attributes:
        task: "measure" runs and measures the step, "verify" compares it with the original,
            "extract" writes the traced step's StepGraph to `graph_path`, "inspect" what was found
            in it (`memtrade.findings`), as JSON, "calibrate" measures the
            device's rates and looks at no step.
        model_options: all options of the model, typed (`dataclasses.asdict` of the model).
        learning_rate: None is the optimizer's own default.
        split: "exact" or "reordered" where the widest ops run in parts (`memtrade.tf.split`).
        strategy_options: all options of the strategy, typed.
        device: "arena" or "gpu:N".
        memory_limit_bytes: the hard limit; None leaves it to `child_environment`.
        steps: the counted steps; `warmup` more come before them.
        plan_path: a saved plan to run in place of the strategy's own.
        known_folder: of plans that other trials made, and where this one's goes: one that was
            made for less memory counts, too. No part of what the trial is; the plan says so.
        leaves_margin: whether the strategy's budget is a search's, which leaves some of the limit
            free: the limit decides then, and a plan that needs the margin may have it. No part of
            what the trial is either.
    """

    task: ChildTask = "measure"
    model: str = "resnet"
    model_options: dict[str, Any] = {}
    optimizer: str = "sgd"
    learning_rate: float | None = None
    split: str = ""
    strategy: str = "original"
    strategy_options: dict[str, Any] = {}
    order: Order = "pinned"
    device: str = "arena"
    memory_limit_bytes: int | None = None
    steps: int = 5
    warmup: int = 1
    plan_path: str | None = None
    known_folder: str | None = None
    leaves_margin: bool = False
    graph_path: str | None = None


# The variable that tells a watched script's process which pipe to write to (`memtrade.watch`).
PIPE = "MEMTRADE_WATCH_PIPE"


class Sampled(msgspec.Struct, frozen=True):
    """What a watched script has in use.

    Attributes:
        seconds: of the clock. in_use_bytes: then; peak_bytes: the most until then.
        layer: that stands at the peak of the model that trains, as predicted; "" if not known.
    """

    seconds: float
    in_use_bytes: int
    peak_bytes: int
    layer: str = ""


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """What the step runs on, as the child sees it.

    Attributes:
        device: TensorFlow's name of the device ("CPU:0").
        limit_bytes: the allocator's hard limit.
        onednn: whether oneDNN's kernels run, as a convolution's own requests tell.
    """

    tensorflow_version: str
    device: str
    limit_bytes: int | None
    onednn: bool
    intra_op_threads: int
    inter_op_threads: int


class NamedCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint, by TensorFlow's name of the tensor, and whether it is kept or swapped."""

    tensor: str
    shape: tuple[int, ...] | None
    dtype: str
    decision: Decision


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in numbers: activations by decision, their bytes, and the size of the program.

    Attributes:
        clones: ops that run again. actions: lines of the plan's program.
        found_for: the budget that it was found for, where that was a smaller one.
        ops_added: clones and copies, each copy an op. None in records from before it was counted.
        checkpoints: in forward order. None in records from before they were named.
        waiting: what goes to the host and is no activation, such as a gradient that waits for its
            branch at the peak. None in records from before it was counted.
    """

    kept: int
    recomputed: int
    swapped: int
    kept_bytes: int
    recomputed_bytes: int
    swapped_bytes: int
    clones: int
    actions: int
    found_for: str = ""
    ops_added: int | None = None
    checkpoints: tuple[NamedCheckpoint, ...] | None = None
    waiting: int | None = None

    @property
    def decided_text(self) -> str:
        waiting = f" + {self.waiting}" if self.waiting else ""
        return f"{self.kept} / {self.recomputed} / {self.swapped}{waiting}"

    @classmethod
    def of(cls, plan: Plan, graph: StepGraph) -> PlanSummary:
        kept, recomputed = plan.tensors("keep"), plan.tensors("recompute")
        swapped = plan.tensors("swap")
        return cls(
            kept=len(kept),
            recomputed=len(recomputed),
            swapped=len(swapped),
            kept_bytes=graph.bytes_of(kept),
            recomputed_bytes=graph.bytes_of(recomputed),
            swapped_bytes=graph.bytes_of(swapped),
            clones=sum(action.kind == "recompute" for action in plan.actions),
            actions=len(plan.actions),
            found_for=plan.found_for,
            ops_added=sum(action.kind in _ADDED for action in plan.actions),
            checkpoints=tuple(
                NamedCheckpoint(graph.label(t.id), t.shape, t.dtype, fate.decision)
                for fate in plan.fates
                if fate.reason.startswith(CHECKPOINT)
                for t in [graph.tensors[fate.tensor]]
            ),
            waiting=len({a.id for a in plan.actions if a.kind == "swap_out"}.difference(swapped)),
        )

    def known_to(self, older: PlanSummary) -> PlanSummary:
        """What an older record could have said of this plan."""
        later = ("ops_added", "checkpoints", "waiting")
        unknown = [name for name in later if getattr(older, name) is None]
        return msgspec.structs.replace(self, **dict.fromkeys(unknown))


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial measured, warm-up steps included where it says so.

    Attributes:
        peak_bytes: most bytes in use on the device, over all steps, warm-up included.
        peak_source: who counted them.
        peak_bytes_by_step: the same for each step, warm-up first.
        persistent_bytes: in use between steps: variables, optimizer slots, the batch.
        memory_cost_bytes: peak_bytes - persistent_bytes.
        host_bytes: the highest resident set during the steps, less that of the idle process.
        step_seconds: the counted steps. warmup_seconds: those before.
        median_seconds, fastest_seconds, slowest_seconds: of the counted steps.
        trace_seconds: to trace the step and read its graph. plan_seconds, rewrite_seconds: to
            plan, and to build the rewritten step.
        losses: of every step, warm-up first; None where it was not finite.
        in_use_bytes: on the device before there were variables, with them and the batch before the
            first step, and after each step; empty in records from before it was looked at.
    """

    peak_bytes: Annotated[int, msgspec.Meta(gt=0)]
    peak_source: Literal["allocator"] = "allocator"
    peak_bytes_by_step: tuple[int, ...]
    persistent_bytes: int
    memory_cost_bytes: int
    host_bytes: int
    host_source: Literal["resident set"] = "resident set"
    step_seconds: tuple[float, ...]
    warmup_seconds: tuple[float, ...]
    median_seconds: Annotated[float, msgspec.Meta(gt=0)]
    fastest_seconds: float
    slowest_seconds: float
    trace_seconds: float
    plan_seconds: float
    rewrite_seconds: float
    losses: tuple[float | None, ...]
    in_use_bytes: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, steps: Sequence[StepDone], *, warmup: int, persistent_bytes: int, **others: Any
    ) -> Measured:
        """The summary of all steps, of which the first `warmup` are not counted, and the `others`
        of its fields. Raises ValueError where no step is left to count."""
        seconds = [step.seconds for step in steps]
        counted = seconds[warmup:]
        if not counted:
            raise ValueError(f"no counted step among {len(steps)}, warm-up {warmup}")
        peak_bytes = max(step.peak_bytes for step in steps)
        return cls(
            peak_bytes=peak_bytes,
            peak_bytes_by_step=tuple(step.peak_bytes for step in steps),
            persistent_bytes=persistent_bytes,
            memory_cost_bytes=peak_bytes - persistent_bytes,
            step_seconds=tuple(counted),
            warmup_seconds=tuple(seconds[:warmup]),
            median_seconds=statistics.median(counted),
            fastest_seconds=min(counted),
            slowest_seconds=max(counted),
            losses=tuple(step.loss for step in steps),
            **others,
        )


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """TensorFlow is imported and the device is set up."""

    runtime: Runtime


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """What begins now: a phase ("trace", "plan", "rewrite", "warm-up", "step", ...), which of how
    many. `step` counts from 1; 0 of 0 where there is nothing to count."""

    phase: str
    step: int = 0
    of: int = 0

    @classmethod
    def of_step(cls, position: int, *, warmup: int, steps: int) -> Progress:
        """Of the step at `position`, from 0: warm-up comes first, and is counted apart."""
        if position < warmup:
            return cls("warm-up", position + 1, warmup)
        return cls("step", position + 1 - warmup, steps)

    @property
    def text(self) -> str:
        return f"{self.phase} {self.step} of {self.of}" if self.of else self.phase


class StepDone(msgspec.Struct, frozen=True, tag="step_done"):
    """A step has run, warm-up or counted. `peak_bytes` is of this step alone; a `loss` that is
    not finite arrives as None."""

    seconds: float
    peak_bytes: int
    loss: float | None


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """The strategy has decided."""

    summary: PlanSummary


class Simulated(msgspec.Struct, frozen=True, tag="simulated"):
    """What the plan will cost: said before the step runs."""

    predicted: Predicted


class Calibrated(msgspec.Struct, frozen=True, tag="calibrated"):
    """The device's rates."""

    profile: Device


class Corrected(msgspec.Struct, frozen=True, kw_only=True, tag="corrected"):
    """A step took more than its budget: what was learned from it, before the plan is made anew.

    Attributes:
        predicted_bytes, measured_bytes: the peak of the plan that is given up.
    """

    predicted_bytes: int
    measured_bytes: int
    budget_bytes: int
    remedy: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The end of a child that did its task. `measured` belongs to the task "measure"."""

    measured: Measured | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The end of a child that could not, with a reason in one line."""

    status: FailedStatus
    reason: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a child ended, and what it had said until then."""

    status: Status = "ok"
    reason: str = ""
    runtime: Runtime | None = None
    plan: PlanSummary | None = None
    predicted: Predicted | None = None
    corrections: tuple[Corrected, ...] = ()
    measured: Measured | None = None
    verified: Verified | None = None
    profile: Device | None = None


Event = (
    Ready
    | Progress
    | StepDone
    | Planned
    | Simulated
    | Corrected
    | Verified
    | Calibrated
    | Done
    | Failed
)
